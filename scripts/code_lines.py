"""Refuse more code than `[tool.whet]` of pyproject.toml allows: code lines and files of `src/whet`. In `make check`.

A code line holds a token that is neither a comment nor a docstring. A feature that needs more pays by removing; a
commit that raises a number says why. `--rooms` prints the table by room.
"""

from __future__ import annotations

import io
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/whet"
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def main() -> int:
    files = {path: code_lines(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    if "--rooms" in sys.argv[1:]:
        print_rooms(files)
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["whet"]
    refused = False
    for name, count in {"code_lines": sum(files.values()), "files": len(files)}.items():
        if count > limits[name]:
            what = name.replace("_", " ")
            print(
                f"src/whet has {count} {what}, {limits[name]} are allowed: remove {count - limits[name]}, or raise "
                f"tool.whet.{name} in pyproject.toml in a commit that says why"
            )
            refused = True
    return int(refused)


def code_lines(source: str) -> int:
    """Lines of `source` that hold code."""
    lines: set[int] = set()
    statement_begins = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT:
            statement_begins = statement_begins or token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
            continue
        docstring = statement_begins and token.type == tokenize.STRING and token.line.lstrip()[:1] in "\"'r"
        statement_begins = False
        if not docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def print_rooms(files: dict[Path, int]) -> None:
    """Code lines and files of each folder directly in the package, largest first."""
    lines: Counter[str] = Counter()
    number: Counter[str] = Counter()
    for path, count in files.items():
        parts = path.relative_to(PACKAGE).parts
        room = parts[0] if len(parts) > 1 else "(top)"
        lines[room] += count
        number[room] += 1
    for room, count in lines.most_common():
        print(f"{count:7,} {number[room]:4} {room}")
    print(f"{sum(lines.values()):7,} {len(files):4} together")


if __name__ == "__main__":
    sys.exit(main())
