"""`v1:` against verifiers 0.4 and the tasksets of its checkout (`make v1`), played by whet/tiny."""

import asyncio
import json
from pathlib import Path

import pytest

import whet
from whet.cli.main import main
from whet.errors import ConfigError
from whet.inference.loading import load_policy
from whet.rl.data.batch import sequences_of

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-v1"
PYTHON = str(VENV / "bin" / "python")
TASKSETS = VENV / "verifiers" / "environments"
FORKS = Path(__file__).parent / "v1_forks"
SAMPLING = {"max_tokens": 24, "temperature": 1.0}

pytestmark = [pytest.mark.parts, pytest.mark.timeout(1200)]

# Tasksets with data sets of the Hugging Face Hub, as far as they read them: a folder of that name is taken instead.
DATA = {
    "PrimeIntellect/Reverse-Text-RL": [{"prompt": word} for word in ("stone", "river", "cloud", "maple")],
    "openai/gsm8k": [{"question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"}],
    "kalomaze/alphabetic-arxiv-authors-it1": [{"names": [f"{a}{b}" for a in ("Ada", "Bob") for b in ("Lee", "Kay")]}],
}
NULL = {"agent": {"harness": {"id": "null"}}}
CASES = {
    "alphabet_sort": {"taskset": {"min_turns": 2, "max_turns": 2, "max_names_per_turn": 2}},
    "bash_interception": {"env": NULL},
    "code_golf": {},
    "glossary": {},
    "gsm8k": {"taskset": {"split": "train"}},
    "interception": {},
    "kuhn_poker": {"agent": "player0"},
    "reverse_text": {},
    "scratchpad": {},
    "web_search_interception": {"env": NULL},
}


@pytest.fixture(autouse=True)
def tasksets(need, tmp_path, monkeypatch):
    need("v1", "tasksets")
    monkeypatch.chdir(tmp_path)
    for name, rows in DATA.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = "main" if name == "openai/gsm8k" else "default"
        card = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: train\n    path: rows.jsonl\n---\n"
        (tmp_path / name / "README.md").write_text(card)


@pytest.fixture(scope="module")
def policy():
    return load_policy("whet/tiny", threads=1, seed=0)


class Engine:
    """The engine of a policy, and all that it has sampled."""

    def __init__(self, engine):
        self._engine, self.samples = engine, []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def sample(self, request, **options):
        sample = await self._engine.sample(request, **options)
        self.samples.append((list(request.prompt_ids), list(sample.ids), list(sample.logprobs)))
        return sample


def play(path, client, n=1, episodes=None, **kwargs):
    """The states of a rollout of each of the first tasks; `episodes` gets what verifiers returned, by trajectory id."""

    async def played():
        env = whet.load_environment(f"v1:{path}", python=PYTHON, num_train_examples=n, **kwargs)
        take = env._take

        async def taken(state, episode, recorder):
            if episodes is not None:
                episodes[state["trajectory_id"]] = episode
            await take(state, episode, recorder)

        env._take = taken
        try:
            rows = list(env.get_dataset())
            states = await asyncio.gather(*(env.rollout(row, client, "whet/tiny", dict(SAMPLING)) for row in rows))
            await asyncio.gather(*(env.rubric.score_rollout(state) for state in states))
            return states
        finally:
            await env.close()

    return asyncio.run(played())


def branches_of(trace):
    """The token ids of each branch as verifiers has them."""
    parents = {node.parent for node in trace.nodes}
    for leaf in set(range(len(trace.nodes))) - parents:
        ids, node = [], leaf
        while node is not None:
            ids, node = trace.nodes[node].ids + ids, trace.nodes[node].parent
        yield ids


def check_tokens(state, traces, samples):
    """What is trained on is what verifiers holds for the branches of these traces, and what the engine sampled."""
    trained = sequences_of(state["trajectory"], temperature=1.0, rollout="")
    held = [ids for trace in traces for ids in branches_of(trace)]
    assert sorted(sequence.ids.tolist() for sequence in trained) == sorted(held)
    assert len(state["trajectory"]) == sum(node.sampled for trace in traces for node in trace.nodes)
    for step in state["trajectory"]:
        tokens = step["tokens"]
        assert (tokens["prompt_ids"], tokens["completion_ids"], tokens["completion_logprobs"]) in samples
    assert sum(int(sequence.trained.sum()) for sequence in trained) == sum(
        len(step["tokens"]["completion_ids"]) for step in state["trajectory"]
    )


@pytest.mark.parametrize("name", CASES)
def test_a_taskset_is_played_token_by_token(policy, name, monkeypatch):
    engine, episodes = Engine(policy.engine), {}
    monkeypatch.setattr(policy.client, "engine", engine)
    (state,) = play(TASKSETS / name, policy.client, episodes=episodes, **CASES[name])
    assert (state["error"], isinstance(state["reward"], float)) == (None, True)
    agent = CASES[name].get("agent")
    traces = [trace for trace in episodes[state["trajectory_id"]].traces if agent in (None, trace.agent)]
    check_tokens(state, traces, engine.samples)


def test_branches_are_those_of_the_episode(policy, monkeypatch):
    engine, episodes = Engine(policy.engine), {}
    monkeypatch.setattr(policy.client, "engine", engine)
    states = play(FORKS, policy.client, n=2, episodes=episodes)
    for state in states:
        assert (state["reward"], state["metrics"]["branches"], len(state["trajectory"])) == (0.4, 3.0, 4)
        check_tokens(state, episodes[state["trajectory_id"]].traces, engine.samples)


class Messages(whet.Client):
    """A policy that is known by its messages alone, as one of another process is."""

    def __init__(self, policy):
        super().__init__(None)
        self._policy = policy

    async def get_response(self, *args, **kwargs):
        return await self._policy.get_response(*args, **kwargs)

    async def release(self, state):
        await self._policy.release(state)


def test_a_policy_of_another_process_is_trained_token_by_token_too(policy, monkeypatch):
    engine = Engine(policy.engine)
    monkeypatch.setattr(policy.client, "engine", engine)
    (state,) = play(FORKS, Messages(policy.client))
    sequences = sequences_of(state["trajectory"], temperature=1.0, rollout="")
    assert (state["reward"], len(state["trajectory"]), len(sequences)) == (0.4, 4, 3)
    for step in state["trajectory"]:
        tokens = step["tokens"]
        assert (tokens["prompt_ids"], tokens["completion_ids"], tokens["completion_logprobs"]) in engine.samples


def test_a_model_behind_an_endpoint_calls_the_tools_of_a_task():
    def answer(prompt):
        if prompt[-1]["role"] == "tool":
            return f"<answer>{prompt[-1]['content']}</answer>"
        name = prompt[-1]["content"].split('"')[1]
        return whet.AssistantMessage("", tool_calls=[whet.ToolCall("c", "facts_lookup", json.dumps({"name": name}))])

    states = play(TASKSETS / "glossary", whet.ScriptedClient(answer), n=2)
    assert [(state["reward"], state["error"]) for state in states] == [(1.0, None)] * 2
    assert [message["role"] for message in states[0]["completion"]] == ["assistant", "tool", "assistant"]
    assert [tool["name"] for tool in states[0]["tool_defs"]] == ["facts_lookup"]


def test_a_group_of_solvers_has_the_mean_of_their_rewards():
    problem = '{"problem": "What is 2 + 3?", "answer": 5}'

    def answer(prompt):
        return problem if "Invent ONE" in prompt[-1]["content"] else "5"

    (state,) = play(TASKSETS / "proposer_solver", whet.ScriptedClient(answer), agent="solver", env={"n": 2})
    assert (state["reward"], len(state["trajectory"]), state["metrics"]["correct"]) == (1.0, 2, 1.0)
    assert state["metrics"]["proposer_solve_rate"] == 1.0


def test_an_episode_that_fails_is_an_error_without_a_reward(policy):
    (state,) = play(TASKSETS / "proposer_solver", policy.client, agent="solver")
    assert (type(state["error"]).__name__, state["reward"]) == ("EnvError", None)
    assert "proposer did not end with the JSON contract" in str(state["error"])


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("kuhn_poker", {}, 'name the one that is, args = { agent = "player0" }'),
        ("glossary", {"env": {"agent": {"harness": {"id": "bash"}}}}, "runs what the model writes on this machine"),
        ("glossary", {"env": {"agnet": {}}}, "agnet"),
        ("glossary", {"taskset": {"splti": "train"}}, "splti"),
    ],
)
def test_a_mistake_is_one_message(name, kwargs, words):
    with pytest.raises(ConfigError) as raised:
        play(TASKSETS / name, whet.ScriptedClient(lambda prompt: "x"), **kwargs)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_killed_process_is_an_error_of_its_rollouts_and_is_started_again(policy):
    async def played():
        env = whet.load_environment(f"v1:{FORKS}", python=PYTHON, num_train_examples=1)
        try:
            (row,) = env.get_dataset()
            client = whet.ScriptedClient(lambda prompt: env._process._process.kill() or "x")
            lost = await env.rollout(row, client, "m", {})
            played = await env.rollout(row, whet.ScriptedClient(lambda prompt: "x"), "m", {})
            return lost, played
        finally:
            await env.close()

    lost, played = asyncio.run(played())
    assert (type(lost["error"]).__name__, lost["trajectory"]) == ("InfraError", [])
    assert (played["error"], len(played["trajectory"])) == (None, 4)


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(inner)}" for name, inner in value.items()) + "}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


def test_the_tiny_model_learns_a_taskset(tmp_path):
    (tmp_path / "similar.py").write_text(
        "from difflib import SequenceMatcher\n\n"
        "async def similarity(task, trace):\n"
        "    return SequenceMatcher(None, trace.last_reply, task.prompt.split()[-1][::-1]).ratio()\n"
    )
    instruction = "Reverse the text. Answer with the reversed text only.\n\n"
    words = [{"prompt": instruction + word} for word in ("stone", "river", "cloud", "maple")]
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "train.jsonl").write_text("".join(json.dumps(word) + "\n" for word in words))
    args = {
        "python": PYTHON,
        "num_train_examples": 4,
        "system_prompt": "",
        "taskset": {"dataset_name": "words", "task": {"rewards": {"lcs": {"fn": f"{tmp_path}/similar.py:similarity"}}}},
    }
    config = {
        "model": "whet/tiny", "max_steps": 10, "batch_size": 32, "rollouts_per_example": 8, "learning_rate": 5e-4,
        "seed": 0, "runs_directory": str(tmp_path), "sampling": {"max_tokens": 12},
        "env": [{"id": f"v1:{TASKSETS / 'reverse_text'}", "name": "reverse", "args": args}],
    }  # fmt: skip
    path = tmp_path / "reverse.toml"
    path.write_text("".join(f"{name} = {toml(value)}\n" for name, value in config.items()))
    assert main(["train", "run", str(path), "--name", "reverse"]) == 0
    steps = [json.loads(line) for line in (tmp_path / "reverse" / "metrics.jsonl").read_text().splitlines()]
    rewards = [step["reward/mean"] for step in steps if "reward/mean" in step]
    assert rewards[-1] > rewards[0] + 0.1
