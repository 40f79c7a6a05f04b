"""`whet eval run`: what reaches the room, and what is printed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from whet.cli.eval import app
from whet.cli.main import main
from whet.config import options_of
from whet.errors import EnvironmentLoadError
from whet.evals.config import EvalConfig
from whet.evals.observer import EvalObserver
from whet.evals.sessions.session import EvaluationsInterrupted, Unfinished


@dataclass
class Summary:
    reward: float | None
    results: Path | None = None
    environment: str = "e"
    model: str = "m"
    examples: int = 2
    varied: dict[str, Any] = field(default_factory=dict)


class Room:
    """Stands in for the room: records the config, reports progress, and returns a small summary."""

    def __init__(self) -> None:
        self.configs: list[EvalConfig] = []
        self.reward: float | None = 0.5
        self.error: Exception | None = None
        self.offline = False

    def go_offline(self) -> None:
        self.offline = True

    def run_evals(self, configs: Sequence[EvalConfig], observer: EvalObserver) -> list[Summary]:
        self.configs += configs
        if self.error is not None:
            raise self.error
        return [Summary(self.reward) for _ in configs]


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Room:
    room = Room()
    monkeypatch.setattr("whet.evals.sessions.session.run_evals", room.run_evals)
    # It cannot be undone, and would hold for every test after this one.
    monkeypatch.setattr("whet.system.offline.go_offline", room.go_offline)
    monkeypatch.setattr(
        "whet.evals.printing.print_summaries",
        lambda summaries: print(*(f"mean reward {summary.reward}" for summary in summaries)),
    )
    return room


def test_without_options_the_environment_s_defaults_go_over_the_config_s(room: Room) -> None:
    assert main(["eval", "run", "reverse-text"]) == 0
    assert room.configs == [EvalConfig(environment="reverse-text", num_examples=32, rollouts_per_example=4)]


def test_the_command_line_goes_over_the_environment_s_defaults(room: Room) -> None:
    assert main(["eval", "run", "reverse-text", "-n", "5"]) == 0
    assert room.configs == [EvalConfig(environment="reverse-text", num_examples=5, rollouts_per_example=4)]


def test_every_option_reaches_its_field(room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = ["-m", "m", "-b", "http://localhost", "-k", "KEY", "-n", "7", "-r", "2", "-c", "9", "-t", "11", "-T", "0.5"]
    file = tmp_path / "keys.env"
    file.write_text("WHET_TEST_KEY=sesame\n")
    monkeypatch.delenv("WHET_TEST_KEY", raising=False)
    short += ["-e", "my.toml", "--env-file", str(file)]
    short += [
        "-x",
        '{"max_turns": 2}',
        "--shuffle",
        "4",
        "--timeout",
        "1.5",
        "--max-retries",
        "2",
        "-C",
        "a, b",
        "-C",
        "c",
    ]
    short += ["-i", "-w", "2", "--offline"]
    more = ["-S", '{"top_p": 0.9}', "-a", '{"max_length": 9}', "--seed", "3", "--dtype", "bfloat16", "--threads", "1"]
    more += ["--device", "cuda:1", "--engine", "vllm"]
    assert main(["eval", "run", "reverse-text", *short, *more, "--no-save", "-o", "there"]) == 0
    given = room.configs[0]
    assert given == EvalConfig(
        environment="reverse-text",
        model="m",
        base_url="http://localhost",
        api_key_var="KEY",
        endpoints=Path("my.toml"),
        env_file=(file,),
        num_examples=7,
        rollouts_per_example=2,
        max_concurrent=9,
        max_tokens=11,
        temperature=0.5,
        sampling_args={"top_p": 0.9},
        env_args={"max_length": 9},
        extra_env_kwargs={"max_turns": 2},
        shuffle=4,
        timeout=1.5,
        max_retries=2,
        state_columns=("a", "b", "c"),
        independent_scoring=True,
        workers=2,
        offline=True,
        seed=3,
        dtype="bfloat16",
        device="cuda:1",
        engine="vllm",
        threads=1,
        save=False,
        output_directory=Path("there"),
    )
    assert given.model_fields_set - {"varied"} == set(EvalConfig.model_fields) - {
        "endpoint",
        "short_name",
        "varied",
        "resume",
    }
    assert os.environ.pop("WHET_TEST_KEY") == "sesame"
    assert room.offline


def test_a_short_name_is_looked_up(room: Room, tmp_path: Path) -> None:
    file = tmp_path / "endpoints.toml"
    file.write_text(
        '[[endpoint]]\nendpoint_id = "mini"\nmodel = "big-name"\nurl = "http://localhost:1/v1"\nkey = "K"\n'
    )
    assert main(["eval", "run", "reverse-text", "-m", "mini", "-e", str(file)]) == 0
    config = room.configs[0]
    assert (config.model, config.base_url, config.local) == ("big-name", "http://localhost:1/v1", False)
    assert config.endpoint is not None
    assert config.endpoint.api_key_var == "K"


def test_every_field_of_the_config_is_an_option_with_its_description() -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    helps = {parameter.name: getattr(parameter, "help", None) for parameter in group.commands["run"].params}
    fields = options_of(EvalConfig, without=("environment",))
    assert set(EvalConfig.model_fields) - set(fields) == {"endpoint", "short_name", "varied", "environment"}
    assert {name: helps[name] for name in fields} == {name: field.description for name, field in fields.items()}
    assert set(helps) - set(fields) == {"environments", "verbose", "json_output"}


def test_a_person_reads_the_summary_and_a_program_one_line_of_json(
    room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["eval", "run", "reverse-text"])
    assert capsys.readouterr().out == "mean reward 0.5\n"
    main(["eval", "run", "reverse-text", "--json"])
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert (said["reward"], said["results"]) == (0.5, None)
    assert captured.err == ""


def test_several_evaluations_are_one_object_of_json(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "run", "reverse-text", "arithmetic", "--json"]) == 0
    assert [row["reward"] for row in json.loads(capsys.readouterr().out)["evaluations"]] == [0.5, 0.5]
    assert [config.environment for config in room.configs] == ["reverse-text", "arithmetic"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-a", "{max_length: 9}"], "--env-args: not JSON"),
        (["-S", "[1]"], "--sampling-args: expected a JSON object"),
        (["-a", '{"x": NaN}'], "--env-args: 'x': nan is not a finite number"),
        (["-a", '{"x": [1, {"y": 1e400}]}'], "--env-args: 'x.1.y': inf is not a finite number"),
        (["-S", '{"temperature": -Infinity}'], "--sampling-args: 'temperature': -inf is not a finite number"),
        (["-T", "nan"], "'temperature'"),
        (["-r", "0"], "'rollouts_per_example'"),
        (["-T", "-1"], "'temperature'"),
    ],
)
def test_a_wrong_value_is_one_line_and_exit_code_two(
    arguments: list[str], words: str, room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "run", "reverse-text", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert room.configs == []


def test_an_evaluation_in_which_every_rollout_failed_ends_with_one(room: Room) -> None:
    room.reward = None
    assert main(["eval", "run", "reverse-text"]) == 1


def test_an_interrupted_session_says_how_to_go_on_and_ends_with_130(
    room: Room, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = Unfinished(
        environment="reverse-text", model="whet/tiny", saved=7, rollouts=15, directory=Path("outputs/evals/x")
    )
    room.error = EvaluationsInterrupted(2, [unfinished], evaluations=1)
    assert main(["eval", "run", "reverse-text"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{room.error}\n"
    assert captured.err.endswith("--resume=outputs/evals/x\n")


def test_an_environment_that_is_not_installed_is_one_line(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "run", "nope"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: environment 'nope' is not installed")
    assert error.count("\n") == 1


def test_an_environment_that_does_not_load_is_one_line(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    room.error = EnvironmentLoadError("environment 'reverse-text' fails on import: KeyError: 'x'.")
    assert main(["eval", "run", "reverse-text"]) == 2
    assert capsys.readouterr().err == "error: environment 'reverse-text' fails on import: KeyError: 'x'.\n"
