"""Writes train/unicode_ranges.def: which characters are letters (L*), and which are numbers (N*).

usage: scripts/unicode_ranges.py [--check]
"""
import sys
import textwrap
import unicodedata
from pathlib import Path

TABLE = Path(__file__).resolve().parent.parent / "train/unicode_ranges.def"


def ranges(group):
    start = None
    for code in range(0x110000):
        inside = unicodedata.category(chr(code))[0] == group
        if inside and start is None:
            start = code
        elif not inside and start is not None:
            yield start, code - 1
            start = None


def main():
    text = f"/* Of Unicode {unicodedata.unidata_version}, by scripts/unicode_ranges.py. */\n"
    for name, group in (("letters", "L"), ("numbers", "N")):
        items = ", ".join(f"{{0x{first:X},~0x{last:X}}}" for first, last in ranges(group))
        lines = textwrap.fill(items, 120, initial_indent="    ", subsequent_indent="    ").replace("~", " ")
        text += f"static const struct range {name}[] = {{\n{lines}}};\n"
    if "--check" in sys.argv:
        sys.exit(TABLE.read_text() != text)
    TABLE.write_text(text)


if __name__ == "__main__":
    main()
