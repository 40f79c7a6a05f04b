"""`run_evals`: an environment on disk, a real HTTP endpoint, results on disk."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from whet.cli.output import print_json
from whet.clients.scripted import ScriptedClient
from whet.errors import EndpointUnreachableError, EnvironmentLoadError, WhetError
from whet.evals.analysis.summary import EvalSummary
from whet.evals.config import EvalConfig
from whet.evals.observer import EvalObserver
from whet.evals.printing import print_summary
from whet.evals.sessions.resume import results_directory
from whet.evals.sessions.session import run_evals
from whet.evals.stored.stored import list_stored
from whet.types import SamplingArgs

ENVIRONMENT = """
import whet
from whet.envs.multiturn_env import SingleTurnEnv
from whet.rubrics.rubric import Rubric


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


def load_environment(tasks=3):
    rows = [{"question": f"say {number}", "answer": str(number)} for number in range(tasks)]
    return SingleTurnEnv(dataset=[{"question": "train", "answer": ""}], eval_dataset=rows, rubric=Rubric(funcs=[right]))
"""


@dataclass
class Endpoint:
    """A server that speaks OpenAI's chat completions: answers with the task's number, fails where it is told to."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    status_of: dict[str, int] = field(default_factory=dict)
    suffix: str = ""

    def answer(self, request: dict[str, Any], headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.requests.append(request)
        self.headers.append(headers)
        question = request["messages"][-1]["content"]
        if (status := self.status_of.get(question, 200)) != 200:
            return status, {"error": {"message": f"no answer to {question!r}", "type": "invalid_request_error"}}
        message = {"role": "assistant", "content": question.removeprefix("say ") + self.suffix}
        return 200, {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
        }


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    served = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = served.answer(request, {k.lower(): v for k, v in self.headers.items()})
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def say_number(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in a file of its own; a process can import only one module of a name."""
    path = tmp_path_factory.mktemp("environment") / "say_number.py"
    path.write_text(ENVIRONMENT)
    return path


@pytest.fixture
def config(tmp_path: Path, say_number: Path, endpoint: Endpoint) -> EvalConfig:
    return EvalConfig(
        environment=str(say_number),
        model="served",
        base_url=endpoint.url,
        rollouts_per_example=2,
        output_directory=tmp_path / "outputs",
    )


def run_eval(config: EvalConfig) -> EvalSummary:
    (summary,) = run_evals([config], EvalObserver())
    return summary


def changed(config: EvalConfig, **fields: Any) -> EvalConfig:
    return EvalConfig(**{**config.model_dump(), **fields})


def test_an_endpoint_is_evaluated_and_everything_is_kept(config: EvalConfig) -> None:
    summary = run_eval(config)
    assert summary.reward is not None
    assert summary.reward.mean == 1.0
    assert (summary.examples, summary.rollouts, summary.errors) == (3, 6, 0)
    assert (summary.input_tokens, summary.output_tokens) == (7.0, 2.0)
    assert summary.readiness.verdict == "too easy"
    assert summary.results is not None
    rows = [json.loads(line) for line in (summary.results / "results.jsonl").read_text().splitlines()]
    assert [row["example_id"] for row in rows] == [0, 0, 1, 1, 2, 2]
    assert {row["metrics"]["right"] for row in rows} == {1.0}
    assert {"timing", "token_usage", "stop_condition", "prompt", "completion", "is_completed"} <= rows[0].keys()
    metadata = json.loads((summary.results / "metadata.json").read_text())
    assert (metadata["model"], metadata["num_examples"], metadata["rollouts_per_example"]) == ("served", 3, 2)
    assert (metadata["avg_reward"], metadata["avg_error"]) == (1.0, 0.0)
    assert metadata["pass_at_k"] == {"1": 1.0, "2": 1.0}


@pytest.mark.parametrize(
    ("environment", "model", "name"),
    [
        ("owner/game@1.0", "org/model", "owner--game@1.0--org--model"),
        ("./environments/game", "runs/demo/model", "game--runs--demo--model"),
        ("/home/me/game.py", "/home/me/weights", "game--home--me--weights"),
        ("../..", "whet/tiny", "unnamed--whet--tiny"),
    ],
)
def test_results_lie_under_environment_and_model(environment: str, model: str, name: str) -> None:
    config = EvalConfig(environment=environment, model=model)
    directory = results_directory(config)
    assert directory.parent == Path("outputs/evals") / name
    assert results_directory(config) != directory


class Notes(EvalObserver):
    """What a person is told of a session."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_a_report_that_cannot_be_written_is_told_and_the_evaluation_stands(
    config: EvalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_report(directory: Path) -> Path:
        raise OSError(28, "No space left on device", str(directory / "report.html"))

    monkeypatch.setattr("whet.evals.sessions.session.write_report", write_report)
    notes = Notes()
    (summary,) = run_evals([config], notes)
    assert summary.reward is not None
    assert summary.reward.mean == 1.0
    assert len(notes.texts) == 2
    assert "no report" in notes.texts[1]
    assert "No space left on device" in notes.texts[1]


def test_a_state_column_that_no_rollout_has_is_told(config: EvalConfig) -> None:
    notes = Notes()
    run_evals([config.model_copy(update={"state_columns": ("anwser", "trajectory_id")})], notes)
    assert notes.texts[1:] == ["state column 'anwser' was empty in every rollout: is that its name?"]


def test_nothing_is_written_when_saving_is_off(config: EvalConfig) -> None:
    assert run_eval(changed(config, save=False)).results is None
    assert not config.output_directory.exists()


def test_what_was_asked_for_is_what_the_endpoint_is_sent(
    config: EvalConfig, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret-key")
    asked = {"max_tokens": 5, "temperature": 0.5, "sampling_args": {"top_p": 0.9}, "seed": 3, "api_key_var": "MY_KEY"}
    summary = run_eval(changed(config, num_examples=2, env_args={"tasks": 9}, **asked))
    assert len(endpoint.requests) == 4
    assert {(request["temperature"], request["top_p"]) for request in endpoint.requests} == {(0.5, 0.9)}
    assert {request["max_completion_tokens"] for request in endpoint.requests} == {5}
    assert len({request["seed"] for request in endpoint.requests}) == 4
    assert {headers["authorization"] for headers in endpoint.headers} == {"Bearer secret-key"}
    assert summary.results is not None
    assert "secret-key" not in "".join(path.read_text() for path in summary.results.iterdir())


def test_an_endpoint_is_sent_no_seed_and_no_temperature_unless_asked(config: EvalConfig, endpoint: Endpoint) -> None:
    run_eval(config)
    assert not any({"seed", "temperature"} & request.keys() for request in endpoint.requests)


def test_a_rejected_request_fails_its_rollout_alone(config: EvalConfig, endpoint: Endpoint) -> None:
    endpoint.status_of["say 1"] = 400
    summary = run_eval(config)
    assert (summary.rollouts, summary.errors, summary.error_kinds) == (6, 2, {"ModelError": 2})
    assert summary.reward is not None
    assert summary.reward.mean == 1.0


def test_a_key_that_is_refused_ends_the_run_and_keeps_what_was_paid_for(config: EvalConfig, endpoint: Endpoint) -> None:
    endpoint.status_of["say 2"] = 401
    with pytest.raises(WhetError, match="refuses access"):
        run_eval(changed(config, max_concurrent=1, rollouts_per_example=1))
    (results,) = config.output_directory.rglob("results.jsonl")
    assert [json.loads(line)["example_id"] for line in results.read_text().splitlines()] == [0, 1]


def test_a_key_that_is_refused_at_once_leaves_no_directory(config: EvalConfig, endpoint: Endpoint) -> None:
    endpoint.status_of["say 0"] = 401
    with pytest.raises(WhetError, match="refuses access"):
        run_eval(changed(config, max_concurrent=1))
    assert list(config.output_directory.iterdir()) == []


def test_a_refused_resume_leaves_the_directory(config: EvalConfig, endpoint: Endpoint) -> None:
    directory = run_eval(changed(config, num_examples=1)).results
    endpoint.status_of["say 1"] = 401
    with pytest.raises(WhetError, match="refuses access"):
        run_eval(changed(config, max_concurrent=1, resume=directory))
    assert [stored.directory for stored in list_stored(config.output_directory)] == [directory]


def test_an_endpoint_that_was_never_there_ends_the_run(
    config: EvalConfig, held_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.clients.providers.connections.GRACE_S", 0.0)
    nobody = f"http://127.0.0.1:{held_port}/v1"
    with pytest.raises(EndpointUnreachableError, match=rf"{nobody}/ cannot be reached: Connection refused"):
        run_eval(changed(config, base_url=nobody))


def test_an_environment_that_is_not_there_is_one_clear_error(config: EvalConfig) -> None:
    with pytest.raises(EnvironmentLoadError, match="no-such-environment"):
        run_eval(changed(config, environment="no-such-environment"))


def test_the_printed_summary_says_it_all_and_nothing_hostile(config: EvalConfig, endpoint: Endpoint) -> None:
    endpoint.suffix = "[red]\x1b[2J"
    endpoint.status_of["say 1"] = 400
    summary = run_eval(config)
    file = io.StringIO()
    print_summary(summary, Console(file=file, width=100, highlight=False))
    text = file.getvalue()
    assert "\x1b" not in text
    assert "0[red]\ufffd[2J" in text
    for part in (
        "3 tasks x 2 rollouts in",
        "reward     0.000 (95 % interval 0.000 to 0.000, over tasks)",
        "pass@k     1 0.000, 2 0.000 (passed: reward >= 0.5)",
        "errors     2 of 6 rollouts (ModelError 2), left out of the means",
        "readiness  too hard for training: mean reward 0%",
        "tokens     7 in, 2 out a rollout",
        f"saved      {summary.results}",
    ):
        assert part in text


def test_the_summary_is_valid_json_also_when_everything_failed(
    config: EvalConfig, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.status_of = {f"say {number}": 400 for number in range(3)}
    print_json(run_eval(config))
    found = json.loads(capsys.readouterr().out)
    assert (found["reward"], found["errors"], found["readiness"]["verdict"]) == (None, 6, "unknown")


def test_a_model_run_here_samples_at_temperature_1_from_fixed_seeds_and_is_closed(
    config: EvalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SamplingArgs] = []
    closed: list[bool] = []

    def answer(sampling_args: SamplingArgs) -> str:
        asked.append(sampling_args)
        return "0"

    class Engine:
        async def close(self) -> None:
            closed.append(True)

    @dataclass
    class Policy:
        client: ScriptedClient
        engine: Engine

    def load(model: str, **_: object) -> Policy:
        assert model == "whet/tiny"
        return Policy(ScriptedClient(answer), Engine())

    monkeypatch.setattr("whet.inference.loading.load_policy", load)
    local = changed(config, model="whet/tiny", base_url=None)
    assert run_eval(local).sampling == "temperature 1"
    first = [args["seed"] for args in asked]
    run_eval(local)
    assert [args["seed"] for args in asked] == first * 2
    assert {args["temperature"] for args in asked} == {1.0}
    assert closed == [True, True]


def test_evaluating_an_endpoint_needs_neither_torch_nor_numpy() -> None:
    modules = "sys, whet.evals.sessions.session, whet.evals.printing"
    program = f"import {modules}; sys.exit(bool({{'torch', 'numpy'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="num_example"):
        EvalConfig(environment="e", num_example=3)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="at least 1, or -1 for all"):
        EvalConfig(environment="e", num_examples=0)
    assert all(field.description for field in EvalConfig.model_fields.values())


SECRETS = {"user": "hunter2-user", "query": "hunter2-query", "header": "hunter2-header"}


def test_secrets_of_addresses_headers_and_arguments_are_sent_and_not_written(
    config: EvalConfig, endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint.status_of["say 1"] = 400
    secret = changed(
        config,
        base_url=f"{endpoint.url.replace('//', '//me:' + SECRETS['user'] + '@')}?api_key={SECRETS['query']}",
        sampling_args={"extra_headers": {"X-Key": SECRETS["header"]}},
    )
    run_eval(secret)
    assert {headers.get("x-key") for headers in endpoint.headers} == {SECRETS["header"]}
    run_eval(changed(secret, resume=next(config.output_directory.rglob("metadata.json")).parent, num_examples=6))
    written = [file.read_text() for file in config.output_directory.rglob("*") if file.is_file()]
    assert len(written) > 1
    out, err = capfd.readouterr()
    for text in [*written, out, err]:
        assert not [name for name, value in SECRETS.items() if value in text]
    (metadata,) = (json.loads(file.read_text()) for file in config.output_directory.rglob("metadata.json"))
    assert metadata["base_url"].endswith("/v1?api_key=[redacted-by-whet]")
