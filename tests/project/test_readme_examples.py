"""What a newcomer copies out of the README works as it stands."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import whet
from whet.cli.main import main
from whet.rl.config import RunConfig
from whet.rl.sweep.config import load_sweep
from whet.system.files import read_lines

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "docs/quickstart.md", "docs/environments.md", "docs/training.md"]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_environment_of_the_readme_loads_and_scores() -> None:
    module = ModuleType("letters")
    exec(compile(blocks("README.md", "python")[0], "README.md", "exec"), module.__dict__)
    env: whet.Environment = module.load_environment(size=8)
    row = env.get_dataset()[0]
    answers = (f" {row['answer']}\n", row["answer"][:3], row["answer"] * 9, "")
    rewards = [module.in_place([whet.AssistantMessage(content=text)], row["answer"], whet.Parser()) for text in answers]
    assert rewards == pytest.approx([1, 1 / 3, 1 / 9, 0])
    assert len(env.get_dataset()) == 8
    assert not {str(r["prompt"]) for r in env.get_dataset()} & {str(r["prompt"]) for r in env.get_eval_dataset()}


@pytest.mark.parametrize(
    "shorter",
    ["--max_steps 8 --eval.greedy false", pytest.param("", marks=pytest.mark.long)],
    ids=["first steps", "as written"],
)
def test_readme_example_is_learnable_by_the_tiny_model(shorter: str, warm: Any, tmp_path: Path) -> None:
    for name, language in (("letters.py", "python"), ("letters.toml", "toml")):
        (tmp_path / name).write_text(blocks("README.md", language)[0])
    (evaluate,) = [command for command in commands() if command.startswith("eval run ./letters.py")]
    for command in (evaluate, f"train run letters.toml {shorter}"):
        process = warm.start(*shlex.split(command), cwd=tmp_path)
        output = process.stdout.read()
        assert process.wait() == 0, output
    (metadata,) = tmp_path.glob("outputs/evals/*/*/metadata.json")
    assert 0.15 <= json.loads(metadata.read_text())["avg_reward"] <= 0.7
    before, after = (
        row["reward"] for row in read_lines(tmp_path / "runs/letters/evals.jsonl") if row["sampling"] == "temperature 1"
    )
    assert 0.15 <= before <= 0.7
    assert after - before >= 0.2


@pytest.mark.parametrize("document", ["README.md", "docs/training.md"])
def test_the_configs_in_documents_are_valid(document: str, tmp_path: Path) -> None:
    for text in blocks(document, "toml"):
        data = tomllib.loads(text)
        if "vary" in data:
            (file := tmp_path / "sweep.toml").write_text(text)
            load_sweep(file, {}, [])
        else:
            RunConfig.model_validate({"name": "run", **data})


def commands() -> list[str]:
    found = []
    for document in DOCUMENTS:
        for block in blocks(document, "sh"):
            found += re.findall(r"^(?:\.venv/bin/)?whet ((?:train|eval|model) .*)$", block, re.MULTILINE)
    return [command for command in found if "CONFIG" not in command]


def _marked(command: str) -> Any:
    """Training of a model that does not come with the package is for `make test-parts`, which fetches it."""
    for config in (ROOT / word for word in shlex.split(command) if word.endswith(".toml")):
        if config.is_file() and tomllib.loads(config.read_text()).get("model") == "smollm2-135m":
            return pytest.param(command, marks=pytest.mark.parts)
    return command


@pytest.fixture
def _letters_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A dry run loads the environment from a folder of this test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("letters", None)


@pytest.mark.usefixtures("_letters_is_forgotten")
@pytest.mark.parametrize("command", [_marked(command) for command in commands()])
def test_the_commands_in_documents_are_understood(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = shlex.split(command, comments=True)
    if arguments[:2] not in (["train", "run"], ["train", "sft"]):
        assert main([*arguments, "--help"]) == 0
        return
    monkeypatch.chdir(tmp_path)
    config = tmp_path / arguments[2]
    config.parent.mkdir(parents=True, exist_ok=True)
    source = ROOT / arguments[2]
    config.write_text(source.read_text() if source.is_file() else blocks("README.md", "toml")[0])
    (tmp_path / "letters.py").write_text(blocks("README.md", "python")[0])  # which that config trains on
    assert main([*arguments, "--dry-run"]) == 0, capsys.readouterr().err
