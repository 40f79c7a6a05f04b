"""A public class name has one meaning in the package."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src/whet"
PUBLIC_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)


def test_public_class_names_are_unique_in_the_package() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if "templates" in path.parts:  # environments that `whet env init` writes
            continue
        for name in PUBLIC_CLASS.findall(path.read_text(encoding="utf-8")):
            homes[name].append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
