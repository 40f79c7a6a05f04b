"""Refuse words and file names that a search for the usual term would not find. Part of `make check`.

It reads the texts of the package, the documentation and the benchmarks. Environments and tests are not checked: their
questions and answers are natural language.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXTS = ("src", "docs", "benchmarks", "configs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SUFFIXES = (".py", ".md", ".toml", ".jinja", ".html", ".css", ".js")
WORDS = re.compile(r"\b(whoever|whomever|whom|somebody|nobody|told|asked)\b", re.IGNORECASE)
ADVICE = "name the component and what it does: the caller, the request, the client; 'is passed', 'returns', 'reports'"
PHRASES = re.compile(r"\b(under way|as they lie|goes on with|kept aside|looks away)\b", re.IGNORECASE)
INSTEAD = "'in progress', 'in place', 'continues' or 'resumes', 'archived', 'no-op'"
VARIABLES = {"found", "place", "asked", "told"}
"""Names that say nothing of what a variable holds. Fields of records that are saved or answered are not looked at."""

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
    lines = [line for path in _files() for line in _refused(path)]
    print("\n".join(lines), end="\n" if lines else "")
    return 1 if lines else 0


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
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py" and path.is_relative_to(ROOT / "src" / "whet") and "templates" not in path.parts:
        for number, variable in _variables(ast.parse(text)):
            yield f"{name}:{number}: '{variable}' says nothing; name what it holds: rows, match, index, path"
    for number, line in enumerate(text.splitlines(), 1):
        for word in WORDS.findall(line):
            yield f"{name}:{number}: '{word}': {ADVICE}"
        for phrase in PHRASES.findall(line):
            yield f"{name}:{number}: '{phrase}': write {INSTEAD}"
        for stem in MENTION.findall(line):
            yield f"{name}:{number}: '{stem}.py' is now '{MODULES[stem]}.py'"


def _variables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Variables, parameters and functions with a name that is refused, by line."""
    fields = {
        id(one.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for one in node.body
        if isinstance(one, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) if id(node) not in fields:
                pass
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case _:
                continue
        if name in VARIABLES:
            yield node.lineno, name


if __name__ == "__main__":
    sys.exit(main())
