"""Token truth of demonstrations: what is imitated is what an engine would have been given and would have sampled.

1. The answer to a prompt, in every shipped format: prompt and answer together are the conversation as the format
   writes it, the answer is read back as the message it says, and it ends with the token that ends a turn.
2. It is what the package itself marks as sampled, without what the prompt has given already.
3. A conversation of several turns is the rollout in which the model said it: the same ids, the same branches, and
   exactly the sampled tokens carry loss.
4. Rollouts of real environments, read back from their messages, are the tokens that the model sampled.
5. Where a format leaves no exact answer, one line says so.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from renderers.base import template_field_names
from scripted_engine import OPENING, TOOL
from scripts.tiny_model.tokenizer import build_tokenizer
from small_tokenizers import byte_pairs
from test_shipped_templates import COVERED, ONE_CALL_ONLY, SAID, native, package_of, renderer_of
from test_unknown_templates import BRANCHED, CONTINUED, MARKERS, NO_END

import whet
from whet.errors import DatasetError, ModelError
from whet.inference.loading import load_policy
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.inference.rendering.writing import answer_ids
from whet.rl.data.batch import sequences_of
from whet.rl.sft.rows import TrainingConversation, conversation_of, conversation_tokens
from whet.rollouts.results import state_to_output
from whet.types import AssistantMessage, Messages, SystemMessage, ToolCall, ToolMessage, UserMessage

WRAPPED = [{"type": "function", "function": dict(TOOL)}]


def thinking_for(name: str, answer: AssistantMessage) -> bool | None:
    """The switch that fits a message, where a format has one."""
    if {"enable_thinking", "thinking"} & template_field_names(package_of(name).config):
        return answer.get("reasoning_content") is not None
    return None


FEWEST = {"deepseek-r1": 0, "minimax-m2": 2}
"""Formats that open a thought, take none in the one case, and always want one in the other."""


def answer_or_refusal(
    renderer: ChatRenderer, answer: AssistantMessage, thinking: bool | None = None
) -> tuple[list[int], str]:
    try:
        return answer_ids(renderer, OPENING, answer, [TOOL], enable_thinking=thinking), ""
    except ModelError as error:
        return [], str(error)


def answers_to_try(name: str) -> list[AssistantMessage]:
    return [answer for answer in SAID if name not in ONE_CALL_ONLY or len(answer.get("tool_calls") or []) < 2]


@pytest.mark.parametrize("name", COVERED)
def test_1_prompt_and_answer_are_the_conversation_as_the_format_writes_it(name: str) -> None:
    renderer, tried = renderer_of(name), 0
    for answer in answers_to_try(name):
        thinking = thinking_for(name, answer)
        ids, refused = answer_or_refusal(renderer, answer, thinking)
        if refused:
            assert "enable_thinking" in refused or "reasoning_content" in refused
            continue
        tried += 1
        prompt = renderer.render(OPENING, [TOOL], enable_thinking=thinking)
        results: Messages = [ToolMessage("", call["id"], name=call["name"]) for call in answer.get("tool_calls") or []]
        wholes = [
            renderer.render([*OPENING, answer, *after], [TOOL], enable_thinking=thinking, open_turn=False)
            for after in ([], results or [UserMessage("next")])
        ]
        assert any(renderer.decode(whole).startswith(renderer.decode(prompt + ids)) for whole in wholes)
        assert [token in renderer.stop_token_ids for token in ids].index(True) == len(ids) - 1
        if not answer.get("tool_calls"):
            read = renderer.parse(ids, prompt_ids=prompt, tools=[TOOL], enable_thinking=thinking)
            assert str(read.content).split() == str(answer.content).split()
            assert str(read.get("reasoning_content") or "").split() == str(answer.reasoning_content or "").split()
    assert tried >= FEWEST.get(name, len(answers_to_try(name)) - 2)


@pytest.mark.parametrize("name", COVERED)
def test_2_the_answer_is_what_the_package_marks_as_sampled(name: str) -> None:
    renderer, answer = renderer_of(name), AssistantMessage("plain")
    ids, refused = answer_or_refusal(renderer, answer)
    if refused:
        assert renderer.decode(renderer.render(OPENING, [TOOL])).rstrip().endswith("<think>")
        return
    ours, found = renderer.decode(ids).strip(), []
    for after in ([], [UserMessage("next")]):
        rendered = package_of(name).render(native([*OPENING, answer, *after]), tools=WRAPPED)
        marks = zip(rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True)
        found.append(renderer.decode([token for token, place, mark in marks if mark and place == len(OPENING)]).strip())
    given = [theirs.removesuffix(ours) for theirs in found if theirs.endswith(ours)]
    prompt = renderer.decode(renderer.render(OPENING, [TOOL])).rstrip()
    assert any(prompt.endswith(text.rstrip()) for text in given)


def conversation(turns: int, *, calls: bool) -> Messages:
    messages: Messages = [SystemMessage("Be terse."), UserMessage("What is 1 plus 2?")]
    for turn in range(turns):
        if calls and turn % 2 == 0:
            made = [ToolCall(f"functions.calculate:{turn}", "calculate", '{"expression": "1+2"}')]
            messages += [AssistantMessage("", tool_calls=made), ToolMessage("3", made[0].id, name="calculate")]
        else:
            messages += [AssistantMessage(f"It is {turn}."), UserMessage("And then?")]
    return [*messages, AssistantMessage("Done.")]


def imitated(renderer: ChatRenderer, messages: Messages, trained: set[int] | None = None) -> list[Any]:
    places = {place for place, message in enumerate(messages) if message["role"] == "assistant"}
    said = TrainingConversation(messages, [TOOL], frozenset(trained or places))
    return conversation_tokens(said, renderer, enable_thinking=None, name="row 1")


@pytest.mark.parametrize("name", ["qwen3", "llama-3", "glm-5.3", "kimi-k2", "gemma4", "nemotron-3", "whet/tiny"])
def test_3_a_conversation_is_the_rollout_in_which_the_model_said_it(name: str) -> None:
    renderer = ChatRenderer(build_tokenizer()) if name == "whet/tiny" else renderer_of(name)
    messages = conversation(3, calls=False)
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    thinking = None if name == "whet/tiny" else thinking_for(name, AssistantMessage("plain"))
    answers = [answer_ids(renderer, messages[:place], messages[place], enable_thinking=thinking) for place in said]
    prompts: list[list[int]] = []
    for number, place in enumerate(said):
        if number == 0:
            prompts.append(renderer.render(messages[:place], enable_thinking=thinking))
            continue
        earlier, new = messages[: place - 1], messages[place - 1 : place]
        prompt = renderer.extend(prompts[-1], answers[number - 1], earlier, new, enable_thinking=thinking)
        assert prompt is not None
        prompts.append(prompt)
    turns: Any = [
        {
            "tokens": {
                "prompt_ids": prompt,
                "completion_ids": ids,
                "completion_mask": [1] * len(ids),
                "completion_logprobs": [0.0] * len(ids),
            }
        }
        for prompt, ids in zip(prompts, answers, strict=True)
    ]
    expected = sequences_of(turns, temperature=1.0, rollout="")
    found = conversation_tokens(
        TrainingConversation(messages, [], frozenset(said)), renderer, enable_thinking=thinking, name="row 1"
    )
    assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in expected]
    assert [one.trained.tolist() for one in found] == [one.trained.tolist() for one in expected]
    assert len(found) == 1
    assert renderer.decode(found[0].ids[found[0].trained].tolist()).count("It is") == 3


def test_3_only_the_chosen_messages_carry_loss() -> None:
    renderer = ChatRenderer(build_tokenizer())
    messages = conversation(3, calls=True)
    last = len(messages) - 1
    (sequence,) = imitated(renderer, messages, {last})
    assert renderer.decode(sequence.ids[sequence.trained].tolist()) == "Done.<|im_end|>"
    (whole,) = imitated(renderer, messages)
    assert whole.ids.tolist() == sequence.ids.tolist()


@pytest.mark.parametrize("kind", CONTINUED)
def test_3_also_with_a_template_nobody_knows(kind: str) -> None:
    tokenizer = byte_pairs(MARKERS, eos="</s>")
    tokenizer.chat_template = CONTINUED[kind]
    renderer = ChatRenderer(tokenizer)
    (sequence,) = imitated(renderer, conversation(3, calls=True))
    said = renderer.decode(sequence.ids[sequence.trained].tolist())
    assert said.count("</s>") == 4
    assert "What is" not in said
    assert "And then" not in said


@pytest.mark.parametrize("env_id", ["calculator", "arithmetic"])
def test_4_rollouts_read_back_from_their_messages_are_the_tokens_that_were_sampled(env_id: str) -> None:
    env, policy = whet.load_environment(env_id, num_train=8), load_policy("whet/tiny")

    async def rollouts() -> list[Any]:
        settings = {"temperature": 0.7, "max_tokens": 48, "seed": 0}
        return await asyncio.gather(
            *(env.rollout(row, policy.client, "whet/tiny", settings) for row in env.get_dataset())
        )

    compared = 0
    for state in asyncio.run(rollouts()):
        if state["error"] or state["is_truncated"]:
            continue  # what was cut off or malformed is no message to imitate
        row = json.loads(json.dumps(state_to_output(state), default=str))
        said = conversation_of(row, "assistant")
        found = conversation_tokens(said, policy.renderer, enable_thinking=None, name="")
        sampled = sequences_of(state["trajectory"], temperature=0.7, rollout="")
        assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in sampled]
        assert [one.trained.tolist() for one in found] == [one.trained.tolist() for one in sampled]
        compared += 1
    assert compared >= 5


@pytest.mark.parametrize(
    ("template", "answer", "reason"),
    [
        (NO_END, "b", "no token that ends an answer"),
        (BRANCHED["shows the latest message first"], "b", "opens the model's turn"),
        (BRANCHED["numbers the messages"], "b", "does not write the content"),
        (CONTINUED["extends cleanly"], "b</s>c", "holds '</s>'"),
    ],
)
def test_5_where_there_is_no_exact_answer_one_line_says_so(template: str, answer: str, reason: str) -> None:
    tokenizer = byte_pairs(MARKERS, eos="</s>")
    tokenizer.chat_template = template
    with pytest.raises(DatasetError, match=reason):
        imitated(ChatRenderer(tokenizer), [UserMessage("a"), AssistantMessage(answer)])
