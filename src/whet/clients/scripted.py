"""`ScriptedClient`: a model whose answers are written down, for testing environments without a model.

    client = ScriptedClient(["<answer>4</answer>"])                     # the answer of each turn
    client = ScriptedClient(lambda prompt: prompt[-1].content[::-1])    # any function of what the model is shown
    outputs = env.evaluate_sync(client, "scripted", num_examples=3)

An answer is a string, an assistant message, `{"tool_calls": [...]}`-like fields of one, a whole `Response`, or an
exception to raise. It answers in this process, at once, and always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet.calls import CallSpec, resolve
from whet.clients.client import Client, OnDelta
from whet.errors import ConfigError, ModelError
from whet.messages import as_message
from whet.types import Messages, Response, ResponseMessage, SamplingArgs, State, Tool

Answer = str | Mapping[str, Any] | Response | Exception


class ScriptedClient(Client[None, Any, Any, Any]):
    """Answers from a list, turn by turn in each rollout, or from a function.

    The function may be plain or async, and takes what it names of prompt, state, tools, sampling_args, model and turn
    (the number of this turn in its rollout, from 0); a single parameter of another name is given the prompt.
    """

    def __init__(self, script: Sequence[Answer] | Callable[..., Any]) -> None:
        super().__init__(None)
        self.calls = 0
        self._answers: list[Answer] | None = None
        if callable(script):
            self._function = script
            self._spec = CallSpec.of(script)
        elif isinstance(script, str):
            raise ConfigError('ScriptedClient takes a list of answers or a function; for one answer write ["..."].')
        else:
            self._answers = list(script)

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
        """The answer of this turn. Raises `ConfigError` where the list has no more."""
        turn = self.calls if state is None else len(state["trajectory"])
        self.calls += 1
        if self._answers is not None:
            if turn >= len(self._answers):
                raise ConfigError(f"the script has {len(self._answers)} answers and got a request for turn {turn + 1}.")
            answer: Any = self._answers[turn]
        else:
            offered = {
                "prompt": prompt,
                "state": state,
                "tools": tools,
                "sampling_args": sampling_args,
                "model": model,
                "turn": turn,
            }
            arguments = self._spec.select(offered)
            if not arguments and len(self._spec.names) == 1:
                arguments = {self._spec.names[0]: prompt}
            answer = await resolve(self._function(**arguments))
        return self.delivered(_as_response(answer, model, turn), on_delta)


def _as_response(answer: Any, model: str, turn: int) -> Response:
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, str):
        fields: dict[str, Any] = {"content": answer}
    elif isinstance(answer, Mapping):
        fields = dict(as_message({"role": "assistant", **answer}, "scripted answer"))
    else:
        raise ModelError(f"the script answered with {type(answer).__name__}; it should be a string or a message")
    fields.pop("role", None)
    default = "tool_calls" if fields.get("tool_calls") else "stop"
    finish_reason = fields.pop("finish_reason", default)
    fields.setdefault("is_truncated", finish_reason == "length")
    message = ResponseMessage(**fields, finish_reason=finish_reason)
    return Response(id=f"scripted-{turn}", model=model, message=message, created=0)
