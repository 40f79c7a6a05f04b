"""Every numbered behaviour is carried by a test of its number, or names a test elsewhere that exists.

Numbered are the docstrings of this folder and of tests/faults/test_kills.py, and the invariants of training in
docs/design/training-loop.md. A number without a test fails here, and so does a test that is renamed or removed.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [*sorted(Path(__file__).parent.rglob("test_*.py")), ROOT / "tests" / "faults" / "test_kills.py"]
FILES.remove(Path(__file__))
INVARIANTS = ROOT / "docs" / "design" / "training-loop.md"


@cache
def functions_in(path: Path) -> list[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)]
    return [name for name in names if name.startswith("test_")]


def numbers_of(test: str) -> list[int]:
    """`test_3_4_resume` carries 3 and 4; a word may come first, as in `test_repair_7_tools`."""
    found = re.match(r"test_(?:[a-z]+_)?((?:\d+_)+)", test)
    return [int(number) for number in found[1].rstrip("_").split("_")] if found else []


def numbered(text: str) -> dict[int, str]:
    """The items of a numbered list by their numbers, which have to follow each other."""
    parts = re.split(r"^ ?(\d+)\. ", text, flags=re.MULTILINE)
    numbers = [int(number) for number in parts[1::2]]
    assert numbers, "no numbered list"
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return dict(zip(numbers, (item.split("\n\n")[0] for item in parts[2::2]), strict=True))


def named_tests(item: str) -> list[str]:
    """The tests in other files that an item names. Fails where one does not exist."""
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", item)
    for path, test in named:
        assert (ROOT / path).is_file(), f"there is no {path}"
        assert test in functions_in(ROOT / path), f"{path} has no {test}"
    return [test for _, test in named]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_number_has_its_test(path):
    items = numbered(ast.get_docstring(ast.parse(path.read_text())) or "")
    tests = functions_in(path)
    assert [test for test in tests if not numbers_of(test)] == [], "tests without a number"
    carried = {number for test in tests for number in numbers_of(test)}
    carried |= {number for number, item in items.items() if named_tests(item)}
    assert sorted(carried) == list(items)


def test_every_invariant_of_training_names_its_tests():
    _, section = INVARIANTS.read_text().split("\n## Invariants\n")
    items = numbered(section.split("\n## ")[0])
    assert [number for number, item in items.items() if not named_tests(item)] == []
