"""`--shuffle [SEED]` and `--resume [PATH]`: which word after them is a value, and which names an environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.cli.optional_values import spell_out
from whet.errors import ConfigError


@pytest.fixture
def evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    directory = Path("outputs/a")
    directory.mkdir(parents=True)
    (directory / "metadata.json").write_text("{}")
    return str(directory)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["arithmetic", "--shuffle"], ["arithmetic", "--shuffle=0"]),
        (["--shuffle", "arithmetic"], ["--shuffle=0", "arithmetic"]),
        (["--shuffle", "7", "arithmetic"], ["--shuffle=7", "arithmetic"]),
        (["--shuffle=7", "arithmetic"], ["--shuffle=7", "arithmetic"]),
        (["--shuffle", "-n", "3"], ["--shuffle=0", "-n", "3"]),
        (["--", "--shuffle"], ["--", "--shuffle"]),
    ],
)
def test_a_word_is_a_seed_only_where_it_is_a_number(words: list[str], read: list[str]) -> None:
    assert spell_out(words) == read


@pytest.mark.parametrize("option", ["--resume", "-R"])
def test_a_word_is_resumed_where_an_evaluation_lies_there(option: str, evaluation: str) -> None:
    assert spell_out([option, evaluation, "arithmetic"]) == [f"--resume={evaluation}", "arithmetic"]
    assert spell_out([option, f"{evaluation}/results.jsonl"]) == [f"--resume={evaluation}/results.jsonl"]


@pytest.mark.parametrize("environment", ["arithmetic", "environments/arithmetic"])
def test_an_environment_after_resume_stays_one(environment: str, evaluation: str) -> None:
    Path("environments/arithmetic").mkdir(parents=True)
    assert spell_out(["--resume", environment]) == ["--resume=", environment]
    assert spell_out([environment, "-R"]) == [environment, "--resume="]


def test_a_word_that_could_be_either_asks_to_be_joined(evaluation: str) -> None:
    with pytest.raises(ConfigError, match=r"outputs/b: no evaluation lies there. Write --resume=PATH"):
        spell_out(["--resume", "outputs/b", "arithmetic"])
