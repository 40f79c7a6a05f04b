"""Refuse words and file names that a search for the usual term would not find. Part of `make check`.

It reads the texts of the package, the documentation and the benchmarks. Environments and tests are not checked: their
questions and answers are natural language.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXTS = ("src", "docs", "benchmarks", "configs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SUFFIXES = (".py", ".md", ".toml", ".jinja", ".html", ".css", ".js")
WORDS = re.compile(r"\b(whoever|whomever|whom|somebody|nobody|told|asked)\b", re.IGNORECASE)
ADVICE = "name the component and what it does: the caller, the request, the client; 'is passed', 'returns', 'reports'"
MODULES = {
    "arrivals": "weight_loader",
    "asked": "parent_model",
    "backlog": "rollout_buffer",
    "dispatcher": "sources",
    "handover": "weight_directory",
    "judge": "group",
    "learned": "step_accumulator",
    "mending": "records",
    "placing": "assignment",
    "set_aside": "records",
    "stream": "sources",
    "words": "summary_text",
}
"""Former names of modules, and their present names."""

MENTION = re.compile(rf"(?<![\w-])({'|'.join(MODULES)})\.py\b")


def main() -> int:
    found = [line for path in _files() for line in _refused(path)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


def _files() -> Iterator[Path]:
    for name in TEXTS:
        top = ROOT / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def _refused(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT)
    if path.suffix == ".py" and path.stem in MODULES:
        yield f"{name}: '{path.name}' says little; a usual name is '{MODULES[path.stem]}.py'"
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for word in WORDS.findall(line):
            yield f"{name}:{number}: '{word}': {ADVICE}"
        for stem in MENTION.findall(line):
            yield f"{name}:{number}: '{stem}.py' is now '{MODULES[stem]}.py'"


if __name__ == "__main__":
    sys.exit(main())
