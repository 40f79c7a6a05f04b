"""Models of evaluations: what is said of one that is missing, and of answers that nothing limits."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.inference.weights import gguf_files

from whet.display.live import Output
from whet.errors import ConfigError, ModelLoadError
from whet.evals.config import EvalConfig
from whet.evals.live.view import EvalView
from whet.evals.model import Models, about_length, check_models, report_speed
from whet.evals.observer import EvalObserver, PlannedEval
from whet.evals.sessions.session import run_evals
from whet.types import RolloutOutput

ENDPOINTS = """
[[endpoint]]
endpoint_id = "mini"
model = "gpt-4.1-mini"
url = "https://api.openai.com/v1"

[[endpoint]]
endpoint_id = "large"
model = "gpt-4.1"
url = "https://api.openai.com/v1"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message_for(model: str) -> str:
    with pytest.raises(ModelLoadError) as caught:
        check_models([EvalConfig(environment="reverse-text", model=model)])
    return str(caught.value)


def write_endpoints() -> None:
    Path("configs").mkdir()
    Path("configs/endpoints.toml").write_text(ENDPOINTS)


def test_a_missing_model_names_the_url_option_and_the_endpoints_file() -> None:
    message = message_for("gpt-4.1-nano")
    assert "no model directory 'gpt-4.1-nano'" in message
    assert message.endswith("give the endpoint's URL with -b, or add it to configs/endpoints.toml.")


def test_the_short_names_of_the_endpoints_file_are_listed() -> None:
    write_endpoints()
    assert message_for("gpt-4.1-nano").endswith("or a short name from configs/endpoints.toml: -m mini or large.")


def test_the_short_name_of_the_same_model_is_proposed() -> None:
    write_endpoints()
    assert message_for("gpt-4.1-mini").endswith("or a short name from configs/endpoints.toml: -m mini.")


def config(**given: Any) -> EvalConfig:
    return EvalConfig(environment="reverse-text", **given)


def test_a_device_that_is_not_here_is_refused_before_a_model_is_loaded(machine: Any) -> None:
    machine(count=1)
    check_models([config(device="cuda"), config(device="auto")])
    with pytest.raises(ConfigError, match=r'^device = "cuda:1": there is 1 CUDA device here.*"auto" or "cpu"'):
        check_models([config(device="cuda"), config(device="cuda:1")])


def test_a_device_for_models_behind_endpoints_is_refused_unless_one_is_run_here() -> None:
    remote = config(model="m", base_url="http://localhost:1", device="cpu")
    with pytest.raises(ConfigError, match=r'device = "cpu" would have no effect: m is behind an endpoint, http://loc'):
        check_models([remote])
    check_models([remote, config(device="cpu")])


def test_a_model_is_run_on_the_device_of_its_evaluation(machine: Any) -> None:
    configs = [config(device="cpu", threads=1), config(device="cpu", threads=1), config(device="cpu", dtype="bfloat16")]
    machine()

    async def devices() -> list[Any]:
        models = Models(configs)
        clients = [await models.client(number) for number in range(len(configs))]
        await models.close()
        return [client.engine for client in clients]  # type: ignore[attr-defined]

    first, second, third = asyncio.run(devices())
    assert first is second is not third
    assert {engine.device.type for engine in (first, third)} == {"cpu"}


def test_a_directory_without_a_model_is_no_endpoint() -> None:
    Path("folder").mkdir()
    assert message_for("./folder") == "folder is not a model directory: it has no config.json"


ENVIRONMENT = """
from whet.envs.multiturn_env import SingleTurnEnv
from whet.rubrics.rubric import Rubric


def load_environment():
    rows = [{"question": "a", "answer": ""}, {"question": "a" * 60, "answer": ""}]
    return SingleTurnEnv(eval_dataset=rows, rubric=Rubric(funcs=[lambda completion: 0.0]))
"""


class Recorder(EvalObserver):
    """What is planned, and what is sampled at the moment when a rollout ends."""

    def __init__(self) -> None:
        self.plans: list[PlannedEval] = []
        self.rows: list[RolloutOutput] = []
        self.texts: list[str] = []
        self.notes: list[str] = []
        self.sampling: Callable[[], str] = str

    def note(self, text: str) -> None:
        self.notes.append(text)

    def watch(self, sampling: Callable[[], str]) -> None:
        self.sampling = sampling

    def start(self, evaluations: Sequence[PlannedEval]) -> None:
        self.plans = list(evaluations)

    def rollout(self, evaluation: int, row: RolloutOutput) -> None:
        self.rows.append(row)
        self.texts.append(self.sampling())


def test_answers_that_never_end_are_announced_and_counted_while_they_are_sampled(folder: Path) -> None:
    gguf_files.write(folder / "small.gguf")
    (folder / "endless.py").write_text(ENVIRONMENT)
    config = EvalConfig(
        environment="./endless.py",
        model=str(folder / "small.gguf"),
        rollouts_per_example=1,
        temperature=0.0,  # this model never says the token that ends an answer
        max_concurrent=2,
        save=False,
    )
    recorder = Recorder()
    run_evals([config], recorder)
    assert all(row["is_truncated"] for row in recorder.rows)
    (plan,) = recorder.plans
    assert plan.caution == (
        "no max_tokens: an answer that does not end goes on until the context of 128 tokens is full, for 2 rollouts up "
        "to 256 tokens; --max-tokens limits an answer"
    )
    first, last = recorder.texts
    tokens = int(first.partition(" ")[0])
    assert 128 - 100 < tokens < 128
    assert first == f"{tokens} tokens so far in 1 unfinished answer, {tokens} in the longest"
    assert last == ""


def test_the_time_of_answers_that_never_end_is_said_once_it_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.evals.sessions.session.report_speed", partial(report_speed, seconds=0.0, pause=0.0))
    gguf_files.write(folder / "small.gguf")
    (folder / "endless_too.py").write_text(ENVIRONMENT)
    given: dict[str, Any] = {"environment": "./endless_too.py", "model": str(folder / "small.gguf"), "save": False}
    for limit, said in ((None, 1), (100, 0)):
        recorder = Recorder()
        run_evals([EvalConfig(**given, temperature=0.0, rollouts_per_example=1, max_tokens=limit)], recorder)
        speed = re.compile(r"no max_tokens: [\d,]+ tokens a second were sampled")
        assert len([note for note in recorder.notes if speed.match(note)]) == said


def test_a_limit_and_an_endpoint_are_no_announcement_of_a_context() -> None:
    here = EvalConfig(environment="reverse-text", model="whet/tiny")
    there = EvalConfig(environment="reverse-text", model="m", base_url="http://localhost:1/v1")
    limits: list[dict[str, Any]] = [{"max_tokens": 1}, {"max_completion_tokens": 1}, {"extra_body": {"max_tokens": 1}}]
    for config in (here, there):
        assert [about_length(config, sampling, 8, "--max-tokens") for sampling in limits] == ["", "", ""]
    over = [about_length(here, {"extra_body": {"max_tokens": most}}, 8, "--max-tokens") for most in (1023, 1024)]
    assert over[0] == ""
    assert over[1].startswith("--max-tokens = 1,024 is more than the context of 1,024 tokens leaves")
    assert about_length(there, {"max_tokens": 10**9}, 8, "--max-tokens") == ""
    text = about_length(there, {}, 8, "--max-tokens")
    assert text == "no max_tokens: the endpoint decides how long an answer may be; --max-tokens limits it"
    assert "until the context of" in about_length(here, {"max_tokens": None}, 8, "--max-tokens")


def test_the_view_prints_the_announcement_once_and_shows_tokens_so_far() -> None:
    file = io.StringIO()
    view = EvalView(Output(Console(file=file, width=100)))
    plans = [PlannedEval(name, "m", "greedy", 1, 1, caution="no max_tokens: ...") for name in "ab"]
    view.watch(lambda: "12 tokens so far in 3 unfinished answers, 5 in the longest")
    view.start(plans)
    assert file.getvalue().count("no max_tokens: ...") == 1
    view.console.print(view.draw(100, 20, ""))
    assert "sampling   12 tokens so far in 3 unfinished answers, 5 in the longest" in file.getvalue()
