"""The page on the doctor has every threshold as the code has it, with its reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from whet.rl.doctor.rules import EXPLAINED_BY

ROOT = Path(__file__).parents[2]
DOCTOR = ROOT / "src" / "whet" / "rl" / "doctor"
PAGE = (ROOT / "docs" / "design" / "doctor.md").read_text()
RULES = sorted(path for path in (DOCTOR / "rules").glob("*.py") if path.stem != "__init__")
FILES = [DOCTOR / "record.py", *RULES]


def thresholds(path: Path) -> list[str]:
    """A row for each group of numbers that stand together, with the docstring behind them."""
    rows, numbers = [], []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            names, values = ast.unparse(node.targets[0]).strip("()"), node.value
            constants = values.elts if isinstance(values, ast.Tuple) else [values]
            if all(isinstance(one, ast.Constant) and isinstance(one.value, int | float) for one in constants):
                numbers.append(f"`{names} = {ast.unparse(values).strip('()')}`")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and numbers:
            rows.append(f"| {path.stem} | {', '.join(numbers)} | {' '.join(str(node.value.value).split())} |")
            numbers = []
    assert not numbers, f"{path.name}: {numbers} have no reason"
    return rows


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_threshold_is_on_the_page_with_its_reason(path: Path) -> None:
    for row in thresholds(path):
        assert row in PAGE.splitlines()


def test_the_page_has_no_row_that_the_code_has_not() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "` | " in line and " = " in line]
    assert set(rows) == {row for path in FILES for row in thresholds(path)}


def test_what_explains_what_is_on_the_page() -> None:
    for finding, causes in EXPLAINED_BY.items():
        assert f"| `{finding}` | {', '.join(f'`{cause}`' for cause in causes)} |" in PAGE
