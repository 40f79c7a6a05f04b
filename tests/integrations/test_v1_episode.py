"""What comes back of an episode of verifiers 0.4: which recorded calls become turns, and what is refused."""

import asyncio

import pytest

import whet
from whet.errors import EnvError, InfraError, ModelError, OverlongPromptError
from whet.integrations.v1_episode import EpisodeReply, error_of, turns_of
from whet.rollouts.states import new_state
from whet.types import Response, ResponseMessage, ResponseTokens, UserMessage

pytest.importorskip("uvicorn")
from whet.integrations.v1_gateway import Call, Recorder


def call(prompt_ids, completion_ids, trace="t", prompt=None):
    logprobs = [-0.5] * len(completion_ids)
    tokens = ResponseTokens(prompt_ids=prompt_ids, completion_ids=completion_ids, completion_logprobs=logprobs)
    message = ResponseMessage("", finish_reason="stop", is_truncated=False, tokens=tokens)
    return Call(trace, prompt, Response(id="r", model="m", message=message))


def node(parent, role, content, ids):
    message = {"role": role, "content": content}
    return {"parent": parent, "sampled": role == "assistant", "ids": ids, "message": message}


def episode(*nodes, ok=True, errors=()):
    trace = {
        "id": "t", "agent": "agent", "trainable": True, "reward": 1.0, "rewards": {}, "metrics": {}, "tools": [],
        "stop_condition": None, "is_truncated": False, "errors": list(errors), "nodes": nodes,
    }  # fmt: skip
    return EpisodeReply.model_validate({"ok": ok, "errors": [], "traces": [trace]})


NODES = [
    node(None, "user", "a", [1, 2]),
    node(0, "assistant", "b", [3, 4]),
    node(1, "user", "c", [5]),
    node(2, "assistant", "d", [6]),
    node(0, "assistant", "e", [9]),
]
CALLS = [call([1, 2, 3], [4]), call([1, 2], [9]), call([1, 2, 3, 4, 5], [6])]


def test_calls_get_the_messages_that_their_tokens_belong_to():
    turns = turns_of(CALLS, episode(*NODES).traces, whole=True)
    contents = [[*(message["content"] for message in prompt), response.message.content] for prompt, response in turns]
    assert contents == [["a", "b"], ["a", "e"], ["a", "b", "c", "d"]]
    assert [response.message.tokens["completion_ids"] for _, response in turns] == [[4], [9], [6]]


def test_a_call_in_no_message_or_of_another_trace_is_no_turn():
    calls = [*CALLS, call([7], [8]), call([1, 2], [9], trace="other")]
    assert len(turns_of(calls, episode(*NODES).traces, whole=True)) == 3


def test_a_call_of_messages_is_a_turn_as_it_is():
    prompt = [UserMessage("a")]
    ((given, response),) = turns_of([call([1], [2], prompt=prompt)], episode(*NODES).traces, whole=True)
    assert (given, response.message.tokens["completion_ids"]) == (prompt, [2])


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([*NODES, node(0, "assistant", "forged", [10])], "no engine has sampled"),
        ([node(0, "user", "a", [1])], "after none"),
        ([node(None, "nobody", "a", [1])], "a message that is none"),
    ],
)
def test_what_was_not_sampled_fails_the_episode(nodes, words):
    with pytest.raises(EnvError, match=words):
        turns_of(CALLS, episode(*nodes).traces, whole=True)


@pytest.mark.parametrize(
    ("name", "kind"), [("ProviderError", ModelError), ("SandboxError", InfraError), ("TaskError", EnvError)]
)
def test_a_failure_is_an_error_of_its_kind(name, kind):
    failed = episode(ok=False, errors=[{"type": name, "message": "it\nbroke"}])
    error = error_of(failed, Recorder({}))
    assert (type(error), str(error)) == (kind, f"the episode failed: {name}: it broke")


def test_the_models_own_error_counts_and_an_overlong_prompt_has_no_reward():
    failed, recorder = episode(ok=False, errors=[{"type": "ProviderError", "message": "502"}]), Recorder({})
    recorder.error = ModelError("the engine is gone")
    assert error_of(failed, recorder) is recorder.error
    recorder.error = OverlongPromptError("too long")
    assert type(error_of(failed, recorder)) is ModelError


def test_an_episode_that_was_cut_off_has_no_reward():
    env = whet.load_environment("v1:x", rubric=whet.Rubric(funcs=[lambda state: 1.0]))
    ended, cut = (new_state({"prompt": [], "answer": "", "info": {}}, None, "m", None) for _ in range(2))
    ended["v1_result"] = {"reward": 0.5, "metrics": {"m": 2.0}}
    for state in (ended, cut):
        asyncio.run(env.rubric.score_rollout(state))
    assert (ended["reward"], ended["metrics"]["m"]) == (1.5, 2.0)
    assert (type(cut["error"]), cut["reward"]) == (EnvError, None)
