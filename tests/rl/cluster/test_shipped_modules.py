"""Modules that lie with an imported loss travel to processes that do not have them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from whet.rl.cluster.shipped_modules import local_sources

RECEIVER = """
import pickle, sys
from whet.rl.cluster.shipped_modules import import_from
import_from(pickle.load(sys.stdin.buffer))
import own_losses.clipped as clipped
print(clipped.mine(2), clipped.mine.__code__.co_filename)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "own_losses"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "clipped.py").write_text("import own_helper\n\ndef mine(x):\n    return own_helper.double(x)\n")
    (tmp_path / "own_helper.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "own_unused.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_a_loss_and_what_it_imports_are_found_in_another_process(folder: Path) -> None:
    __import__("own_losses.clipped")
    sources = local_sources("own_losses.clipped:mine")
    assert sorted(sources) == ["own_helper", "own_losses", "own_losses.clipped"]
    done = subprocess.run(
        [sys.executable, "-c", RECEIVER], input=pickle.dumps(sources), capture_output=True, cwd="/", check=False
    )
    assert done.stdout == b"4 own_losses.clipped, of the run\n", done.stderr


@pytest.mark.parametrize("name", ["grpo", "json:dumps", "pytest:fixture", "whet.rl.algorithms:find", "missing:x"])
def test_what_is_installed_does_not_travel(name: str) -> None:
    assert local_sources(name) == {}
