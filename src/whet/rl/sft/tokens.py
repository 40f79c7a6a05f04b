"""A conversation as token sequences: those of a rollout in which the model had said it. Pure.

Every answer is a turn: its prompt is what an engine would have been given (the turn before, extended, or the whole
conversation rendered where the format cannot extend it), its completion what the model would have sampled. Turns
become sequences by `samples.py`, as rollouts do, so what is imitated is what the model is shown later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from whet.errors import DatasetError, ModelError
from whet.inference.rendering.writing import answer_ids
from whet.messages import whole_characters
from whet.rl.data.samples import TokenSequence, sequences_of
from whet.rl.sft.conversation import TrainingConversation
from whet.types import AssistantMessage, TrajectoryStep

if TYPE_CHECKING:
    from whet.inference.rendering.chat_renderer import ChatRenderer


def conversation_tokens(
    conversation: TrainingConversation, renderer: ChatRenderer, *, enable_thinking: bool | None, name: str
) -> list[TokenSequence]:
    """One sequence, or several where the format cannot go on from an answer. Raises `DatasetError`."""
    messages, tools = conversation.messages, conversation.tools or None
    turns: list[dict[str, Any]] = []
    last = max(conversation.trained)
    before: int | None = None
    for place in (place for place in conversation.answers if 0 < place <= last):
        try:
            prompt = None
            if before is not None and before + 1 < place:
                earlier = turns[-1]["prompt_ids"], turns[-1]["completion_ids"]
                new = messages[before + 1 : place]
                prompt = renderer.extend(*earlier, messages[: before + 1], new, tools, enable_thinking=enable_thinking)
            if prompt is None:
                prompt = renderer.render(messages[:place], tools, enable_thinking=enable_thinking)
            answer = answer_ids(
                renderer,
                messages[:place],
                cast(AssistantMessage, messages[place]),
                tools,
                enable_thinking=enable_thinking,
            )
        except ModelError as error:
            raise DatasetError(f"message {place}: {error}") from None
        turns.append(_turn(prompt, answer, carries_loss=place in conversation.trained))
        before = place
    return _sequences(turns, name)


def text_tokens(prompt: Any, completion: Any, renderer: ChatRenderer, *, name: str) -> list[TokenSequence]:
    """Plain text and how it goes on, ended by the model's end-of-text token. Raises `DatasetError`."""
    if not isinstance(prompt, str) or not isinstance(completion, str) or not prompt or not completion:
        raise DatasetError("with [data] text = true, prompt and completion should each be text that is not empty")
    end = renderer.tokenizer.eos_token_id
    if end is None:
        raise DatasetError("the model's tokenizer has no end-of-text token, so a completion could not end")
    prompt_ids = renderer.tokenizer.encode(whole_characters(prompt), add_special_tokens=True)
    answer = renderer.tokenizer.encode(whole_characters(completion), add_special_tokens=False)
    return _sequences([_turn(prompt_ids, [*answer, end], carries_loss=True)], name)


def recorded_tokens(turns: Sequence[dict[str, Any]], *, name: str) -> list[TokenSequence]:
    """The very tokens of a recorded rollout, as a trainer of the policy that sampled them saw them."""
    return _sequences(turns, name)


def _turn(prompt: list[int], answer: list[int], *, carries_loss: bool) -> dict[str, Any]:
    return {
        "prompt_ids": prompt,
        "prompt_mask": [0] * len(prompt),
        "completion_ids": answer,
        "completion_mask": [int(carries_loss)] * len(answer),
        "completion_logprobs": [0.0] * len(answer),
    }


def _sequences(turns: Sequence[dict[str, Any]], name: str) -> list[TokenSequence]:
    steps = [cast(TrajectoryStep, {"tokens": turn}) for turn in turns]
    return [found for found in sequences_of(steps, temperature=1.0, rollout=name) if found.trained.any()]
