"""Writes the table of docs/metrics.md from run/metrics.def; with --check, fails where it is not current."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/metrics.md"
BEGIN, END = "<!-- from run/metrics.def -->", "<!-- end -->"
ROW = re.compile(r'METRIC\(\w+,\s*"([^"]+)",\s*"([^"]+)",\s*(\w+),\s*OF_(\w+),\s*\w+,\s*(\w+),\s*\w+,\s*\w+,\s*\w+,\s*"((?:[^"\\]|\\.)*)"\s*\)', re.S)
DIRECTIONS = {"LOWER_IS_BETTER": "lower", "HIGHER_IS_BETTER": "higher", "NEUTRAL": "-"}


def table():
    rows = ROW.findall((ROOT / "run/metrics.def").read_text())
    lines = ["| metric | unit | better | of | primary | meaning |", "|---|---|---|---|---|---|"]
    for name, unit, direction, scope, primary, meaning in rows:
        lines.append(f"| `{name}` | {unit} | {DIRECTIONS[direction]} | {scope.lower()} | {'yes' if primary == 'true' else ''} | {meaning} |")
    return "\n".join(lines)


def main():
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    wanted = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if "--check" in sys.argv:
        if wanted != text:
            sys.exit("docs/metrics.md is not what run/metrics.def says: run scripts/metrics_doc.py")
    else:
        DOCUMENT.write_text(wanted)


if __name__ == "__main__":
    main()
