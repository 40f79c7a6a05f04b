"""The reference names everything public, from docstrings that are there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
import yaml

import whet

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    named = [name for page in PAGES for name in re.findall(r"^::: whet\.(\w+)$", page.read_text(), re.MULTILINE)]
    assert sorted(named) == sorted(whet.__all__)


def test_the_index_of_the_reference_lists_what_its_pages_have() -> None:
    index = (ROOT / "docs" / "reference" / "index.md").read_text()
    for page in PAGES:
        names = re.findall(r"^::: whet\.(\w+)$", page.read_text(), re.MULTILINE)
        if names:
            assert f"({page.name}) | {', '.join(f'`{name}`' for name in names)} |" in index


@pytest.mark.parametrize("name", [name for name in whet.__all__ if name != "__version__"])
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    value = getattr(whet, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
        return
    module = importlib.import_module(whet._MODULE_OF[name])
    body = ast.parse(inspect.getsource(module)).body
    place = next(
        i for i, node in enumerate(body) if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name
    )
    following = body[place + 1]
    assert isinstance(following, ast.Expr)
    assert isinstance(following.value, ast.Constant)


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    def pages(node: object) -> list[str]:
        if isinstance(node, str):
            return [node]
        items = node.values() if isinstance(node, dict) else node
        return [page for item in items for page in pages(item)]

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = pages(nav)
    assert len(pages(nav[0]["Using whet"])) <= 15
    there = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(there)
