"""`PolicyClient`: the policy as a `Client`. To environments it is the same as a remote model.

Each turn it sends exact token ids and returns exactly what was sampled. A turn whose messages continue an earlier
turn of the same rollout continues that turn's ids; one that does not is rendered whole, which is a new branch.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from whet.clients.client import Client, Delta, OnDelta, StreamedAnswer
from whet.clients.usage import charge
from whet.errors import OverlongPromptError
from whet.inference.protocol import Engine, Sample, SampleRequest, Scoring
from whet.inference.rendering.chat_renderer import ChatRenderer, is_plain_text
from whet.inference.rendering.streaming import AnswerReader, TextReader
from whet.inference.sampling_args import SamplingSettings, read_sampling_args
from whet.inference.stops import cut_at_stop
from whet.lazy_ids import PromptIds, unread
from whet.types import (
    AssistantMessage,
    Messages,
    Response,
    ResponseMessage,
    ResponseTokens,
    SamplingArgs,
    State,
    Tool,
    TrajectoryStep,
    Usage,
)

_LONG = 20_000
"""Characters of a prompt whose tokenisation would hold up an event loop for more than about ten milliseconds."""


class _DeltaStream:
    """Turns the ids of an engine into the deltas of one turn."""

    def __init__(self, reader: AnswerReader | TextReader, on_delta: OnDelta, prompt_tokens: int) -> None:
        self._reader, self._on_delta = reader, on_delta
        self._prompt_tokens: int | None = prompt_tokens
        self._streamed = StreamedAnswer()

    def feed(self, ids: list[int]) -> None:
        self._send(self._reader.feed(ids))

    def finish(self, message: AssistantMessage) -> None:
        """Send the rest. Raises `ModelError` where something that was streamed is not in the message."""
        self._send(self._streamed.rest(message))

    def _send(self, delta: Delta) -> None:
        if not delta and self._prompt_tokens is None:
            return
        self._streamed.add(delta)
        self._on_delta(replace(delta, prompt_tokens=self._prompt_tokens))
        self._prompt_tokens = None


class PolicyClient(Client[Engine, Any, Any, Any]):
    """A client of `engine`; `max_context` is the most tokens a prompt and its answer may have together.

    With `in_threads` long prompts are rendered in a thread, so that other requests are not held up. The order in which
    requests reach the engine then depends on how long that takes.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: ChatRenderer,
        *,
        max_context: int,
        adapter: str | None = None,
        in_threads: bool = False,
    ) -> None:
        super().__init__(engine)
        self.engine, self.renderer = engine, renderer
        self.max_context, self.adapter, self.in_threads = max_context, adapter, in_threads
        self._graphs: dict[str, MessageGraph] = {}  # of running rollouts, by trajectory id

    async def get_response(
        self,
        prompt: Messages,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Tool] | None = None,
        *,
        state: State | None = None,
        on_delta: OnDelta | None = None,
        **kwargs: Any,
    ) -> Response:
        """The policy's next message, with its tokens. `on_delta` receives it while it is sampled.

        Raises `OverlongPromptError` when the context leaves no room for a single token, and `ConfigError` for sampling
        arguments that a policy does not take.
        """
        settings = read_sampling_args(sampling_args)
        turn = 0 if state is None else len(state["trajectory"])
        characters = self._refuse_hopeless(prompt, tools)
        graph = self._graph(state, tools)
        earlier, prompt_ids = self._continued(graph, prompt, tools, settings.enable_thinking)
        first_of_branch = prompt_ids is None
        if prompt_ids is None:
            thinking = settings.enable_thinking
            if self.in_threads and characters > _LONG:
                prompt_ids = await asyncio.to_thread(self.renderer.render, prompt, tools, enable_thinking=thinking)
            else:
                prompt_ids = self.renderer.render(prompt, tools, enable_thinking=thinking)
        room = self.max_context - len(prompt_ids)
        if room < 1:
            raise OverlongPromptError(f"the prompt has {len(prompt_ids)} tokens; the context holds {self.max_context}")
        request = SampleRequest(
            prompt_ids=prompt_ids,
            params=settings.params(room=room, turn=turn, stop_token_ids=self.renderer.stop_token_ids),
            # The rollouts of a group have equal prompts, and so equal hashes.
            group_key=str(hash(tuple(prompt_ids))) if first_of_branch else None,
            rollout_key=None if state is None else state["trajectory_id"],
            adapter=self.adapter,
        )
        sample, stream = await self._sample(request, prompt, tools, settings, on_delta)
        message = self._message(request, sample, prompt, tools, settings, call_ids=f"call_{turn}")
        message["tokens"]["prompt_ids"] = PromptIds(prompt_ids, None if first_of_branch else earlier)
        if stream is not None:
            stream.finish(message)
        graph.add(prompt, message, tools, message["tokens"])
        rollout = "" if state is None else f"{state['trajectory_id']}-"
        usage = Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(sample.ids))
        response = Response(id=f"policy-{rollout}{turn}", model=model, message=message, usage=usage)
        charge(response)  # it may be its own judge
        return response

    async def continue_ids(
        self, prompt_ids: list[int], model: str, sampling_args: SamplingArgs, *, prompt_logprobs: bool = False
    ) -> Response:
        """What the engine samples after `prompt_ids`: a response with its tokens, and no text.

        With `prompt_logprobs` these include the logprobs of the prompt, at temperature 1, the first of them NaN.
        Raises as `get_response` does, and `RequestRefusedError` for ids outside the vocabulary.
        """
        settings, room = read_sampling_args(sampling_args), self.max_context - len(prompt_ids)
        if room < 1:
            raise OverlongPromptError(f"the prompt has {len(prompt_ids)} tokens; the context holds {self.max_context}")
        params = settings.params(room=room, turn=0, stop_token_ids=self.renderer.stop_token_ids)
        scoring = Scoring(prompt=True) if prompt_logprobs else None
        request = SampleRequest(prompt_ids=prompt_ids, params=params, adapter=self.adapter, scoring=scoring)
        sample = await self.engine.sample(request)
        truncated = sample.finish_reason == "length"
        message = ResponseMessage(
            "",
            finish_reason="length" if truncated else "stop",
            is_truncated=truncated,
            tokens=_tokens_of(request, sample),
        )
        usage = Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(sample.ids))
        return Response(id="policy-0", model=model, message=message, usage=usage)

    async def _sample(
        self,
        request: SampleRequest,
        prompt: Messages,
        tools: list[Tool] | None,
        settings: SamplingSettings,
        on_delta: OnDelta | None,
    ) -> tuple[Sample, _DeltaStream | None]:
        """The engine's answer, and the stream of its deltas where the caller wants them."""
        if on_delta is None:
            return await self.engine.sample(request), None
        reader: AnswerReader | TextReader
        if is_plain_text(prompt):
            reader = TextReader(self.renderer.decode, settings.stop, self.renderer.stop_token_ids)
        else:
            reader = self.renderer.reader(
                request.prompt_ids, tools, enable_thinking=settings.enable_thinking, stops=settings.stop
            )
        stream = _DeltaStream(reader, on_delta, len(request.prompt_ids))
        return await self.engine.sample(request, on_tokens=stream.feed), stream

    def _message(
        self,
        request: SampleRequest,
        sample: Sample,
        prompt: Messages,
        tools: list[Tool] | None,
        settings: SamplingSettings,
        *,
        call_ids: str,
    ) -> ResponseMessage:
        """What was sampled as a message, with its tokens."""
        if is_plain_text(prompt):
            parsed = AssistantMessage(self.renderer.parse_text(sample.ids))
        else:
            parsed = self.renderer.parse(
                sample.ids,
                prompt_ids=request.prompt_ids,
                tools=tools,
                enable_thinking=settings.enable_thinking,
                call_ids=call_ids,
            )
        truncated = sample.finish_reason == "length"
        return ResponseMessage(
            cut_at_stop(str(parsed.content or ""), settings.stop),
            tool_calls=parsed.tool_calls,
            reasoning_content=parsed.reasoning_content,
            finish_reason="length" if truncated else "tool_calls" if parsed.tool_calls else "stop",
            is_truncated=truncated,
            tokens=_tokens_of(request, sample),
        )

    def _refuse_hopeless(self, prompt: Messages, tools: Sequence[Tool] | None) -> int:
        """Raise for text that cannot fit however it is tokenised: tokenising 100 MB takes minutes.

        How many characters are to be tokenised, about.
        """
        # What the model itself wrote may be left out by a template; a normaliser may make text shorter, not 4 times.
        contents = [message["content"] for message in prompt if message["role"] != "assistant"]
        if len(contents) > self.max_context and not is_plain_text(prompt):  # each has a marker at least
            raise OverlongPromptError(
                f"the prompt has {len(contents)} messages; the context holds {self.max_context} tokens"
            )
        characters = sum(_characters(content) for content in contents)
        if characters > self.max_context and characters > 4 * self.max_context * self.renderer.longest_token:
            raise OverlongPromptError(
                f"the prompt has {characters} characters; the context holds {self.max_context} tokens"
            )
        answered = sum(_characters(message["content"]) for message in prompt if message["role"] == "assistant")
        return characters + answered + sum(len(str(tool)) for tool in tools or ())

    async def release(self, state: State) -> None:
        """The rollout is over: its messages are forgotten, and the engine may forget its keys and values."""
        self._graphs.pop(state["trajectory_id"], None)
        await self.engine.release(state["trajectory_id"])

    def _graph(self, state: State | None, tools: Sequence[Tool] | None) -> MessageGraph:
        if state is None:
            return MessageGraph()
        name = state["trajectory_id"]
        if name not in self._graphs:
            self._graphs[name] = MessageGraph.of(state["trajectory"], tools)
        return self._graphs[name]

    def _continued(
        self, graph: MessageGraph, prompt: Messages, tools: Sequence[Tool] | None, thinking: bool | None
    ) -> tuple[Any, list[int] | None]:
        """The prompt of the latest answer that `prompt` continues, and the ids of both; None where there is none."""
        earlier = graph.latest_answer(prompt, tools)
        if earlier is None:
            return None, None
        tokens, length = earlier
        before = unread(tokens, "prompt_ids")
        ids = list(before), tokens["completion_ids"]
        return before, self.renderer.extend(*ids, prompt[:length], prompt[length:], tools, enable_thinking=thinking)


def _characters(content: Any) -> int:
    """Of a message's content, text or parts."""
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, list) else []
    return sum(len(part["text"]) for part in parts if isinstance(part.get("text"), str))


def _tokens_of(request: SampleRequest, sample: Sample) -> ResponseTokens:
    """The tokens of one turn, with what only some engines record, or only for some requests."""
    known: dict[str, Any] = {"routed_experts": sample.experts, "kept_mass": sample.kept_mass, "kept": sample.kept}
    if sample.prompt_scores is not None and sample.prompt_scores.logprobs is not None:
        known["prompt_logprobs"] = sample.prompt_scores.logprobs.tolist()
    return ResponseTokens(
        prompt_ids=request.prompt_ids,
        completion_ids=sample.ids,
        completion_logprobs=sample.logprobs,
        policy_version=[[run.version, run.count] for run in sample.versions],
        sampling=request.params.shape(),
        **{name: value for name, value in known.items() if value is not None},
    )


# The messages of one rollout, each once: which earlier answer does a prompt continue?
#
#     system ── user ── answer 1 ── tool ── answer 2          turn 2 continues turn 1
#                           └────── user' ── answer 3         turn 3 was forked off after turn 1
#
# Messages are compared by their content at the time of sampling, so one that is edited later, even in place, begins
# a branch. A lookup takes one step a message and renders nothing. Nothing here reads or makes token ids.

_NOT_CONTENT = frozenset({"finish_reason", "is_truncated", "tokens"})
"""What a client notes on an answer in addition to its content."""


@dataclass(slots=True)
class _Node:
    """A message after those before it. `tokens` are those of the turn where it is an answer that was sampled."""

    after: dict[Hashable, _Node] = field(default_factory=dict)
    tokens: ResponseTokens | None = None

    def next(self, message: Mapping[str, Any]) -> _Node | None:
        written = as_written(message)
        node = self.after.get(written)
        if node is None:
            node = self.after.get(as_meant(message))
            if node is not None:
                self.after[written] = node  # so that the next lookup need not read the arguments of calls
        return node

    def grow(self, message: Mapping[str, Any]) -> _Node:
        node = self.next(message)
        if node is None:
            node = self.after[as_written(message)] = self.after[as_meant(message)] = _Node()
        return node


class MessageGraph:
    """The conversations of one rollout. Other tools are another prompt, so each set of tools has a root of its own."""

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}

    @classmethod
    def of(cls, trajectory: Sequence[TrajectoryStep], tools: Sequence[Tool] | None) -> Self:
        """The graph of turns that are already there, as when a rollout's state was copied or loaded."""
        graph = cls()
        for step in trajectory:
            tokens = step["response"]["message"].get("tokens")
            if tokens is not None:
                graph._add([*step["prompt"], *step["completion"]], tools, tokens)
        return graph

    def add(
        self, prompt: Messages, answer: AssistantMessage, tools: Sequence[Tool] | None, tokens: ResponseTokens
    ) -> None:
        """`answer` was sampled after `prompt`. Of two equal answers after equal prompts the later one counts."""
        self._add([*prompt, answer], tools, tokens)

    def _add(self, conversation: Messages, tools: Sequence[Tool] | None, tokens: ResponseTokens) -> None:
        node = self._roots.setdefault(_name(tools), _Node())
        for message in conversation:
            node = node.grow(message)
        node.tokens = tokens

    def latest_answer(self, prompt: Messages, tools: Sequence[Tool] | None) -> tuple[ResponseTokens, int] | None:
        """The last sampled answer that `prompt` continues, and how many of its messages that answer ends.

        None where `prompt` has nothing new after an answer of this rollout.
        """
        node, latest = self._roots.get(_name(tools)), None
        for length, message in enumerate(prompt[:-1], start=1):
            node = None if node is None else node.next(message)
            if node is None:
                break
            if node.tokens is not None:
                latest = node.tokens, length
        return latest


def as_written(message: Mapping[str, Any]) -> Hashable:
    """The exact content of a message. Fields without a value count as absent."""
    return tuple([(key, _frozen(message[key])) for key in sorted(message) if _says(key, message[key])])


def as_meant(message: Mapping[str, Any]) -> Hashable:
    """The content of a message, independent of how its text is split and its calls' JSON is formatted."""
    meant = {key: value for key, value in message.items() if _says(key, value)}
    if meant.get("tool_calls"):
        meant["tool_calls"] = [{**call, "arguments": _laid_out(call["arguments"])} for call in meant["tool_calls"]]
    parts = meant.get("content")
    if isinstance(parts, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        meant["content"] = "".join(part["text"] for part in parts)
    return "meant", as_written(meant)


def _says(key: str, value: Any) -> bool:
    return key not in _NOT_CONTENT and value is not None and value != "" and value != []


def _frozen(value: Any) -> Hashable:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return tuple([(key, _frozen(value[key])) for key in sorted(value) if value[key] is not None])
    if isinstance(value, list | tuple):
        return tuple([_frozen(item) for item in value])
    return type(value), repr(value)  # true is not 1, and 1 is not 1.0


def _laid_out(arguments: Any) -> Any:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return arguments


def _name(tools: Sequence[Tool] | None) -> str:
    return json.dumps(tools or [], sort_keys=True, default=str)
