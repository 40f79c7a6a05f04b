"""Contract of the environment library: `generate` and `evaluate`.

1. `generate` takes inputs, client, model, sampling_args, max_concurrent, results_path, state_columns, save_results,
   independent_scoring, max_retries, on_start, on_progress and on_log, with the defaults of 0.1.
2. It returns outputs and metadata.
3. `evaluate` takes num_examples and rollouts_per_example, of the evaluation rows, and all that `generate` takes.
4. The `_sync` forms do the same, also where an event loop runs already.
5. Inputs with equal `example_id` are a group, and are scored together.
6. `independent_scoring` scores each rollout by itself and gives no advantage.
7. `sampling_args` go over those of the environment.
8. `max_concurrent` limits the rollouts that generate at once; -1 is no limit.
9. `max_retries` attempts again what failed for reasons outside model and task.
10. `state_columns` are further fields of the rows.
11. `on_start`, `on_progress` and `on_log` are called.
12. Results are saved where `results_path` says, and with `save_results` under `outputs/`.
13. A run that broke off is continued from its results.
14. A client is a `Client`, a `ClientConfig` or an openai client.
15. `run_rollout` and `run_group` give the rows of one rollout and of one group.
16. Cancelling ends all rollouts and cleans them up.
"""

import asyncio
import http.server
import inspect
import json
import threading

import pytest

import whet

ROWS = [{"question": str(index), "answer": str(index)} for index in range(3)]


def echo(prompt):
    return prompt[-1].content


def right(completion, answer):
    return float(completion[-1].content == answer)


def make(**kwargs):
    return whet.SingleTurnEnv(dataset=ROWS, rubric=whet.Rubric([right]), env_id="e", **kwargs)


def test_1_the_arguments_of_generate():
    parameters = dict(inspect.signature(whet.Environment.generate).parameters)
    del parameters["older"]  # of older 0.1: tests/envs/test_running.py
    assert {name: parameter.default for name, parameter in list(parameters.items())[4:]} == {
        "sampling_args": None,
        "max_concurrent": -1,
        "results_path": None,
        "state_columns": None,
        "save_results": False,
        "independent_scoring": False,
        "max_retries": 0,
        "on_start": None,
        "on_progress": None,
        "on_log": None,
    }
    assert list(parameters)[:4] == ["self", "inputs", "client", "model"]


def test_2_outputs_and_metadata():
    env = make()
    results = asyncio.run(env.generate(env.get_dataset(), whet.ScriptedClient(echo), "m"))
    assert set(results) == {"outputs", "metadata"}
    assert [output["example_id"] for output in results["outputs"]] == [0, 1, 2]
    assert set(whet.GenerateMetadata.__annotations__) == set(results["metadata"])


def test_3_evaluate_takes_examples_and_rollouts_of_each():
    env = whet.SingleTurnEnv(dataset=ROWS, eval_dataset=[{"question": "held out"}] * 5)
    client = whet.ScriptedClient(echo)
    outputs = asyncio.run(env.evaluate(client, "m", num_examples=2, rollouts_per_example=3, max_concurrent=1))[
        "outputs"
    ]
    assert [output["example_id"] for output in outputs] == [0, 0, 0, 1, 1, 1]
    assert {output["completion"][0]["content"] for output in outputs} == {"held out"}
    assert len(asyncio.run(env.evaluate(client, "m"))["outputs"]) == 5


def test_4_the_synchronous_forms():
    env = make()
    client = whet.ScriptedClient(echo)

    async def inside_a_loop():
        return env.evaluate_sync(client, "m")

    for results in (
        env.generate_sync(env.get_dataset(), client, "m"),
        env.evaluate_sync(client, "m"),
        asyncio.run(inside_a_loop()),
    ):
        assert [output["reward"] for output in results["outputs"]] == [1.0] * 3


def test_5_equal_ids_are_a_group():
    sizes = []

    def together(states):
        sizes.append(len(states))
        return [0.0] * len(states)

    env = whet.SingleTurnEnv(dataset=ROWS, rubric=whet.Rubric([together]))
    env.generate_sync([*env.get_dataset(), *env.get_dataset(2)], whet.ScriptedClient(echo), "m")
    assert sorted(sizes) == [1, 2, 2]


@pytest.mark.parametrize("independent", [False, True])
def test_6_independent_scoring_gives_no_advantage(independent):
    advantages = []

    class Notes(whet.Rubric):
        @whet.cleanup
        def note(self, state):
            advantages.append(state["advantage"])

    env = whet.SingleTurnEnv(dataset=ROWS[:1], rubric=Notes([right]))
    env.evaluate_sync(whet.ScriptedClient(echo), "m", rollouts_per_example=2, independent_scoring=independent)
    assert advantages == [None if independent else 0.0] * 2


def test_7_sampling_args_go_over_those_of_the_environment():
    seen = []
    client = whet.ScriptedClient(lambda sampling_args: seen.append(sampling_args) or "x")
    env = whet.SingleTurnEnv(dataset=ROWS[:1], sampling_args={"temperature": 0.5, "top_p": 0.9})
    env.evaluate_sync(client, "m", {"temperature": 1.0})
    assert seen == [{"temperature": 1.0, "top_p": 0.9}]


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (2, 2), (-1, 6)])
def test_8_the_rollouts_at_once_are_limited(limit, expected):
    running, most = 0, 0

    async def answer():
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        return "x"

    make().evaluate_sync(whet.ScriptedClient(answer), "m", rollouts_per_example=2, max_concurrent=limit)
    assert most == expected


def test_9_what_failed_for_outside_reasons_is_attempted_again(monkeypatch):
    monkeypatch.setattr("whet.rollouts.groups.LONGEST_PAUSE_S", 0.0)
    attempts = {"infra": 0, "own": 0}

    class Flaky(whet.SingleTurnEnv):
        async def setup_state(self, state):
            attempts["infra"] += 1
            if attempts["infra"] < 3:
                raise whet.InfraError("host gone")

    class Broken(whet.SingleTurnEnv):
        async def setup_state(self, state):
            attempts["own"] += 1
            raise ValueError("the author's")

    client = whet.ScriptedClient(echo)
    (output,) = Flaky(dataset=ROWS[:1]).evaluate_sync(client, "m", max_retries=5)["outputs"]
    assert (output["error"], attempts["infra"]) == (None, 3)
    (output,) = Broken(dataset=ROWS[:1]).evaluate_sync(client, "m", max_retries=5)["outputs"]
    assert (output["error"]["error"], attempts["own"]) == ("EnvError", 1)


def test_10_state_columns():
    class Env(whet.SingleTurnEnv):
        async def setup_state(self, state):
            state["board"] = [[0, 1]]

    (output,) = Env(dataset=ROWS[:1]).evaluate_sync(whet.ScriptedClient(echo), "m", state_columns=["board", "model"])[
        "outputs"
    ]
    assert (output["board"], output["model"]) == ([[0, 1]], "m")


def test_11_callbacks(tmp_path):
    seen = []
    make().evaluate_sync(
        whet.ScriptedClient(echo),
        "m",
        results_path=tmp_path / "r",
        on_start=lambda inputs, remaining: seen.append(("start", len(inputs), len(remaining))),
        on_progress=[lambda outputs, new, metadata: seen.append(("progress", len(outputs), len(new)))],
        on_log=lambda line: seen.append(("log", line)),
    )
    assert ("start", 3, 3) in seen
    assert [entry for entry in seen if entry[0] == "progress"][-1][1] == 3
    assert sum(entry[2] for entry in seen if entry[0] == "progress") == 3
    assert ("log", f"saving results to {tmp_path / 'r'}") in seen


def test_12_where_results_are_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client = whet.ScriptedClient(echo)
    make().evaluate_sync(client, "m", results_path=tmp_path / "mine")
    make().evaluate_sync(client, "a/b", save_results=True)
    make().evaluate_sync(client, "m")
    (own,) = tmp_path.glob("outputs/evals/e--a--b/*")
    for directory in (tmp_path / "mine", own):
        assert sorted(path.name for path in directory.iterdir()) == ["metadata.json", "results.jsonl"]
    assert len(list(tmp_path.rglob("results.jsonl"))) == 2


def test_13_a_run_that_broke_off_is_continued(tmp_path):
    env = make()
    env.generate_sync(env.get_dataset()[:2], whet.ScriptedClient(echo), "m", results_path=tmp_path)
    asked = []
    client = whet.ScriptedClient(lambda prompt: asked.append(echo(prompt)) or echo(prompt))
    outputs = env.evaluate_sync(client, "m", results_path=tmp_path)["outputs"]
    assert (asked, [output["reward"] for output in outputs]) == (["2"], [1.0] * 3)
    rows = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(row)["example_id"] for row in rows] == [0, 1, 2]


class ChatHandler(http.server.BaseHTTPRequestHandler):
    """A server that speaks chat completions and says what it was told."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": body["messages"][-1]["content"]}
        answer = {
            **{"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]},
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def url():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ChatHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["ClientConfig", "ClientConfig of two endpoints", "openai", "whet"])
def test_14_what_a_client_may_be(url, kind):
    from openai import AsyncOpenAI

    one = whet.EndpointConfig(api_base_url=url)
    client = {
        "ClientConfig": lambda: whet.ClientConfig(api_base_url=url),
        "ClientConfig of two endpoints": lambda: whet.ClientConfig(endpoint_configs=[one, one]),
        "openai": lambda: AsyncOpenAI(api_key="x", base_url=url),
        "whet": lambda: whet.OpenAIChatCompletionsClient(whet.ClientConfig(api_base_url=url)),
    }[kind]()
    results = make().evaluate_sync(client, "m")
    assert [output["reward"] for output in results["outputs"]] == [1.0] * 3
    assert url in results["metadata"]["base_url"]


def test_14_and_what_it_may_not():
    with pytest.raises(whet.WhetError, match="the client is int"):
        make().evaluate_sync(3, "m")


def test_15_one_rollout_and_one_group():
    env = make()
    row = env.get_dataset()[0]
    client = whet.ScriptedClient(echo)
    assert asyncio.run(env.run_rollout(row, client, "m", {}))["reward"] == 1.0
    assert [output["reward"] for output in asyncio.run(env.run_group([row, row], client, "m", {}))] == [1.0, 1.0]


def test_16_cancelling_cleans_up():
    cleaned = []

    class Env(whet.SingleTurnEnv):
        @whet.cleanup
        async def clean(self, state):
            await asyncio.sleep(0)
            cleaned.append(state["example_id"])

    async def run():
        begun = asyncio.Event()

        async def forever():
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(Env(dataset=ROWS).evaluate(whet.ScriptedClient(forever), "m"))
        await begun.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert sorted(cleaned) == [0, 1, 2]
