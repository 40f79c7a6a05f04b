"""What a teacher is shown of a batch, and where what it makes of it belongs.

Self-distillation (`algorithm = "opsd"`): the teacher is the model itself, with a hint in its prompt. Of each token
that the student sampled, the teacher's log-probability is that after the longer prompt:

    student   prompt            answer    log p(answer | prompt)
    teacher   prompt + hint     answer    log q(answer | prompt, hint)

and the student learns by the KL to the teacher, as in distillation from another model. Sources: Hübotter et al. 2026,
Reinforcement Learning via Self-Distillation (SDPO, arXiv:2601.20802; hints are feedback); Shenfeld et al. 2026,
Self-Distillation Enables Continual Learning (SDFT, arXiv:2601.19897; hints are demonstrations). Here the KL is that of
the sampled tokens, not of whole distributions.

A hint is `state["hint"]`, which an environment may set until its rollout is scored (empty: none for this one), or else
`info["hint"]` of the row, or else its answer. It goes behind the last message of the user, as `hint_prompt` has it; to
plain text, before the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from whet.errors import TrainingError
from whet.inference.sampling_args import read_sampling_args
from whet.inference.token_sets import TokenSets
from whet.messages import whole_characters
from whet.rl.data.assembly import Assembled
from whet.rl.data.batch import UNKNOWN_VERSION, PackedBatch, TokenSequence, pack
from whet.rl.loop.group import Group
from whet.rl.sections.training import HINT
from whet.types import Messages, State, TextMessage, UserMessage

if TYPE_CHECKING:
    from whet.inference.rendering.chat_renderer import ChatRenderer


@dataclass(frozen=True, slots=True)
class HintedPrompts:
    """Makes the teacher's prompts."""

    renderer: ChatRenderer  # that of the policy, so that a prompt without a hint is the student's
    texts: Mapping[str, str]  # of environments by name: what holds the hint
    max_context: int

    def sequence(self, sequence: TokenSequence, environment: str, state: State) -> TokenSequence:
        """The sequence behind the prompt with the hint. Raises `TrainingError` where that cannot be made."""
        hint = hint_of(state)
        if hint is None:
            raise TrainingError(
                f'{sequence.rollout}: algorithm = "opsd" needs a hint, and the environment gives none: set '
                'info["hint"] or answer in its rows, or state["hint"] in its rollouts.'
            )
        if not hint:
            return sequence
        turn, start, _ = sequence.turns[0]
        prompt = state["trajectory"][turn]["prompt"]
        if self._render(prompt, state) != sequence.ids[:start].tolist():
            raise TrainingError(
                f'{sequence.rollout}, turn {turn + 1}: algorithm = "opsd" renders the prompt again, with a hint, and '
                "its messages are not what was sampled from. Environments that send token ids cannot be learned so."
            )
        ids = self._render(hinted(prompt, self.texts[environment].replace(HINT, hint)), state)
        if (length := len(ids) + len(sequence) - start) > self.max_context:
            raise TrainingError(
                f"{sequence.rollout}: with the hint it has {length} tokens, and the model takes {self.max_context}. "
                "Use shorter hints, or a smaller sampling.max_tokens."
            )
        return _behind(ids, sequence, start)

    def _render(self, messages: Messages, state: State) -> list[int]:
        thinking = read_sampling_args(state.get("sampling_args") or {}).enable_thinking
        return self.renderer.render(messages, state.get("tool_defs") or None, enable_thinking=thinking)


def hint_of(state: State) -> str | None:
    """What an environment gives as a hint; empty where this rollout has none, None where the environment gives none."""
    if state.get("hint") is not None:
        return str(state["hint"])
    for value in ((state.get("info") or {}).get("hint"), state.get("answer")):
        if value not in (None, ""):
            return str(value)
    return None


def hinted(prompt: Messages, text: str) -> Messages:
    """The messages with `text` behind the last one of the user. Raises `TrainingError` where there is none."""
    text = str(whole_characters(text))
    messages: list[Any] = list(prompt)
    number = next((n for n in reversed(range(len(messages))) if messages[n]["role"] in ("user", "text")), None)
    if number is None:
        raise TrainingError('algorithm = "opsd" puts the hint behind the last message of the user, and there is none.')
    message = messages[number]
    content: Any
    if message["role"] == "text":
        content = f"{text}\n\n{message['content']}"
    elif isinstance(message["content"], list):
        content = [*message["content"], {"type": "text", "text": text}]
    else:
        content = f"{message['content']}\n\n{text}"
    rest = {name: value for name, value in message.items() if name not in ("role", "content")}
    messages[number] = (TextMessage if message["role"] == "text" else UserMessage)(content, **rest)
    return messages


def _behind(ids: Sequence[int], sequence: TokenSequence, start: int) -> TokenSequence:
    """`ids`, and the tokens of the sequence from `start` on."""
    before, after = len(ids), np.arange(start, len(sequence))

    def joined(filler: Any, values: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([np.full(before, filler, values.dtype), values[after]])

    temperature, kept = sequence.temperature, sequence.kept
    return TokenSequence(
        ids=np.concatenate([np.asarray(ids, np.int32), sequence.ids[after]]),
        trained=joined(False, sequence.trained),
        logprobs=joined(0, sequence.logprobs),
        versions=joined(UNKNOWN_VERSION, sequence.versions),
        temperature=joined(1, temperature) if isinstance(temperature, np.ndarray) else temperature,
        rollout=sequence.rollout,
        kept=None if kept is None else TokenSets.joined([TokenSets.whole(before), kept.take(after)]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class TeacherView:
    """What the teacher is shown."""

    batch: PackedBatch
    targets: NDArray[np.int64]  # for each of its trained tokens in their order, where in the student's batch it is

    def to_student(self, logprobs_T: NDArray[np.float32], student: PackedBatch) -> PackedBatch:
        """The student's batch with the teacher's logprobs of the tokens that it was shown."""
        own_T = np.zeros(len(student.ids), np.float32)
        own_T[self.targets] = logprobs_T[self.batch.trained]
        return replace(student, teacher_logprobs=own_T)


def teacher_view(assembled: Assembled, groups: Sequence[Group], prompts: HintedPrompts | None) -> TeacherView | None:
    """Every sequence that is distilled, with its hint where its environment has them; None where there is none."""
    batch = assembled.batch
    if batch.distilled is None:
        return None
    rollouts = [
        (group.environment, state)
        for group, counts in zip(groups, assembled.branches, strict=True)
        for state, count in zip(group.states, counts, strict=True)
        for _ in range(count)
    ]
    shown, targets = list[TokenSequence](), list[NDArray[np.int64]]()
    for number in np.flatnonzero(batch.distilled).tolist():
        start, stop = batch.cu_seqlens[number : number + 2].tolist()
        trained = batch.trained[start:stop]
        if not trained.any():
            continue
        sequence = replace(assembled.sequences[number], trained=trained, experts=None)
        environment, state = rollouts[number]
        if prompts is not None and environment in prompts.texts:
            sequence = prompts.sequence(sequence, environment, state)
        shown.append(sequence)
        targets.append(start + np.flatnonzero(trained))
    return TeacherView(pack(shown), np.concatenate(targets)) if shown else None
