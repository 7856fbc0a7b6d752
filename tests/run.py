"""Runs the tests of one build and ends with `N passed, N failed, N skipped`.

usage: tests/run.py [--build DIR] [--unit | --no-unit] [--folders DIR…] [--python VENV_PYTHON] [-k WORD]
Unit tests are cmocka programs in DIR/tests; the others are pytest files under tests/. A test that fails once has
failed. A test that is skipped must name what it misses; with CI=true a skip is a failure.
"""
import argparse
import os
import importlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


# Tests wait for ranks, disks and deadlines more than they compute.
AT_ONCE = min(2 * (os.cpu_count() or 1), 8)


def run_program(build, source):
    """One cmocka program: its counts and what there is to say."""
    program = build / "tests" / source.stem
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP")
    try:
        result = subprocess.run([str(program)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return (0, 1, 0), f"FAILED {program.name}: {failure}"
    lines = re.findall(r"^(ok|not ok) \d+ (# SKIP)?", result.stdout, re.M)  # cmocka has "not ok 5 # SKIP name"
    skipped = sum(1 for _, skip in lines if skip)
    passed = sum(1 for how, skip in lines if how == "ok" and not skip)
    failed = sum(1 for how, skip in lines if how == "not ok" and not skip)
    if result.returncode != 0 and failed == 0 or passed + failed + skipped == 0:
        failed += 1
    said = f"{program.name}: {passed} passed, {failed} failed, {skipped} skipped"
    if failed or skipped:
        said += f"\n{result.stdout}{result.stderr}\nexit {result.returncode}"
    if failed:
        names = re.findall(r"^not ok \d+ - (\w+)", result.stdout, re.M)
        said += f"\nFAILED {program.name}: {', '.join(names) or f'exit {result.returncode}'}"
    return (passed, failed, skipped), said


def run_unit(build, word):
    counts = [0, 0, 0]
    sources = [path for path in sorted((ROOT / "tests/unit").glob("test_*.c")) if word in path.stem]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for figures, said in pool.map(lambda source: run_program(build, source), sources):
            print(said, flush=True)
            counts = [a + b for a, b in zip(counts, figures)]
    return counts


def services_wanted(folders):
    """The modules tests/services/NAME.py of real servers whose VARIABLE a test in `folders` asks for."""
    sys.path.insert(0, str(ROOT / "tests"))
    paths = [path for folder in folders for path in [ROOT / folder, *(ROOT / folder).rglob("*.py")] if path.is_file()]
    text = "".join(path.read_text() for path in paths)
    services = [importlib.import_module(f"services.{path.stem}") for path in sorted((ROOT / "tests/services").glob("*.py"))]
    return [service for service in services if hasattr(service, "VARIABLE") and service.VARIABLE in text]


def start_service(service, folder):
    """What tests need to know of it: environment variables, VARIABLE among them; nothing where it is not installed."""
    folder.mkdir()
    try:
        return service.start(folder)
    except service.Missing as missing:
        print(f"service {service.__name__}: {missing}", flush=True)
        return {}


def run_pytest(build, python, word, folders):
    """Starts the services that the tests want, runs the tests, stops the services whatever happened."""
    root = Path(tempfile.mkdtemp(prefix="ckptbench-services-"))
    places = {service: root / service.__name__.split(".")[-1] for service in services_wanted(folders)}
    environment = dict(os.environ, CKPTBENCH_BUILD=str(build), COLUMNS="300")
    command = [python, "-m", "pytest", "-q", "-rsfE", "--tb=short", "--timeout=600", "--durations=20", "-n", str(AT_ONCE),
               "--dist=loadgroup", *folders]
    if word:
        command += ["-k", word]
    try:
        with ThreadPoolExecutor(max(len(places), 1)) as pool:
            for variables in pool.map(start_service, places.keys(), places.values()):
                environment.update(variables)
        return count_pytest(build, command, environment)
    finally:
        for service, folder in places.items():
            service.stop(folder)
        shutil.rmtree(root, ignore_errors=True)


def count_pytest(build, command, environment):
    report = build / "pytest.xml"
    report.unlink(missing_ok=True)
    code = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, env=environment).returncode
    if not report.exists() or code not in (0, 1, 5):
        return [0, 1, 0]
    suite = ElementTree.parse(report).getroot().find("testsuite")
    total, failed, errors, skipped = (int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped"))
    return [total - failed - errors - skipped, failed + errors, skipped]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--unit", action="store_true", help="unit tests alone")
    parser.add_argument("--no-unit", action="store_true", help="pytest folders alone")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folders", nargs="*", default=["tests/e2e", "tests/interop"])
    parser.add_argument("-k", dest="word", default="")
    arguments = parser.parse_args()
    # A shell starts background jobs with both ignored, and the programs that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    build = (ROOT / arguments.build).resolve()
    counts = [0, 0, 0] if arguments.no_unit else run_unit(build, arguments.word)
    if not arguments.unit:
        folders = [folder for folder in arguments.folders if (ROOT / folder).exists()]
        counts = [a + b for a, b in zip(counts, run_pytest(build, arguments.python, arguments.word, folders))]
    passed, failed, skipped = counts
    if skipped and os.environ.get("CI"):
        print("a skipped test is a failure in CI: every library and peer must be there")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or (skipped and os.environ.get("CI")) or passed == 0 else 0)


if __name__ == "__main__":
    main()
