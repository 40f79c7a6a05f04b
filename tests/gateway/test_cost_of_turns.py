"""What turn k of a conversation through a session costs: as much as the turns before it. Counted, not timed."""

import asyncio

import pytest

pytest.importorskip("torch")

import torch
from scripts.tiny_model.tokenizer import build_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from whet.gateway.wire import TurnRequest
from whet.inference.loading import load_policy
from whet.lazy_ids import PromptIds, unread
from whet.rl.data.batch import sequences_of
from whet.rollouts.token_rows import rollout_row
from whet.types import UserMessage

TURNS = 50
WHOLE = -1
"""In place of a count: the conversation was rendered from its beginning."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen3Config(
        vocab_size=512, **sizes, num_key_value_heads=1, head_dim=16, max_position_embeddings=4096
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(path)
    build_tokenizer().save_pretrained(path)
    return load_policy(str(path), seed=0)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_turn_renders_and_computes_only_what_is_new(policy, monkeypatch, streamed, recorded_session):
    session, engine = recorded_session(policy.client, "m"), policy.engine
    rendered, computed = [], []
    render, extend = policy.renderer.render, policy.renderer.extend

    def counted(prompt_ids, completion_ids, *rest, **more):
        ids = extend(prompt_ids, completion_ids, *rest, **more)
        rendered.append(len(ids) - len(prompt_ids) - len(completion_ids))
        return ids

    monkeypatch.setattr(policy.renderer, "extend", counted)
    monkeypatch.setattr(policy.renderer, "render", lambda *a, **more: (rendered.append(WHOLE), render(*a, **more))[1])

    async def talk():
        messages = [UserMessage("000")]
        for number in range(1, TURNS + 1):
            before, told = engine.stats.prefill_tokens, []
            request = TurnRequest("m", messages, sampling_args={"max_tokens": 4, "temperature": 0})
            await session.answer(request, told.append if streamed else None)
            assert bool(told) == streamed
            computed.append(engine.stats.prefill_tokens - before)
            messages = [*messages, *session.state["trajectory"][-1]["completion"], UserMessage(f"{number:03d}")]

    asyncio.run(talk())
    asyncio.run(policy.client.release(session.state))
    trajectory = session.state["trajectory"]
    (trained,) = sequences_of(trajectory, temperature=1.0, rollout="0")
    rollout_row(session.state, group="0", environment="e", advantage=None)
    prompts = [unread(step["tokens"], "prompt_ids") for step in trajectory]
    assert {type(prompt) for prompt in prompts} == {PromptIds}  # not yet lists: the rollout holds each token once
    assert sum(len(prompt._added) for prompt in prompts) < len(trained)
    assert rendered.pop(0) == WHOLE
    assert len(rendered) == TURNS - 1
    assert len({*rendered}) == 1
    # The last id of an answer was sampled, not read: the next turn computes it, but not the last id of its own prompt.
    assert computed[1:] == rendered
