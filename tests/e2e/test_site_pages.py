"""`ckptbench report --site`: pages of the whole history in a real browser, from a folder and from a web server, and what a later call makes again."""
import functools
import http.server
import json
import math
import os
import random
import re
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import unquote

import pytest

from browser import VIEWS, Browser
from harness import BUILD, ROOT

pytestmark = pytest.mark.xdist_group("site pages")

DAY = 86400
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&"


class Home:
    def __init__(self, folder):
        self.folder, self.site = folder / "home", folder / "site"

    def make(self, run, day, save, *words):
        subprocess.run([BUILD / "tests/make_run", self.folder / "runs" / run, f"started={1700000000 + int(DAY * day)}", f"save={save}", f"load={2 * save}", *words],
                       check=True, timeout=120)

    def call(self, *arguments, code=0):
        result = subprocess.run([BUILD / "ckptbench", *arguments], env={**os.environ, "CKPTBENCH_HOME": str(self.folder)}, capture_output=True, text=True, timeout=300)
        assert result.returncode == code, result.stdout + result.stderr
        return result

    def build(self):
        """How many pages were made, kept and removed."""
        said = self.call("report", "--site", self.site).stderr
        return tuple(map(int, re.search(r"(\d+) pages? made, (\d+) kept, (\d+) removed", said).groups()))

    def files(self):
        return {path.relative_to(self.site).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns) for path in self.site.rglob("*") if path.is_file()}

    def data(self, page):
        return json.loads(re.search(r'<script type="application/json" id="data">(.*)</script>', (self.site / page).read_text())[1])


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Thirty nights of two experiments: one is slower since the 25th, with another kernel, the other faster since the 12th. A sweep, a
    failed run, and names that are markup."""
    home, noise = Home(tmp_path_factory.mktemp("site")), random.Random(5)
    for night in range(30):
        kernel = "6.12" if night >= 25 else "6.1"
        home.make(f"night-{night:02}", night, 9 * math.exp(noise.gauss(0, 0.03)) * (1.2 if night >= 25 else 1), "label.kind=nightly",
                  f'fingerprint={{"kernel": {{"release": "{kernel}"}}, "cpu": {{"count": 8}}}}')
        home.make(f"other-{night:02}", night + 0.1, 3 * math.exp(noise.gauss(0, 0.03)) * (0.85 if night >= 12 else 1), "model=gpt2", "store=/scratch/b")
    home.make("late", 29.2, 1, "outcome=timeout", f"label.story={HOSTILE}")
    home.make("waiting", 29.3, 1, "outcome=none")
    home.make("lost", 29.3, 1, "outcome=lost", "records=false")
    for number, depth in enumerate((2, 4, 2, 4)):
        run = f"s1.{number:02}"
        home.make(run, 28 + 0.01 * number, 5 + depth, f"io.depth={depth}", f"name={HOSTILE}")
        (home.folder / "runs" / run / "planned.json").write_text(json.dumps(
            {"version": 1, "run": run, "sweep": "s1", "block": 1 + number // 2, "combination": number % 2, "planned_ns": 1700000000 * 10**9}))
    home.call("collect", "--silence", "1h")
    home.made = home.build()
    return home


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


def links(browser):
    """Where the page leads, tables unfolded."""
    browser.evaluate("""document.querySelectorAll("details").forEach((folded) => (folded.open = true)),
        new Promise((done) => setTimeout(() => requestAnimationFrame(done)))""")
    return browser.evaluate("[...document.querySelectorAll('a')].map((link) => link.href)")


def test_every_run_sweep_and_line_has_a_page(home):
    pages = {name for name in home.files() if name.endswith(".html")}
    assert home.made == (len(pages), 0, 0)
    assert {name for name in pages if name.startswith("run/")} == {f"run/{path.name}.html" for path in (home.folder / "runs").iterdir()}
    assert "sweep/s1.html" in pages and "index.html" in pages
    assert len([name for name in pages if name.startswith("line/")]) == 4  # two of them of the sweep


def test_pages_work_from_a_folder_and_all_their_links_lead_to_pages(home, browser):
    wanted, seen = [home.site / "index.html"], set()
    while wanted:
        page = wanted.pop()
        seen.add(page)
        if len([path for path in seen if path.parent.name == "run"]) > 5 and page.parent.name == "run":
            continue  # pages of runs are alike
        browser.open(page, width=1400)
        assert browser.said == [], page
        assert all(url.startswith(home.site.as_uri()) for url in browser.requests)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for link in links(browser):
            path = Path(unquote(link.removeprefix("file://")))
            assert path.is_file(), f"{page} leads to {link}"
            if path not in seen and path not in wanted:
                wanted.append(path)
    assert {path.parent.name for path in seen} == {"site", "line", "sweep", "run"}


@pytest.mark.parametrize("kind", ["index.html", "line/*.html", "sweep/*.html", "run/night-29.html"])
def test_axe_finds_nothing_on_pages_of_a_site_at_any_width_in_any_colours(home, browser, kind):
    browser.open(sorted(home.site.glob(kind))[0])
    for view in VIEWS:
        browser.view(**view)
        assert browser.violations() == [], view


@pytest.mark.parametrize("run, said", [("late", "timeout"), ("lost", "lost"), ("waiting", "planned")])
def test_runs_without_figures_have_pages_too(home, browser, run, said):
    browser.open(home.site / f"run/{run}.html", width=1400)
    assert browser.said == []
    assert said in browser.evaluate("document.getElementById('heading').textContent")


def test_the_start_page_says_what_changed_in_the_last_week(home, browser):
    change = next(change for change in json.loads(home.call("history", "save_s", "store=./ckptbench-store", "label.kind=nightly", "--json").stdout)["change_points"])
    browser.open(home.site / "index.html", width=390, height=800)
    said = browser.evaluate("[...document.querySelectorAll('.answer')].map((said) => said.textContent)")
    save, = (sentence for sentence in said if "save_s" in sentence)
    kernel = change["differs"]["kernel.release"]
    assert f"is worse by +{100 * change['change']:.1f}" in save and change["run"] in save
    assert f"kernel.release: {kernel['before']} -> {kernel['after']}" in save and "6.12" in kernel["after"]
    assert not any("gpt2" in sentence for sentence in said)  # that was two weeks ago
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert browser.evaluate("[...document.querySelectorAll('section')].find((section) => section.querySelector('h2').textContent === 'Runs that did not pass').textContent").count("late") == 1


def test_the_page_of_a_line_has_the_figures_of_history(home, browser):
    page, = (page for page in (home.site / "line").iterdir() if "/scratch/b" in page.read_text())
    data = home.data(page.relative_to(home.site))
    assert {"save_s", "load_s"} <= set(data["documents"])
    for document in data["documents"].values():
        words = subprocess.run(["sh", "-c", f"printf '%s\\n' {document['command']}"], capture_output=True, text=True, check=True).stdout.splitlines()
        assert json.loads(home.call(*words[1:]).stdout) == document["data"]
    history = data["documents"]["save_s"]["data"]
    assert history["change_points"][0]["direction"] == "better"
    browser.open(page, width=1400)
    drawn = browser.evaluate("""[...document.querySelectorAll("section")].find((section) => section.querySelector("h2").textContent === "save_s over time")
        .querySelector(".chart").drawing.getOption().series.map((series) => [series.name, series.data.map((point) => point.value || point)])""")
    assert [value for _, value in drawn[0][1]] == [point["median"] for point in history["points"]]
    (_, levels), = drawn[1:]
    assert [level[2:] for level in levels] == [[level["median"], *level["ci"]] for level in history["levels"]]
    assert [level["median"] for level in history["levels"]] == [history["change_points"][0][side]["median"] for side in ("before", "after")]
    assert [(level["first"], level["n"]) for level in history["levels"]] == [(history["points"][0]["run"], 12), (history["change_points"][0]["run"], 18)]
    said = browser.evaluate("document.getElementById('heading').textContent")
    assert "The level of save_s is " in said and "The level of load_s is " in said


class Pages(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/favicon.ico":  # some browsers ask for one
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()


def test_a_web_server_serves_the_pages(home, browser):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages, directory=home.site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.said, browser.loaded = [], False
        browser.call("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/run/night-29.html")
        deadline = time.monotonic() + 200
        while not browser.evaluate("document.readyState === 'complete' && document.querySelectorAll('.chart svg').length > 1"):
            assert time.monotonic() < deadline, browser.said
        assert browser.said == []
        server.shutdown()


def test_a_later_call_touches_only_what_has_changed(home):
    before = home.files()
    assert home.build() == (0, home.made[0], 0)
    assert home.files() == before
    home.make("night-30", 30, 10.8, "label.kind=nightly")
    assert home.build() == (3, home.made[0] - 2, 0)
    after = home.files()
    changed = {name for name in after if before.get(name) != after[name]}
    line, = (name for name in changed if name.startswith("line/"))
    assert changed == {"index.html", "pages.json", "run/night-30.html", line}
    assert "night-30" in (home.site / line).read_text()


def test_a_folder_that_is_no_site_is_refused(home, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    result = home.call("report", "--site", tmp_path, code=2)
    assert "is not empty and contains no site" in result.stderr and [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert "takes the whole history" in home.call("report", "night-01", "--site", tmp_path / "new", code=2).stderr
    assert not (tmp_path / "new").exists()


def test_no_two_scripts_define_the_same_name():
    """They share one scope: the later definition would replace the earlier one."""
    names = [name for script in (ROOT / "share/report").rglob("*.js") if script.parent.name != "echarts"
             for name in re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", script.read_text(), re.M)]
    assert sorted(names) == sorted(set(names))
