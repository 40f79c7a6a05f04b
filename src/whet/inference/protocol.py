"""`Engine`: token ids in, token ids with logprobs and policy version out.

Embedded torch, vLLM and remote engines implement it; everything above knows only these few names. There is no text
here: rendering and parsing live in `rendering/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from whet.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from whet.inference.token_sets import TokenSets

FinishReason = Literal["stop", "length"]
GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy. Logits divided by much less exceed float32."""
MOST_STOPS = 256
"""Stop strings, and stop tokens, of one request at most: each decode step compares all of them."""
MOST_STOP_CHARACTERS = 1024
"""Of one stop string: the text that it is searched in is decoded again with each token."""
OnTokens = Callable[[list[int]], None]
"""Receives ids as they are drawn, in order and each once. It returns at once; what it raises ends the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """From which distributions tokens are drawn, and what ends them. A temperature below `GREEDY_BELOW` is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    min_p: float = 0.0
    stop: tuple[str, ...] = ()  # stop strings; the one that matched stays in the sampled ids
    stop_token_ids: tuple[int, ...] = ()  # the one that matched stays in the sampled ids
    seed: int | None = None  # the draws depend on (seed, position) alone, not on what else is in the batch

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def cuts(self) -> bool:
        """Whether some tokens cannot be drawn; a greedy request has one to draw."""
        return self.greedy or self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def shape(self) -> dict[str, float]:
        """What the distributions were that tokens are drawn from: the temperature, and what cuts something off."""
        cuts = {"top_p": (self.top_p, 1.0), "top_k": (self.top_k, 0), "min_p": (self.min_p, 0.0)}
        temperature = 0.0 if self.greedy else self.temperature
        return {"temperature": temperature, **{name: value for name, (value, off) in cuts.items() if value != off}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SamplingOptions):
    """How to draw the tokens of one request."""

    max_tokens: int = 512

    def values(self) -> dict[str, Any]:
        """All of them by name."""
        return {key.name: getattr(self, key.name) for key in fields(self)}


class VersionRun(NamedTuple):
    """`count` tokens in a row that were sampled by the weights of policy `version`."""

    version: int
    count: int  # type: ignore[assignment]  # shadows tuple.count, which is not used here


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scoring:
    """Logprobs that a request wants beside those of what is drawn.

    Those of the P tokens of its prompt are log softmax(logits), without temperature; `top` is of the distributions that
    `Sample.logprobs` is of. A request with one has no listener.
    """

    prompt: bool = False  # of each prompt token but the first
    prompt_top: int = 0  # so many of the most probable tokens, where a prompt token is
    prompt_last: int | None = None  # these two of so many prompt tokens alone, the last ones
    targets: NDArray[np.int64] | None = None  # [P - 1, K], ids where the prompt tokens from the second on are; -1: none
    prompt_draws: int = 0  # tokens to draw, at the request's temperature, where prompt tokens from the second on are
    top: int = 0  # so many of the most probable tokens, where one is drawn

    @property
    def of_prompt(self) -> bool:
        return self.prompt or self.prompt_top > 0 or self.targets is not None or self.prompt_draws > 0

    def first(self, prompt_length: int) -> int:
        """The first prompt token whose distribution is needed; the prompt's length where none is."""
        firsts = [prompt_length]
        if self.prompt or self.prompt_top:
            firsts.append(1 if self.prompt_last is None else prompt_length - self.prompt_last)
        if self.targets is not None:
            named = (self.targets >= 0).any(1)
            firsts.append(int(named.argmax()) + 1 if named.any() else prompt_length)
        if self.prompt_draws:
            firsts.append(1)
        return min(firsts)


class TokenLogprobs(NamedTuple):
    """K tokens at each of N positions, and their logprobs."""

    ids: NDArray[np.int32]  # [N, K]
    logprobs: NDArray[np.float32]  # [N, K]; NaN where none were computed

    @classmethod
    def blank(cls, count: int, width: int) -> TokenLogprobs:
        import numpy as np  # not above: evaluating an endpoint does not need it

        return cls(np.zeros((count, width), np.int32), np.full((count, width), np.nan, np.float32))


class PromptScores(NamedTuple):
    """What `Scoring` names of a prompt of P tokens; None where it does not."""

    logprobs: NDArray[np.float32] | None  # [P]; NaN where none were computed, as of the first token
    top: TokenLogprobs | None  # [P, prompt_top], most probable first
    targets: NDArray[np.float32] | None  # [P - 1, K]; 0 where the id is -1
    drawn: TokenLogprobs | None  # [P - 1, prompt_draws]


@dataclass(frozen=True, slots=True)
class SampleRequest:
    prompt_ids: list[int]
    params: SamplingParams
    group_key: str | None = None  # requests of one group with equal prompts share their prefill
    rollout_key: str | None = None  # later turns of a rollout reuse the KV of earlier ones
    adapter: str | None = None  # name of an adapter that was loaded; None = the engine's own weights
    scoring: Scoring | None = None


@dataclass(slots=True)
class Sample:
    """What was drawn.

    `logprobs[i]` is log softmax(logits / temperature)[ids[i]] (temperature 1 when greedy), before top-p, top-k and
    min-p cut anything off: the quantity a learner recomputes. `versions` counts add up to `len(ids)`.
    `experts`, from an engine that records them for a mixture of experts, are those that each token of
    prompt and ids but the last went to in each layer, [tokens, layers, experts a token]; -1 where it went to none.
    Where the request cuts (`SamplingParams.cuts`) `kept_mass[i]` is the probability of what was left to draw from, and
    `kept`, from an engine that records them, which tokens these are. `prompt_scores` and `top` are what the request's
    `scoring` names, `top` [len(ids), k].
    """

    ids: list[int]
    logprobs: list[float]
    versions: list[VersionRun]
    finish_reason: FinishReason
    experts: NDArray[np.int16] | None = None
    kept_mass: list[float] | None = None
    kept: TokenSets | None = None
    prompt_scores: PromptScores | None = None
    top: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """New weights: a version and a path.

    `path` is a safetensors file with the names of the `transformers` checkpoint (kind `model`), a PEFT adapter
    directory (kind `adapter`), or a file that an embedded engine maps and uses in place (kind `packed`, see
    `packed_file.py`), which takes no adapter. On one host it is in shared memory. An adapter with a name (`adapter`) is
    loaded in addition to the engine's own weights, for requests that name it, with a version of its own. Without a name
    it is the policy itself: what requests that name no adapter are answered with.
    """

    version: int
    path: Path
    kind: Literal["model", "adapter", "packed"] = "model"
    adapter: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


class Engine(ABC):
    version: int
    """Policy version of the weights now in use."""

    @property
    @abstractmethod
    def recomputes(self) -> bool:
        """Whether new weights compute the context of running requests again: no token attends to older keys."""

    @abstractmethod
    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        """Draw one continuation. Cancelling the awaiting task frees the request's slot.

        The sample is what counts; when it is returned, `on_tokens` has received all its ids and nothing else.
        Callers that do not listen leave the argument out.
        """

    @abstractmethod
    async def load_weights(self, update: WeightUpdate) -> None:
        """Take new weights between two decode steps. Running requests continue; their next tokens have the new version.

        A token has the version of the weights it was sampled with: the adapter's own where its request names one.
        """

    async def unload_adapter(self, name: str) -> None:
        """Refuse further requests for an adapter. Those in progress are answered, then it is forgotten.

        Raises `ModelError`, with the names there are, for one that is not loaded.
        """
        raise ModelError(f"the engine has no adapter {name!r}")

    async def release(self, rollout_key: str) -> None:  # noqa: B027  # an engine need not keep any
        """The rollout is over: its KV may be forgotten. Unknown keys are ignored."""

    async def close(self) -> None:  # noqa: B027
        """End all requests."""

    async def sleep(self) -> int:
        """Free keys, values and weights, so that a learner has the device's memory; the bytes that are free then, or 0.

        Nothing may be in flight, and requests are refused until `wake`. Raises `ModelError`. Which engines a run may
        have that sleep is checked before it begins.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot sleep")

    async def wake(self, update: WeightUpdate) -> None:
        """Take memory and these weights; what `load_weights` raises. There are no other weights to wake with."""
        raise NotImplementedError(f"{type(self).__name__} cannot sleep")

    def answer_lengths(self) -> list[int]:
        """Tokens so far of each answer that is being sampled, where that is counted. For calls from any thread."""
        return []

    def waiting_for(self) -> str:
        """What keeps the engine from answering, in words; "" for nothing."""
        return ""

    def metrics(self) -> dict[str, float]:
        """`engine/...` of docs/training.md, of an engine that is made of several."""
        return {}


class WrappedEngine(Engine):
    """Another engine, as it is. Subclasses change some of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def version(self) -> int:
        return self.engine.version

    @version.setter
    def version(self, version: int) -> None:
        self.engine.version = version

    @property
    def recomputes(self) -> bool:
        return self.engine.recomputes

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        if on_tokens is None:
            return await self.engine.sample(request)
        return await self.engine.sample(request, on_tokens=on_tokens)

    async def load_weights(self, update: WeightUpdate) -> None:
        await self.engine.load_weights(update)

    async def unload_adapter(self, name: str) -> None:
        await self.engine.unload_adapter(name)

    async def release(self, rollout_key: str) -> None:
        await self.engine.release(rollout_key)

    async def close(self) -> None:
        await self.engine.close()

    async def sleep(self) -> int:
        return await self.engine.sleep()

    async def wake(self, update: WeightUpdate) -> None:
        await self.engine.wake(update)

    def answer_lengths(self) -> list[int]:
        return self.engine.answer_lengths()

    def waiting_for(self) -> str:
        return self.engine.waiting_for()

    def metrics(self) -> dict[str, float]:
        return self.engine.metrics()


def sampling_text(engine: Engine | None) -> str:
    """What an engine of this process is sampling, in words; "" for nothing, and for one that does not count it."""
    lengths = [] if engine is None else engine.answer_lengths()
    if not lengths:
        return ""
    answers = f"{len(lengths)} unfinished answer" + ("" if len(lengths) == 1 else "s")
    return f"{sum(lengths):,} tokens so far in {answers}, {max(lengths):,} in the longest"
