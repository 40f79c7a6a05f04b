"""Every guide is followed as it is typed, in an empty folder: files are written, commands run, output is compared."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.cli.main import main
from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap.host import host

_spec = importlib.util.spec_from_file_location("guide", Path(__file__).parent / "guide.py")
assert _spec is not None
assert _spec.loader is not None
guide = importlib.util.module_from_spec(_spec)
sys.modules["guide"] = guide  # where its dataclasses look for their own module
_spec.loader.exec_module(guide)
Step, commands_of, first_difference = guide.Step, guide.commands_of, guide.first_difference
needs_of, rehearsed, steps_of = guide.needs_of, guide.rehearsed, guide.steps_of

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("docs/guides/*.md")), ROOT / "docs" / "authoring.md"]
SECONDS = 600


def is_there(what: str) -> bool:
    if what == "bubblewrap":
        try:
            host()
        except SandboxUnavailableError:
            return False
        return True
    return importlib.util.find_spec(what) is not None


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The empty folder of somebody who follows a guide; what is imported from it is forgotten afterwards."""
    folder, home = tmp_path / "guide", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a second of imports that no package's tests need
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    modules, path = set(sys.modules), list(sys.path)
    yield folder
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def run(step: Any, capfd: pytest.CaptureFixture[str]) -> str:
    """What a block of commands prints. `whet` runs in this process, where torch is imported once."""
    capfd.readouterr()
    for line in commands_of(step.text):
        if line.startswith("whet "):
            code = main(rehearsed(shlex.split(line, comments=True)[1:]))
        else:
            command = ["bash", "-euo", "pipefail", "-c", line]
            code = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False).returncode
        assert code == 0, f"line {step.line}: {line}\n{''.join(capfd.readouterr())}"
    return capfd.readouterr().out


@pytest.mark.parts
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_a_guide_works_as_it_is_typed(page: Path, reader: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = page.read_text(encoding="utf-8")
    absent = [what for what in needs_of(text) if not is_there(what)]
    if absent:
        pytest.skip(f"needs {', '.join(absent)}")
    printed = ""
    for step in steps_of(text):
        if step.kind == "write":
            target = reader / step.title
            assert target.resolve().is_relative_to(reader), f"line {step.line}: {step.title} lies elsewhere"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(step.text, encoding="utf-8")
        elif step.kind == "run":
            printed = run(step, capfd)
        elif step.kind == "expect":
            line = first_difference(step.text, printed)
            assert line is None, f"line {step.line}: expected\n{line}\nin\n{printed}"


PARSERS: dict[str, Callable[[str], object]] = {
    "python": lambda text: compile(text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT),
    "toml": tomllib.loads,
    "json": json.loads,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_a_guide_only_shows_is_well_formed(page: Path) -> None:
    for step in steps_of(page.read_text(encoding="utf-8")):
        if step.kind == "look" and step.language in PARSERS:
            PARSERS[step.language](step.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_that_a_guide_only_shows_are_commands_of_whet(page: Path) -> None:
    for step in steps_of(page.read_text(encoding="utf-8")):
        if step.kind != "console":
            continue
        for line in step.text.splitlines():
            if line.startswith("$ whet "):
                words = shlex.split(line, comments=True)[2:4]
                assert main([*words, "--help"]) == 0, f"line {step.line}: {line}"


def test_a_block_is_what_its_fence_says() -> None:
    written = '```python title="a.py"\nx\n```\n\n```sh\nls\n```\n\n```text\na.py\n```\n'
    page = written + "\nNow:\n\n```text\nshown\n```\n```console\n$ x\n```\n"
    assert [(step.kind, step.title) for step in steps_of(page)] == [
        ("write", "a.py"),
        ("run", ""),
        ("expect", ""),
        ("look", ""),
        ("console", ""),
    ]


def test_a_file_may_also_be_named_in_the_sentence_before_it() -> None:
    assert [step.title for step in steps_of("Type this into `a/b.py`:\n\n```python\nx\n```\n")] == ["a/b.py"]


def test_training_is_one_step_here_and_an_endpoint_is_not_asked() -> None:
    assert rehearsed(["train", "run", "a.toml"])[3:5] == ["--max_steps", "1"]
    assert rehearsed(["eval", "run", "e", "-b", "http://localhost"]) == ["eval", "run", "--help"]
    assert rehearsed(["eval", "run", "e", "-m", "Qwen/Qwen3-0.6B"]) == ["eval", "run", "--help"]
    assert rehearsed(["env", "check", "./a/b"]) == ["env", "check", "./a/b"]


def test_a_fence_with_another_attribute_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1"):
        steps_of('```python linenums="1"\nx\n```\n')


@pytest.mark.parametrize(
    ("expected", "difference"),
    [
        ("one\ntwo\nthree", None),
        ("o...e\n...\nthr...", None),
        ("one\nthree", "three"),
        ("on\n...", "on"),
        ("one\ntwo", "(the end of it)"),
        ("...\nthree\ntwo", "two"),
    ],
)
def test_what_is_printed_is_compared_line_by_line(expected: str, difference: str | None) -> None:
    assert first_difference(expected, "one\ntwo \nthree\n") == difference
