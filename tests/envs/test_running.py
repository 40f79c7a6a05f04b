"""The forms in which trainers call `run_rollout`, `run_group`, `generate` and the scoring of rubrics, from 0.1.8 on."""

import asyncio

import pytest

import whet
from whet.clients.config import ClientConfig
from whet.clients.make import made_from_config, resolve_client

ROWS = [{"question": "a", "answer": "a"}, {"question": "b", "answer": "b"}]


def right(completion, answer) -> float:
    return float(completion[-1]["content"] == answer)


@pytest.fixture
def env():
    return whet.SingleTurnEnv(dataset=ROWS, rubric=whet.Rubric(funcs=[right]))


@pytest.fixture
def client():
    return whet.ScriptedClient(lambda state, turn: state["prompt"][-1]["content"])


class Sem:
    """A limit that counts how often it is entered and how many are inside at most."""

    def __init__(self):
        self.entered = self.inside = self.most = 0

    async def __aenter__(self):
        self.entered += 1
        self.inside += 1
        self.most = max(self.most, self.inside)

    async def __aexit__(self, *_):
        self.inside -= 1


def test_run_group_of_0_1_10_returns_rows(env, client):
    rows = asyncio.run(env.run_group(list(env.get_dataset(1)) * 2, client, "m", {}, 0, ["trajectory_id"]))
    assert [(row["reward"], "trajectory_id" in row) for row in rows] == [(1.0, True)] * 2
    assert not isinstance(rows[0], whet.State)


@pytest.mark.parametrize("independent", [False, True])
def test_run_group_scores_each_rollout_by_itself_where_it_is_asked_to(env, client, independent):
    rows = list(env.get_dataset(1)) * 2
    rows = asyncio.run(
        env.run_group(rows, client, "m", {}, state_columns=["advantage"], independent_scoring=independent)
    )
    assert [(row["reward"], row["advantage"] is None) for row in rows] == [(1.0, independent)] * 2


@pytest.mark.parametrize("by_position", [False, True])
def test_run_group_of_0_1_9_returns_scored_states_within_its_limits(env, client, by_position):
    generating, scoring = Sem(), Sem()
    inputs = list(env.get_dataset(1)) * 3
    if by_position:
        call = env.run_group(inputs, client, "m", {"temperature": 0.5}, generating, scoring)
    else:
        call = env.run_group(
            group_inputs=inputs, client=client, model="m", gen_sampling_args={"temperature": 0.5},
            gen_sem=generating, score_sem=scoring,
        )  # fmt: skip
    states = asyncio.run(call)
    assert all(isinstance(state, whet.State) for state in states)
    assert [(state["reward"], state["advantage"]) for state in states] == [(1.0, 0.0)] * 3
    assert states[0]["sampling_args"] == {"temperature": 0.5}
    assert (generating.entered, scoring.entered, generating.inside, scoring.inside) == (3, 1, 0, 0)


def test_one_limit_for_generating_and_scoring_does_not_block(env, client):
    async def run():
        sem = asyncio.Semaphore(1)
        return await env.run_group(list(env.get_dataset(1)) * 2, client, "m", {}, sem, sem)

    assert [state["reward"] for state in asyncio.run(asyncio.wait_for(run(), 30))] == [1.0, 1.0]


def test_run_group_of_0_1_9_without_scoring(env, client):
    call = env.run_group(list(env.get_dataset(1)), client, "m", gen_sampling_args={}, gen_sem=Sem(), score=False)
    (state,) = asyncio.run(call)
    assert (state["reward"], state["error"], state["completion"][-1]["content"]) == (None, None, "a")


@pytest.mark.parametrize("version", ["0.1.8", "0.1.9"])
def test_run_rollout_of_older_0_1_returns_a_state_to_be_scored_by_the_rubric(env, client, version):
    (row, *_) = env.get_dataset()
    generating, scoring = Sem(), Sem()

    async def run():
        if version == "0.1.8":
            state = await env.run_rollout(generating, row, client, "m", {"temperature": 0.5})
        else:
            state = await env.run_rollout(row, client, "m", gen_sampling_args={"temperature": 0.5}, gen_sem=generating)
        assert isinstance(state, whet.State)
        assert (state["reward"], state["sampling_args"]) == (None, {"temperature": 0.5})
        await env.rubric.score_rollout(state, score_sem=scoring)
        return state

    assert asyncio.run(run())["reward"] == 1.0
    assert (generating.entered, scoring.entered) == (1, 1)


@pytest.mark.parametrize("kind", ["group of rubrics", "group of environments"])
def test_rubrics_of_every_kind_score_within_a_limit(kind, client):
    single = whet.SingleTurnEnv(dataset=ROWS, rubric=whet.RubricGroup([whet.Rubric(funcs=[right])]))
    env = whet.EnvGroup([single]) if kind == "group of environments" else single
    scoring = Sem()

    async def run():
        states = await env.run_group(list(env.get_dataset(1)), client, "m", {}, Sem(), None, score=False)
        await env.rubric.score_group(states, score_sem=scoring)
        return states

    assert asyncio.run(run())[0]["reward"] == 1.0
    assert scoring.entered == 1


def test_run_rollout_of_0_1_10_returns_a_row(env, client):
    row = asyncio.run(env.run_rollout(env.get_dataset()[0], client, "m", {}, state_columns=["model"]))
    assert (row["reward"], row["model"]) == (1.0, "m")


class Elsewhere:
    """Runs an environment in another process, as trainers' environment servers do."""

    def __init__(self):
        self.calls = []

    async def run_group(self, inputs, config, model, sampling_args, max_retries, state_columns):
        self.calls.append((len(inputs), config.api_base_url, model, max_retries, state_columns))
        return ["rows"]

    async def run_rollout(self, row, config, model, sampling_args, max_retries, state_columns):
        self.calls.append((row["question"], config.api_base_url, model, max_retries, state_columns))
        return "row"


def test_rollouts_are_those_of_an_env_client_where_one_is_set(env):
    elsewhere = env.env_client = Elsewhere()
    urls = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]
    config = ClientConfig(client_idx=1, endpoint_configs=[{"api_base_url": url} for url in urls])
    assert asyncio.run(env.run_group(list(env.get_dataset(1)), config, "m", {}, 2, ["x"])) == ["rows"]
    assert asyncio.run(env.run_rollout(env.get_dataset()[0], config, "m", {})) == "row"
    assert elsewhere.calls == [(1, urls[1], "m", 2, ["x"]), ("a", urls[1], "m", 0, None)]
    with pytest.raises(whet.WhetError, match="client must be a ClientConfig where Elsewhere runs"):
        asyncio.run(env.run_group([], whet.ScriptedClient([]), "m", {}))


def test_generate_takes_the_arguments_of_older_0_1(env, client):
    outputs = env.evaluate_sync(
        client, "m", max_concurrent_generation=1, max_concurrent_scoring=4, save_every=10, use_tqdm=False
    )
    assert outputs["metadata"]["avg_reward"] == 1.0
    with pytest.raises(whet.WhetError, match=r"push_to_hf_hub=True.*huggingface_hub package"):
        env.evaluate_sync(client, "m", push_to_hf_hub=True)
    with pytest.raises(whet.WhetError, match=r"no argument 'max_concurent'. Did you mean 'max_concurrent'"):
        env.evaluate_sync(client, "m", max_concurent=3)


def test_a_client_of_a_package_is_known_by_its_base_class_and_left_open(env):
    openai = pytest.importorskip("openai")

    class Traced(openai.AsyncOpenAI):
        """As instrumentation makes them."""

        closed = 0

        async def close(self):
            Traced.closed += 1

    traced = Traced(api_key="k", base_url="http://127.0.0.1:9/v1", max_retries=0)
    assert isinstance(resolve_client(traced), whet.OpenAIChatCompletionsClient)
    (row,) = asyncio.run(env.generate(env.get_dataset(1), traced, "m"))["outputs"]
    assert row["error"]["error"] == "EndpointDownError"
    assert Traced.closed == 0
    assert not made_from_config(traced)

    class AsyncOpenAI:
        """Of another package."""

    with pytest.raises(whet.WhetError, match="the client is AsyncOpenAI"):
        resolve_client(AsyncOpenAI())


def test_a_client_that_does_without_the_constructor_of_client_answers(env):
    class Own(whet.Client):
        def __init__(self):
            self.asked = 0

        async def get_response(self, prompt, model, sampling_args, tools=None, **kwargs):
            self.asked += 1
            message = whet.ResponseMessage(content=prompt[-1]["content"], finish_reason="stop", is_truncated=False)
            return whet.Response(id="1", created=0, model=model, usage=None, message=message)

    own = Own()
    outputs = env.evaluate_sync(own, "m")
    assert (outputs["metadata"]["avg_reward"], outputs["metadata"]["base_url"], own.asked) == (1.0, "", 2)
    assert own.config is None
    own.logger.debug("it has a logger")


def test_a_trainer_of_0_1_9_can_take_a_state_apart_and_put_it_together(env, client):
    """As the environment workers of prime-rl do, which send states between processes."""
    row = env.get_dataset()[0]
    call = env.run_group([whet.RolloutInput(**row)], client, "m", gen_sampling_args={}, gen_sem=Sem(), score_sem=Sem())
    (state,) = asyncio.run(call)
    timing = dict(state.get("timing", {}))
    assert timing["generation_ms"] == state["timing"]["generation"]["duration"] * 1000
    assert timing["total_ms"] == timing["total"] * 1000
    assert "scoring_ms" in state["timing"]
    assert dict(timing["setup"]).keys() == {"start", "end", "duration"}
    plain = state.copy()
    given = plain.pop("input")
    fields = {field: given[field] for field in whet.State.INPUT_FIELDS if field in given}
    again = whet.State(**{**plain, "input": fields})
    again["trajectory"] = [whet.TrajectoryStep(**step) for step in again["trajectory"]]
    assert again["prompt"][0].content == "a"
    assert again["trajectory"][0]["completion"][0].content == "a"


def test_a_printed_environment_is_its_configuration_without_rows_and_secrets() -> None:
    def correct(completion) -> float:
        return 1.0

    def search(query: str) -> str:
        """Look something up."""
        return query

    env = whet.ToolEnv(
        dataset=[{"question": "a-question-of-the-dataset", "answer": "1"}] * 3,
        tools=[search],
        max_turns=4,
        rubric=whet.Rubric(funcs=[correct], weights=[0.5]),
        system_prompt="long " * 1000,
        env_id="lookup",
        env_args={"n": 3, "judge_api_key": "sk-canary-canary", "url": "http://me:hunter22@h/"},
    )
    shown = repr(env)
    assert shown.startswith("ToolEnv(env_id='lookup', env_args={")
    for part in ("'n': 3", "dataset=3", "tool_defs=['search']", "max_turns=4", "'correct': 0.5"):
        assert part in shown
    assert not any(text in shown for text in ("a-question", "canary", "hunter22", " at 0x", "\n"))
    assert len(shown) < 500
    assert repr(whet.ToolEnv.__new__(whet.ToolEnv)) == "ToolEnv()"
