"""Pages of `ckptbench report` in a real browser: what they show is what --json prints, they load nothing, and they fit."""
import json
import math
import os
import pty
import re
import struct
import subprocess
import zlib

import pytest

from browser import VIEWS, Browser
from harness import BUILD, ROOT, ckptbench, environment
from test_suite import run_on_nodes

pytestmark = pytest.mark.xdist_group("report")

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"&\u2028"
SMALL = ["model=gpt2-tiny", "layers=1", "store=store", "warmup=0"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def browser(place):
    browser = Browser(place)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def run(place):
    """A run on four ranks, whose label and name are markup."""
    made = ckptbench(place, "run", *SMALL, "ranks=4", "tp=2", "dp=2", "iterations=3", f"label.story={HOSTILE}", f"name={HOSTILE}", "--json")
    return json.loads(made.stdout)["run"]


def page_of(place, *words, code=0):
    """The file of a page, and its data: what its script reads."""
    path = place / f"{re.sub('[^a-z0-9]', '-', '-'.join(words))}.html"
    ckptbench(place, "report", *words, "-o", path, code=code)
    data = re.search(r'<script type="application/json" id="data">(.*)</script>', path.read_text())[1]
    return path, json.loads(data)


@pytest.fixture(scope="module")
def run_page(place, run):
    return page_of(place, run)


@pytest.fixture(scope="module")
def sweep(place):
    ckptbench(place, "run", *SMALL, "ranks=2", "iterations=2", "baseline=false", "verify=none", "io.depth=1,4", "repeat=3")
    return json.loads(ckptbench(place, "list", "--json").stdout)[0]["sweep"]


@pytest.fixture(scope="module")
def sweep_page(place, sweep):
    return page_of(place, sweep)


@pytest.fixture(scope="module")
def comparison_page(place, sweep):
    return page_of(place, sweep, "--by", "io.depth")


@pytest.fixture(scope="module")
def training_page(place):
    made = ckptbench(place, "run", "workload=train", "model=gpt2-tiny", "layers=1", "ranks=2", "train.steps=12", "train.batch_size=1", "train.seq_length=16",
                     "train.checkpoint_every=4", "train.validate_every=4", "store=store", "baseline=false", "--json")
    return page_of(place, json.loads(made.stdout)["run"])


@pytest.fixture(scope="module")
def suite_page(place):
    (place / "suite").mkdir()
    run_on_nodes(place / "suite", "ranks=3", "suite.message_bytes=4KiB")
    return page_of(place / "suite", "LATEST")


def make(place, run, *words):
    subprocess.run([BUILD / "tests/make_run", place / "home/runs" / run, *map(str, words)], check=True, timeout=120)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A home of made-up runs: 16 nights of which the last 8 are slower, a sweep over ranks, a watched training, and a pool that two runs used."""
    place = tmp_path_factory.mktemp("made")
    for night in range(16):
        kernel = json.dumps({"kernel": {"release": "6.12" if night > 7 else "6.1"}})
        make(place, f"night-{night:02}", f"started={1700000000 + 86400 * night}", f"save={(9, 12)[night > 7] + 0.1 * (night % 3)}", "label.kind=nightly", f"fingerprint={kernel}")
        make(place, f"other-{night:02}", f"started={1699999900 + 86400 * night}", f"save={4 + 0.1 * (night % 3)}", "label.kind=other", "model=gpt2")
    for number in range(10):
        ranks = 2 ** (number % 5)
        make(place, f"s1.{number:02}", f"started={1700500000 + 10 * number}", f"ranks={ranks}", f"made_ranks={ranks}", f"save={0.4 + 0.3 * math.log(ranks) + 0.001 * (number % 3)}", f"name={HOSTILE}")
        (place / f"home/runs/s1.{number:02}/planned.json").write_text(json.dumps(
            {"version": 1, "run": f"s1.{number:02}", "sweep": "s1", "block": 1 + number // 5, "combination": number % 5, "planned_ns": 1700500000 * 10**9}))
    make(place, "watched", "workload=watch", "started=1700600000", "facts=watch.command=torchrun\nwatch.seen=2 ranks of torch 2.13: 3 saves of torch.distributed.checkpoint\n"
         f"watch.place=/scratch/ckpt\nwatch.warning.1=a save was overtaken by the next {HOSTILE}\nwatch.unseen.1=os.rename\n")
    hour, began = 3600 * 10**9, 1701000000 * 10**9
    pool = place / "home/pools/20231126-pool"
    (pool / "jobs").mkdir(parents=True)
    (pool / "runs").mkdir()
    (pool / "pool.json").write_text(json.dumps({"version": 1, "id": pool.name, "name": "night", "mode": "hold", "nodes": 4, "created_wall_ns": began, "expires_wall_ns": began + 2 * hour,
                                                "budget_node_ns": 8 * hour, "period_ns": 0, "boot_most_ns": hour, "intent_wall_ns": began, "job": "4711"}))
    (pool / "jobs/4711.0").write_text(json.dumps({"version": 1, "job": "4711", "restarts": 0, "node_count": 4, "nodes": "n[1-4]", "allocated_wall_ns": began,
                                                  "began_wall_ns": began + hour // 4, "seen_wall_ns": began + hour, "kept_ns": 0, "ended": True}))
    for run in ("night-01", "night-02", "it's-gone"):
        (pool / "runs" / run).touch()
    ckptbench(place, "collect", "--silence", "1h")
    return place


MADE = {"watch": ["watched"], "overview": ["label.kind=nightly,other workload=checkpoint"], "pool": ["--pool", "night"], "latest": ["label.kind=nightly", "LATEST"], "scaling": ["s1"]}


@pytest.fixture(scope="module")
def made_pages(made):
    """{kind: (file, data)}"""
    return {kind: page_of(made, *words) for kind, words in MADE.items()}


def numbers_in(document):
    """Every number of a document."""
    if isinstance(document, dict):
        return set().union(*map(numbers_in, document.values()))
    if isinstance(document, list):
        return set().union(*map(numbers_in, document))
    return {document} if isinstance(document, (int, float)) and not isinstance(document, bool) else set()


SCALES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "%": 0.01,  # all others are 1
          **{f"{prefix}B{over}": 1024**power for power, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi")) for over in ("", "/s")},
          **{f"{prefix}{noun}": 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T")) if prefix for noun in ("B/s", "ops/s", "elements/s", "requests/s")}}
# A number with its unit that is no part of a name, a date or a version.
FIGURE = r"(?<![\w.-])(?:\d+h\d\d|\d+m\d\ds|[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?: (?:%|(?:[kKMGTP]i?)?[A-Za-z]+(?:/s)?))?)(?![\w.-]*\w)"


def said_figure(text):
    """The limits between which the value is that a page shows as this text; None if it is no figure."""
    text = text.replace("\u00a0", " ").replace(",", "")
    if parts := re.fullmatch(r"(\d+)h(\d\d)|(\d+)m(\d\d)s", text):
        whole = 3600 * int(parts[1]) + 60 * int(parts[2]) if parts[1] else 60 * int(parts[3]) + int(parts[4])
        return whole, whole + (60 if parts[1] else 1)
    parts = re.fullmatch(r"([+-]?\d+(?:\.(\d+))?)(?:e([+-]?\d+))?(?: (.+))?", text)
    if not parts:
        return None
    scale = 10.0 ** int(parts[3] or 0) * SCALES.get(parts[4] or "", 1)
    half = 0.5000001 * 10 ** -len(parts[2] or "")
    return (float(parts[1]) - half) * scale, (float(parts[1]) + half) * scale


def check_figures(browser, path, data):
    """Every figure in a table of the page is a number of its documents, and the text that people read is that number."""
    browser.open(path, width=1400)
    unfold(browser)
    shown = browser.evaluate('[...document.querySelectorAll("td.figure[data-value]")].map((cell) => JSON.parse(cell.dataset.value))')
    known = numbers_in(data["documents"])
    assert len(shown) >= 9
    assert [value for value in shown if value is not None and value not in known] == []
    other = browser.evaluate('[...document.querySelectorAll("td.figure:not([data-value]):not([data-order])")].map((cell) => cell.textContent)')
    assert set(other) <= {"-"}, "neither of a document nor derived"
    for value, text in browser.evaluate('[...document.querySelectorAll("td.figure[data-value]")].map((cell) => [JSON.parse(cell.dataset.value), cell.textContent])'):
        limits = said_figure(text.removesuffix("\u00a0MiB/s")) if value and value < 1024 else said_figure(text)  # two metrics are in MiB/s
        assert text == "-" if value is None else limits and limits[0] <= value <= limits[1], (value, text)
    check_texts(browser, data)


def texts_in(document):
    """Every text and every name of a document."""
    if isinstance(document, dict):
        return set(document) | set().union(*map(texts_in, document.values()))
    if isinstance(document, list):
        return set().union(*map(texts_in, document))
    return {document} if isinstance(document, str) else set()


# Words of pages that are no text of a document.
LABELS = {"", "-", "loss", "validation loss", "tokens a second", "busy", "written", "read", "sent", "received", "runs", "idle", "booting", "touches", "in all", "too few runs for an interval", "from here"}


def check_texts(browser, data):
    """Every other cell of a table has texts and figures of the documents alone, and so has every figure that the answer says in words."""
    texts = {re.sub(r"(?<=\d)T(?=\d\d:)|_|Z$", " ", text).strip() for text in texts_in(data["documents"])}
    known = texts | scalars_in(data["documents"]) | LABELS
    numbers = numbers_in(data["documents"]) | set(browser.evaluate('[...document.querySelectorAll("td.figure[data-order]")].map((cell) => JSON.parse(cell.dataset.order))')) - {None}

    def is_known(text):
        limits = said_figure(text)
        return text in known or limits and any(limits[0] <= number <= limits[1] for number in numbers)

    for text in browser.evaluate('[...document.querySelectorAll("td.text")].map((cell) => cell.textContent.replaceAll("_", " ").trim())'):
        parts = re.split(r": about | more runs? a side would tell|: | -> | to | |=|, ", text.replace("\u00a0", "\0"))
        assert text in known or all(is_known(part.replace("\0", " ")) for part in parts), text
    for text in browser.evaluate('[...document.querySelectorAll("header .answer")].map((line) => line.textContent)'):
        said = text.replace("\u00a0", " ").replace("95 % interval", "")
        for version in sorted((text for text in texts if re.search(r"\d", text)), key=len, reverse=True):
            said = re.sub(rf"(?<![\w.,]){re.escape(version)}(?![\w.]|,\d)", "", said)
        for word in re.findall(FIGURE, said):
            assert said_figure(word) is None or is_known(word) or is_known(word.split(" ")[0]), (word, text)


def scalars_in(document):
    """Every number and truth value of a document, as text."""
    if isinstance(document, (dict, list)):
        return set().union(*map(scalars_in, document.values() if isinstance(document, dict) else document))
    return {json.dumps(document)} if isinstance(document, (int, float)) else set()


def unfold(browser):
    """Opens every table, and waits until it is filled."""
    browser.evaluate("""document.querySelectorAll("details").forEach((folded) => (folded.open = true)),
        new Promise((done) => setTimeout(() => requestAnimationFrame(done)))""")


def cells(browser, title):
    """The rows below the chart of that title: exact values where there are figures, texts elsewhere."""
    return browser.evaluate(f"""[...document.querySelectorAll("section")].filter((section) => section.querySelector("h2").textContent === {json.dumps(title)})
        .flatMap((section) => [...section.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) =>
            cell.classList.contains("figure") ? JSON.parse(cell.dataset.value ?? "null") : cell.textContent)))""")


def series(browser, title):
    """What ECharts draws under that title: {name: data}."""
    return browser.evaluate(f"""Object.fromEntries([...document.querySelectorAll("section")].filter((section) => section.querySelector("h2").textContent === {json.dumps(title)})
        .flatMap((section) => section.querySelector(".chart").drawing.getOption().series.map((series) => [series.name, series.data])))""")


# Parts that a screen reader could not name.
NAMELESS = """[...document.querySelectorAll("th, button, summary, [role=img], [role=region]")]
    .filter((part) => !(part.getAttribute("aria-label") ?? part.textContent).trim()).map((part) => part.outerHTML)"""

# Labels of one chart that cover each other, and charts without marks or with marks outside of them.
FAULTS = """[...document.querySelectorAll(".chart")].flatMap((chart) => {
    const svg = chart.querySelector("svg"), title = chart.closest("section").querySelector("h2").textContent, faults = [];
    if (!svg || svg.querySelectorAll("path").length < 3) return [`${title}: blank`];
    const outer = svg.getBoundingClientRect();
    const labels = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim()).map((text) => ({ said: text.textContent, box: text.getBoundingClientRect() }));
    labels.forEach(({ said, box }, at) => {
        if (box.left < outer.left - 2 || box.right > outer.right + 2 || box.top < outer.top - 2 || box.bottom > outer.bottom + 2) faults.push(`${title}: "${said}" is cut`);
        for (const other of labels.slice(at + 1)) {
            const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left), high = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
            if (wide > 3 && high > 5) faults.push(`${title}: "${said}" covers "${other.said}"`);
        }
    });
    return faults;
})"""


# Tables that are wider than the paper; those of many rows and columns may be.
CUT_ON_PAPER = """[...document.querySelectorAll("table")].filter((table) => table.getBoundingClientRect().right > innerWidth + 1 && table.rows[0].cells.length < 12)
    .map((table) => table.closest("section").querySelector("h2").textContent)"""


# Tables that are open on paper and have no rows there; the paper is what the page is when the event has been handled.
PRINTED_EMPTY = """(() => {
    document.querySelectorAll("details").forEach((folded) => { if (folded.dataset.rows > 12) folded.open = false; });
    document.querySelectorAll("section:not(.wide) .scroll").forEach((table) => table.replaceChildren());
    dispatchEvent(new Event("beforeprint"));
    return [...document.querySelectorAll("section:not(.wide) details")].filter((folded) => (folded.dataset.rows <= 100) !== (folded.open && folded.querySelectorAll("tbody tr").length > 0))
        .map((folded) => folded.closest("section").querySelector("h2").textContent);
})()"""


def check_looks(browser, path):
    """At every width, in both schemes and on paper: no error, no request, no overflow, nothing blank, no label on another."""
    for view in ({"width": 390, "height": 800}, {"width": 1400}, {"width": 1400, "scheme": "dark"}, {"width": 3840, "height": 2160}):
        browser.open(path, **view)
        assert browser.said == []
        assert browser.requests == [path.as_uri()]
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert browser.evaluate(FAULTS) == [], view
    unfold(browser)
    assert browser.evaluate(NAMELESS) == []
    browser.view(width=720, media="print")
    assert browser.evaluate(PRINTED_EMPTY) == []
    assert browser.evaluate(CUT_ON_PAPER) == []
    browser.view()


KINDS = ["run", "comparison", "sweep", "training", "suite", *MADE]


def file_of(request, kind):
    path, _ = request.getfixturevalue("made_pages")[kind] if kind in MADE else request.getfixturevalue(f"{kind}_page")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing_at_any_width_in_any_colours(browser, request, kind):
    browser.open(file_of(request, kind))  # long tables stay folded: their rows are alike
    for view in VIEWS:
        browser.view(**view)
        assert browser.violations() == [], view


# What a screen reader says of each chart: its name, its description, and its values as arrow keys walk through them.
WALK = """[...document.querySelectorAll(".chart")].map((chart) => {
    const press = (key) => { chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })); return chart.parentElement.querySelector("[aria-live]").textContent; };
    const walk = (key, from) => { let said = from; for (let steps = 0; said === from && steps < 9; steps++) said = press(key); return said; }; // two points may look alike
    const first = press("ArrowRight"), second = walk("ArrowRight", first), back = walk("ArrowLeft", second);
    return { role: chart.getAttribute("role"), name: chart.getAttribute("aria-label"), title: chart.closest("section").querySelector("h2").textContent,
        description: document.getElementById(chart.getAttribute("aria-describedby")).textContent, first, second, back, next: press("ArrowDown"),
        lines: chart.drawing.getOption().series.filter((series) => !series.silent && series.data.length).length, values: chart.drawing.getOption().series[0].data.length,
        rows: chart.closest("section").querySelectorAll("details").length };
})"""


@pytest.mark.parametrize("kind", KINDS)
def test_charts_speak(browser, request, kind):
    browser.open(file_of(request, kind), width=1400)
    charts = browser.evaluate(WALK)
    assert charts
    for chart in charts:
        assert chart["role"] == "img" and chart["name"] == chart["title"] and chart["rows"] == 1, chart
        assert len(chart["description"]) > 40 and "undefined" not in chart["description"] and "NaN" not in chart["description"], chart
        assert chart["first"] and chart["second"] and chart["next"] and (chart["back"] == chart["first"] or chart["values"] > 2), chart
        assert (chart["second"] != chart["first"]) == (chart["values"] > 1), chart


def check_commands(place, data):
    """Each document of the page is what its command prints."""
    for document in data["documents"].values():
        assert document["command"].startswith("ckptbench ")
        printed = subprocess.run(["sh", "-c", document["command"].replace("ckptbench", str(BUILD / "ckptbench"), 1)], cwd=place, capture_output=True, text=True,
                                 env={"CKPTBENCH_HOME": str(place / "home"), "PATH": "/usr/bin:/bin"}, timeout=100)
        assert json.loads(printed.stdout) == document["data"], printed.stderr


def test_a_page_of_a_run_loads_nothing_and_fits_every_width(browser, run_page):
    check_looks(browser, run_page[0])
    assert "default-src 'none'" in run_page[0].read_text()


def test_the_data_of_a_run_page_are_what_show_prints(place, run, run_page):
    data = run_page[1]
    assert data["kind"] == "run" and data["documents"]["run"]["data"]["run"] == run
    check_commands(place, data)


@pytest.mark.parametrize("kind", ["comparison", "sweep"])
def test_pages_of_several_runs_fit_and_have_the_figures_of_their_commands(browser, place, request, kind):
    path, data = request.getfixturevalue(f"{kind}_page")
    assert data["kind"] == kind
    check_looks(browser, path)
    check_figures(browser, path, data)
    check_commands(place, data)


def test_a_forest_plot_has_the_changes_and_intervals_of_compare(browser, comparison_page):
    path, data = comparison_page
    comparison = data["documents"]["comparison"]["data"]
    other, base = comparison["others"][0], comparison["base"]
    browser.open(path, width=1400)
    rows = cells(browser, "What changed")
    primaries = [(name, metric) for name, metric in other["metrics"].items() if metric["primary"]]
    assert [row[:4] for row in rows[:len(primaries)]] == [[name, metric["change"], *metric["ci"]] for name, metric in primaries]
    drawn = [mark["value"] for mark in series(browser, "What changed")["change"]]
    assert [mark[0] for mark in drawn] == [max(-1, min(row[1], 2)) for row in rows]
    for side, named in (("base", base), ("other", other)):
        runs = other["runs_compared"][side]
        assert len(runs) == named["n"] == 3
        shown = [row for row in cells(browser, f"save_s of each run: {other['name']} against {base['name']}") if row[1] == named["name"]]
        assert shown == [[run["run"], named["name"], run["block"], run["metrics"]["save_s"]] for run in runs]
    lines = [name for name in series(browser, f"save_s of each run: {other['name']} against {base['name']}") if name.startswith("block")]
    assert lines == ["block 1", "block 2", "block 3"]  # runs that ran in turn are joined


def test_two_runs_are_compared_without_a_verdict(browser, place, sweep):
    path, data = page_of(place, f"{sweep}.01", f"{sweep}.02")
    check_looks(browser, path)
    assert "repeat the run to tell" in browser.evaluate('document.querySelector(".about").textContent')
    assert data["documents"]["comparison"]["data"]["others"][0]["method"] == "within-run"


def test_a_curve_of_a_sweep_has_medians_and_intervals(browser, sweep_page):
    path, data = sweep_page
    shown = data["documents"]["sweep"]["data"]
    browser.open(path, width=1400)
    metrics = {combination["values"]["io.depth"]: combination["metrics"]["save_s"] for combination in shown["combinations"]}
    for metric in metrics.values():
        assert metric["n"] == 3 and 0 < metric["ci"][0] < metric["median"] < metric["ci"][1]
    drawn = browser.evaluate("""document.querySelector(".chart").drawing.getOption().series.map((series) => series.data.map((mark) => mark.value || mark))""")
    assert drawn == [[[at, metrics[depth]["median"]] for at, depth in enumerate(("1", "4"))], [[at, *metrics[depth]["ci"]] for at, depth in enumerate(("1", "4"))]]
    assert {row[0]: row[2:5] for row in cells(browser, "save_s over io.depth")} == {depth: [metric["median"], *metric["ci"]] for depth, metric in metrics.items()}
    assert set(data["documents"]) == {"sweep", "by io.depth", "best"}


@pytest.mark.parametrize("kind", [*MADE])
def test_pages_of_made_runs_fit_and_have_the_figures_of_their_commands(browser, made, made_pages, kind):
    path, data = made_pages[kind]
    check_looks(browser, path)
    check_figures(browser, path, data)
    check_commands(made, data)


def answers(browser, path):
    browser.open(path, width=1400)
    unfold(browser)
    return browser.evaluate('[...document.querySelectorAll("header .answer")].map((line) => line.textContent.replaceAll("\u00a0", " "))')


def test_a_watched_training_has_its_warnings_and_what_could_be_changed(browser, made_pages):
    path, data = made_pages["watch"]
    shown = data["documents"]["run"]["data"]
    said = answers(browser, path)
    assert f"Warning: {shown['watched']['warnings'][0]}" in said and HOSTILE in said[2] and "Not seen: os.rename." in said
    assert browser.evaluate('document.querySelector(".about").textContent') == "torchrun watched, 2 ranks of torch 2.13: 3 saves of torch.distributed.checkpoint, saved in /scratch/ckpt"
    assert shown["advice"] and cells(browser, "What could be changed") == [[advice["seconds"], advice["text"], advice["command"]] for advice in shown["advice"]]


def test_runs_that_match_filters_are_on_one_page_with_what_changed(browser, made_pages):
    path, data = made_pages["overview"]
    history = data["documents"]["save_s"]["data"]
    change, = history["change_points"]
    assert change["run"] == "night-08" and data["documents"]["save_s"]["command"] == "ckptbench history save_s label.kind=nightly,other workload=checkpoint --json".replace(
        "label.kind=nightly,other", "'label.kind=nightly,other'")
    said = answers(browser, path)
    assert sum("save_s is worse" in line and "since night-08" in line and "model=" in line for line in said) == 1
    drawn = browser.evaluate("""[...document.querySelectorAll("section")].find((section) => section.querySelector("h2").textContent === "save_s over time")
        .querySelector(".chart").drawing.getOption().series.map((series) => [series.type, series.data.map((mark) => mark.value || mark)])""")
    assert sorted(value for kind, marks in drawn if kind == "scatter" for _, value in marks) == sorted(point["median"] for point in history["points"])
    levels = [(level["median"], *level["ci"]) for level in history["levels"]]
    assert len(levels) == 3 and all(low <= median <= high for median, low, high in levels)  # one of the line without a change
    assert sorted(tuple(mark[2:]) for kind, marks in drawn if kind == "custom" for mark in marks) == sorted(levels)
    assert {row[0] for row in cells(browser, "Runs")} == {f"{line}-{night:02}" for line in ("night", "other") for night in range(16)}


def test_a_comparison_of_the_latest_run_names_where_its_level_began(browser, made_pages):
    path, data = made_pages["latest"]
    points = data["documents"]["comparison"]["data"]["others"][0]["change_points"]
    assert points["save_s"]["run"] == "night-08" and "6.12" in points["save_s"]["differs"]["kernel.release"]["after"]
    assert any("save_s is worse" in line and "since night-08" in line and "kernel.release: 6.1 -> 6.12" in line for line in answers(browser, path))
    assert [row[:3] for row in cells(browser, "Where the levels of LATEST began")] == [[name, point["started"].replace("T", " ").replace("Z", ""), "night-08"] for name, point in points.items()]


def test_a_sweep_over_ranks_has_the_fitted_model(browser, made_pages):
    path, data = made_pages["scaling"]
    scaling = data["documents"]["by ranks"]["data"]["scaling"]["save"]
    browser.open(path, width=1400)
    drawn = series(browser, "save over ranks: the model")
    assert drawn["measured"] == [[size["n"], size["seconds"]] for size in scaling["sizes"]] and len(drawn["measured"]) == 5
    assert scaling["model"] and drawn["model"][-1][0] == 16
    for size in scaling["sizes"]:  # made so that the logarithm explains the time
        near = min(drawn["model"], key=lambda point: abs(point[0] - size["n"]))
        assert abs(near[1] / size["seconds"] - 1) < 3 * max(scaling["model"]["deviation"], 0.01)
    assert "The model, with 95 % intervals: fixed" in browser.evaluate('document.body.textContent')


def test_a_pool_shows_where_its_node_hours_went(browser, made_pages):
    path, data = made_pages["pool"]
    pool, = data["documents"]["pool"]["data"]
    assert (pool["node_hours"], pool["budget_node_hours"], pool["boot_s"], pool["runs"]) == (4, 8, 900, 3)
    runs = data["documents"]["runs"]["data"]
    assert [run["run"] for run in runs] == ["night-01", "night-02"]  # of the third nothing is known
    ran = sum(run["nodes"] * run["run_s"] for run in runs) / 3600
    browser.open(path, width=1400)
    parts = {name: values[0] for name, values in series(browser, "Where the node-hours went").items()}
    assert parts == pytest.approx({"runs": ran, "booting": 1, "idle": 3 - ran})
    assert "It has cost 4.00 of 8.00 node-hours" in answers(browser, path)[0]


def test_the_best_of_a_sweep_is_judged_as_compare_does(browser, sweep_page):
    path, data = sweep_page
    best = data["documents"]["best"]["data"]
    name = data["documents"]["sweep"]["data"]["best_first_by"]
    verdict = best["others"][0]["metrics"][name]["verdict"]
    said = answers(browser, path)[1]
    assert {"worse": " is better than io.depth=", "same": "As good as it: io.depth=", "inconclusive": "Whether it is better than io.depth=", "better": "Whether it is better"}[verdict] in said


def test_tables_are_sorted_by_their_headings(browser, made_pages):
    browser.open(made_pages["overview"][0], width=1400)
    unfold(browser)
    column = lambda: [row[3] for row in cells(browser, "save_s over time")]
    click = """[...document.querySelectorAll("section")].find((section) => section.querySelector("h2").textContent === "save_s over time").querySelectorAll(".sort")[3].click()"""
    before = column()
    for expected in (sorted(before), sorted(before, reverse=True)):
        browser.evaluate(click)
        assert column() == expected != before
    assert browser.evaluate("document.querySelectorAll('[aria-sort]').length") == 1


def test_a_training_has_its_steps_with_the_saves_between_them(browser, training_page):
    path, data = training_page
    shown = data["documents"]["run"]["data"]
    numbers, values = shown["iteration_numbers"], shown["iterations"]
    assert numbers["save"] == [4, 8, 12] and numbers["step"] == list(range(1, 12)) and numbers["step.validation_loss"] == [3, 7, 11]
    check_looks(browser, path)
    check_figures(browser, path, data)
    drawn = series(browser, "Loss")
    assert drawn["loss"] == [list(point) for point in zip(numbers["step"], values["step.loss"])]
    assert drawn["validation loss"] == [list(point) for point in zip(numbers["step.validation_loss"], values["step.validation_loss"])]
    assert series(browser, "Tokens a second")["tokens a second"] == [list(point) for point in zip(numbers["step"], values["step.tokens_per_s"])]
    assert series(browser, "Steps and saves")["save"] == [[number - 0.5, value] for number, value in zip(numbers["save"], values["save.op_s"])]
    assert [row for row in cells(browser, "Steps and saves") if row[0] == "save"] == [["save", number, value] for number, value in zip(numbers["save"], values["save.op_s"])]
    answer = browser.evaluate('document.querySelector("header").textContent')
    assert "tokens/s" in answer and "Goodput:" in answer


def test_a_suite_has_its_pairs_nodes_and_curves(browser, place, suite_page):
    path, data = suite_page
    shown = data["documents"]["run"]["data"]
    check_looks(browser, path)
    check_figures(browser, path, data)
    check_commands(place / "suite", data)
    names, latency = shown["nodes"]["names"], shown["nodes"]["pairs"]["latency_s"]
    assert names == ["node0", "node1", "node2"]
    assert series(browser, "Latency between nodes")["Latency between nodes"] == [[to, at, latency[at][to]] for at in range(3) for to in range(3) if at != to]
    assert cells(browser, "Latency between nodes") == [[names[at], *latency[at]] for at in range(3)]
    assert {name: [[point["bytes"], point["bus_bytes_per_s"]] for point in points] for name, points in shown["collectives"].items()} == series(browser, "Collectives over message sizes")
    for row in cells(browser, "Nodes against their median"):
        assert row[4:] == shown["nodes"]["metrics"][row[0]]["values"]


def over_time(ranks):
    """What `show --time` has of a run: each rank writes 8 MiB in two buckets, and rank 1 stalls in between."""
    lines = [{"rank": rank, "first_bucket": 10, "bytes": [4 << 20, 0, 0, 4 << 20], "requests": [1, 0, 0, 1],
              "in_flight_ns": [50_000_000, *([50_000_000] * 2 if rank == 1 else [0, 0]), 50_000_000]} for rank in range(ranks)]
    entry = {"operation": "save", "request": "write", "bucket_s": 0.05, "bytes": ranks * (8 << 20), "requests": 2 * ranks, "in_flight_ns": 1, "ranks": lines}
    host = {"node": "n1", "bucket_s": 0.1, "first_bucket": 0, "cpu_fraction": [0.5, 1, None], "disk_read_bytes": None, "disk_written_bytes": [0, 1 << 20, 0],
            "received_bytes": [0, 0, 0], "sent_bytes": [0, 0, 0], "memory_used_bytes": [1, 1, 1], "memory_stall_s": [0, 0, 0]}
    return {"start": "2026-11-28T13:40:02Z", "duration_s": 1.5, "operations": [entry], "host": [host]}


@pytest.mark.parametrize("ranks", [4, 512])
def test_a_run_over_time_shows_throughput_and_the_rank_that_stalls(place, browser, run_page, ranks):
    text, data = run_page[0].read_text(), run_page[1]
    run = data["documents"]["run"]["data"]
    timed = {**data, "documents": {"run": {**data["documents"]["run"], "data": {**run, "time": over_time(ranks), "ranks": {"save": run["ranks"]["save"][:1] * ranks}}}}}
    path = place / f"over-time-{ranks}.html"
    head, rest = text.split('id="data">', 1)
    escaped = json.dumps(timed).replace("<", r"\u003c")
    path.write_text(head + 'id="data">' + escaped + "</script>" + rest.split("</script>", 1)[1])
    check_looks(browser, path)
    throughput = series(browser, "Throughput over time")["save: write"]
    whole, width = ranks * (4 << 20), 0.05
    assert [value for _, value in throughput] == [0, whole / width, 0, 0, whole / width, 0]
    assert [round(at, 6) for at, _ in throughput] == [0.5, 0.525, 0.575, 0.625, 0.675, 0.7]
    drawn = series(browser, "Each rank over time: save: write")
    joined = max(1, ranks // 64)  # ranks of one line
    assert [mark[:3] for mark in drawn["save: write"]] == [[column, row, joined * (4 << 20) / width] for row in range(ranks // joined) for column in (0, 3)]
    assert [mark[:2] for mark in drawn["none completed"]] == [[1, 1 // joined], [2, 1 // joined]]
    assert cells(browser, "CPU of the hosts")[0][2] == 0.5 and cells(browser, "Disk of the hosts")[1][2] == 1 << 20


def test_throughput_over_time_adds_up_to_the_bytes_of_the_run(browser, place, run, run_page):
    path, data = run_page
    entries = {f"{entry['operation']}: {entry['request']}": entry for entry in data["documents"]["run"]["data"]["time"]["operations"]}
    browser.open(path, width=1400)
    for name in ("save: write", "load: read"):
        points, entry = series(browser, "Throughput over time")[name], entries[name]
        assert round(sum(value for _, value in points) * entry["bucket_s"]) == entry["bytes"] == sum(sum(rank["bytes"]) for rank in entry["ranks"])
        assert [rank["rank"] for rank in entry["ranks"]] == [0, 1, 2, 3]
    two = json.loads(ckptbench(place, "show", run, "--time", "--lines", "2", "--json").stdout)["time"]["operations"]
    for entry, joined in zip(entries.values(), two, strict=True):
        assert [(line["rank"], line["ranks"]) for line in joined["ranks"]] == [(0, 2), (2, 2)]
        for key in ("bytes", "requests", "in_flight_ns"):
            assert [sum(line[key]) for line in joined["ranks"]] == [sum(sum(rank[key]) for rank in entry["ranks"][at:at + 2]) for at in (0, 2)]
            assert joined[key] == entry[key]


def test_charts_and_tables_of_a_run_have_the_figures_of_show(browser, run_page):
    path, data = run_page
    shown = data["documents"]["run"]["data"]
    browser.open(path, width=1400)
    unfold(browser)
    for operation, io in (("save", "write"), ("load", "read")):
        title = f"Where the time of each rank went: {operation}"
        ranks = shown["ranks"][operation]
        assert [row[:3] for row in cells(browser, title)] == [[rank["rank"], rank["op_s"], rank["own_s"]] for rank in ranks]
        assert series(browser, title)[io] == [rank["io_s"] for rank in ranks]
    numbers = shown["iteration_numbers"]
    assert cells(browser, "Iterations") == [[operation, number, value] for operation in ("save", "load")
                                            for number, value in zip(numbers[operation], shown["iterations"][f"{operation}.op_s"])]
    assert cells(browser, "Throughput against the device limit") == [
        ["save", shown["metrics"]["save_bytes_per_s"]["median"], shown["limits"]["baseline_write_bytes_per_s"], shown["limits"]["save_limit_fraction"]],
        ["load", shown["metrics"]["load_bytes_per_s"]["median"], shown["limits"]["baseline_read_bytes_per_s"], shown["limits"]["load_limit_fraction"]]]
    percentiles = ("p50_s", "p90_s", "p99_s", "p999_s", "max_s")
    for row, of in zip(cells(browser, "Latency of requests"), shown["latency"].values()):
        assert row[1:] == [of["requests"], of["mean_s"], *(of[key] for key in percentiles)]
    assert series(browser, "Latency of requests")["save"] == [shown["latency"]["save"][key] for key in percentiles]
    assert [row[0:2] for row in cells(browser, "All metrics")] == [[name, metric["n"]] for name, metric in shown["metrics"].items()]
    assert [row[2:] for row in cells(browser, "All metrics")] == [[metric[key] for key in ("median", "p95", "min", "max", "mean")] for metric in shown["metrics"].values()]


def test_the_answer_comes_first_and_in_words(browser, run_page):
    browser.open(run_page[0])
    answer = browser.evaluate('[...document.querySelectorAll("header .answer")].map((line) => line.textContent.replaceAll("\u00a0", " "))')
    assert re.match(r"A save takes [\d.]+ m?s \([\d.]+ m?s to [\d.]+ m?s in 3 iterations\): [\d.]+ [KMG]iB/s, [\d.]+ % of what the device can do\. Its time goes into", answer[0])
    assert answer[2] == "Every byte was checked and right in 3 of 3 iterations."
    assert [line for line in answer if line.startswith("Doubt: ")] == [f"Doubt: {text}." for text in run_page[1]["documents"]["run"]["data"]["doubts"]]


def test_an_asynchronous_save_says_how_long_training_waits(browser, place):
    made = ckptbench(place, "run", *SMALL, "ranks=2", "iterations=2", "save.async=true", "ops=save", "baseline=false", "--json")
    path, data = page_of(place, json.loads(made.stdout)["run"])
    assert {"stall_s", "save.persist_s"} <= set(data["documents"]["run"]["data"]["metrics"])
    assert re.search(r"Training waits for [\d.]+ [mu]?s of it; the rest goes on behind it, [\d.]+ m?s long\.", answers(browser, path)[0])


def test_names_that_are_markup_stay_text(browser, run_page):
    path, data = run_page
    assert data["documents"]["run"]["data"]["labels"]["story"] == HOSTILE
    assert path.read_text().count("alert(1)") > 0 and "<script>alert" not in path.read_text() and "<img" not in path.read_text()
    browser.open(path)
    unfold(browser)
    assert ["label.story", HOSTILE] in cells(browser, "Experiment")
    assert browser.evaluate('document.querySelectorAll("img").length') == 0 and browser.said == []


def test_a_script_that_is_not_the_pages_own_does_not_run(place, browser, run_page):
    """The policy is what stops it: a page with one more inline script."""
    path = place / "attacked.html"
    path.write_text(run_page[0].read_text().replace("</body>", "<script>document.title = 'attacked'</script><img src='https://example.invalid/x'></body>"))
    browser.open(path)
    assert browser.evaluate("document.title") != "attacked"
    assert sum("Content Security Policy" in line for line in browser.said) == 2, browser.said


def test_keys_reach_charts_tables_and_buttons(browser, run_page):
    browser.open(run_page[0], width=1400)
    reached = set()
    for _ in range(12):
        browser.press("Tab")
        reached.add(browser.evaluate("document.activeElement.className || document.activeElement.localName"))
    assert {"button", "chart", "scroll", "summary"} <= reached
    browser.evaluate('document.querySelector(".chart").focus()')
    browser.press("ArrowRight")
    assert browser.evaluate('document.querySelector(".chart .tip")?.textContent || ""').startswith("at ")


def test_a_button_copies_the_command(browser, run, run_page):
    browser.open(run_page[0])
    copied = browser.evaluate("""(() => { let copied; navigator.clipboard.writeText = async (text) => { copied = text; };
        document.querySelector("header button").click(); return copied; })()""")
    assert copied == f"ckptbench report {run} -o report.html"


def pixels_vary(png):
    """Whether a picture is more than one plain colour."""
    data, at, packed = png, 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        packed += data[at + 8:at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return len(set(zlib.decompress(packed))) > 50


def test_a_page_prints(browser, run_page):
    browser.open(run_page[0], width=1400, scheme="dark")
    assert pixels_vary(browser.screenshot())
    document = browser.pdf()
    assert document.startswith(b"%PDF") and len(document) > 40_000
    assert len(re.findall(rb"/Type\s*/Page\b", document)) >= 2


def test_a_page_of_512_ranks_is_small(place, browser):
    folder = place / "home/runs/20261121-w512"
    subprocess.run([BUILD / "tests/make_run", folder, "made_ranks=512", "made_iterations=5", "ranks=512"], check=True, timeout=120)
    path, data = page_of(place, "20261121-w512")
    assert len(data["documents"]["run"]["data"]["ranks"]["save"]) == 512
    assert path.stat().st_size < 1_500_000
    check_looks(browser, path)


def test_a_page_goes_to_stdout_and_its_data_with_json(place, run, run_page):
    assert ckptbench(place, "report", run).stdout.startswith("<!doctype html>")
    assert json.loads(ckptbench(place, "report", run, "--json").stdout)["documents"] == run_page[1]["documents"]


def test_a_terminal_shows_no_page_but_how_to_write_one(place, run):
    controller, terminal = pty.openpty()
    result = subprocess.run([BUILD / "ckptbench", "report", run], cwd=place, env=environment(place), stdin=subprocess.DEVNULL,
                            stdout=terminal, stderr=subprocess.PIPE, text=True, timeout=150)
    os.close(terminal)
    os.close(controller)
    assert result.returncode == 2 and "-o report.html" in result.stderr


def test_what_no_page_can_be_made_of_is_an_error(place, run):
    assert "no run, sweep or baseline nosuch" in ckptbench(place, "report", "nosuch", code=2).stderr
    missing = ckptbench(place, "report", run, "-o", place / "no/such/folder.html", code=2)
    assert "no/such" in missing.stderr


def test_the_charts_library_is_what_its_hash_says():
    folder = ROOT / "share/report/echarts"
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True, timeout=120)
    lock = json.loads((folder / "package-lock.json").read_text())
    assert lock["packages"]["node_modules/echarts"]["version"] == json.loads((folder / "package.json").read_text())["dependencies"]["echarts"]
    assert {"LICENSE", "NOTICE", "LICENSE-zrender", "LICENSE-d3", "LICENSE-tslib"} <= {path.name for path in folder.iterdir()}
