"""A trainer that calls `rollout` and `rubric.score_rollout` itself, with a client of its own, as rLLM's example."""

import asyncio

import pytest
from openai.types.chat import ChatCompletion

import whet
from whet.compat.names import maybe_semaphore


class Completions:
    def __init__(self, answers):
        self.answers = answers

    async def create(self, *, model, messages, tools=None, **kwargs):
        message = {"role": "assistant", "content": self.answers.pop(0)}
        logprobs = {"content": [{"token": "x", "logprob": -0.5, "top_logprobs": []}]}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": logprobs}
        answer = ChatCompletion.model_validate(
            {"id": "1", "created": 0, "model": model, "object": "chat.completion", "choices": [choice]}
        )
        answer.choices[0].token_ids, answer.prompt_token_ids = [7], [1, 2]
        return answer


class OwnClient:
    def __init__(self, *answers):
        self.base_url, self.chat = "http://inside", self
        self.completions = Completions(list(answers))


def scored(env, client):
    async def attempt():
        state = await env.rollout(input=env.get_dataset()[0], client=client, model="m", sampling_args={})
        await env.rubric.score_rollout(state, score_sem=await maybe_semaphore(-1))
        return state

    return asyncio.run(attempt())


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


ENV = whet.SingleTurnEnv(dataset=[{"question": "1 + 1", "answer": "2"}], rubric=whet.Rubric([right]))


def test_rollout_answers_with_ids_and_a_reward_per_step():
    state = scored(ENV, OwnClient("2"))
    (step,) = state["trajectory"]
    assert (step["tokens"]["prompt_ids"], step["tokens"]["completion_ids"]) == ([1, 2], [7])
    assert step["tokens"]["completion_logprobs"] == [-0.5]
    assert step["reward"] == state["reward"] == 1.0


def test_failed_rollout_raises_its_error_instead_of_a_reward():
    with pytest.raises(whet.ModelError, match="pop from empty list"):
        scored(ENV, OwnClient())
