"""What a newcomer copies out of the README works as it stands."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import whet
from whet.cli.main import main
from whet.rl.config import RunConfig

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", "docs/quickstart.md", "docs/environments.md", "docs/training.md"]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_environment_of_the_readme_loads_and_scores() -> None:
    module = ModuleType("letters")
    exec(compile(blocks("README.md", "python")[0], "README.md", "exec"), module.__dict__)
    env: whet.Environment = module.load_environment(size=8)
    row = env.get_dataset()[0]
    right, wrong = ([whet.AssistantMessage(content=text)] for text in (f" {row['answer']}\n", "none"))
    assert module.correct(right, row["answer"], whet.Parser()) == 1.0
    assert module.correct(wrong, row["answer"], whet.Parser()) == 0.0
    assert len(env.get_dataset()) == 8
    assert not {str(r["prompt"]) for r in env.get_dataset()} & {str(r["prompt"]) for r in env.get_eval_dataset()}


@pytest.mark.parametrize("document", ["README.md", "docs/training.md"])
def test_the_configs_in_documents_are_valid(document: str) -> None:
    for text in blocks(document, "toml"):
        RunConfig.model_validate({"name": "run", **tomllib.loads(text)})


def commands() -> list[str]:
    found = []
    for document in DOCUMENTS:
        for block in blocks(document, "sh"):
            found += re.findall(r"^(?:\.venv/bin/)?whet ((?:train|eval|model) .*)$", block, re.MULTILINE)
    return [command for command in found if "CONFIG" not in command]


@pytest.mark.parametrize("command", commands())
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
    assert main([*arguments, "--dry-run"]) == 0, capsys.readouterr().err
