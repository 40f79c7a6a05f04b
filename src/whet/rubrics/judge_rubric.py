"""`JudgeRubric`: reward functions that call another model.

    async def correct(judge, prompt, completion, answer, state) -> float:
        verdict = await judge(prompt, completion, answer, state)
        return float(verdict.strip().lower().startswith("yes"))

    rubric = whet.JudgeRubric(judge_client=client, judge_model="gpt-4.1-mini")
    rubric.add_reward_func(correct)

The judge's responses are cached in `state["judge_response"]` by prompt, so a prompt is sent once per rollout. A judge
that does not respond is an error of that rollout and never a reward; one that refuses the key ends the run. Its tokens,
and their cost where the price is known, are added to `state["judge_usage"]`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from whet.calls import CallSpec, describe, resolve
from whet.clients.client import Client
from whet.clients.usage import charge, usage_of
from whet.errors import ConfigError, EndpointError, MissingExtraError, MissingKeyError, RewardError, WhetError
from whet.messages import content_text, whole_characters
from whet.parsers.parser import Parser
from whet.rubrics.rubric import Rubric
from whet.types import Messages, State, Usage, UserMessage

if TYPE_CHECKING:
    from whet.clients.config import Price

DEFAULT_JUDGE_PROMPT = """\
Is the response to the question correct? It is when it says the same as the reference answer.

Question:
```
{question}
```

Reference answer:
```
{answer}
```

Response:
```
{response}
```

Answer with "yes" or "no" and nothing else."""

_KEY = "OPENAI_API_KEY"
_prompts: ContextVar[Mapping[JudgeRubric, str]] = ContextVar("whet_judge_prompts", default={})  # noqa: B039  never changed


class JudgeRubric(Rubric):
    """Offers reward functions a `judge`: another model's opinion of an answer."""

    def __init__(
        self,
        parser: Parser | None = None,
        parallelize_scoring: bool = False,
        judge_client: Any = None,
        judge_model: str = "gpt-4.1-nano",
        judge_sampling_args: dict[str, Any] | None = None,
        judge_prompt: str = DEFAULT_JUDGE_PROMPT,
        judge_price: Mapping[str, float] | None = None,
    ) -> None:
        """Make a rubric without reward functions; they may name judge, judge_client, judge_model, judge_prompt and
        judge_sampling_args.

        Args:
            parser: reads `{response}` out of the completion.
            parallelize_scoring: accepted for environments written for 0.1; rollouts are always scored concurrently.
            judge_client: a whet `Client`, or an `openai` client; without one, that of OpenAI with OPENAI_API_KEY.
            judge_model: the judge's name, as the client knows it.
            judge_sampling_args: for every question; None values are left out.
            judge_prompt: with `{question}` (the last user message), `{answer}` and `{response}`.
            judge_price: `{"input": 0.4, "output": 1.6}`, dollars for a million tokens, of an `openai` client; the
                config of a whet `Client` has its own.
        """
        super().__init__(parser=parser)
        self._price = _price(judge_price, judge_client)
        self.judge_client = _openai_client() if judge_client is None else judge_client
        self.judge_model = judge_model
        self.judge_prompt = judge_prompt
        self.judge_sampling_args = dict(judge_sampling_args or {})
        self.class_objects.update(
            judge=self.judge,
            judge_client=self.judge_client,
            judge_model=self.judge_model,
            judge_prompt=self.judge_prompt,
            judge_sampling_args=self.judge_sampling_args,
        )

    @property
    def prompt_in_force(self) -> str:
        """The prompt of rollouts that are scored where this is called."""
        return _prompts.get().get(self, self.judge_prompt)

    def set_judge_prompt(self, judge_prompt: str) -> None:
        """Set the prompt from now on."""
        self.judge_prompt = self.class_objects["judge_prompt"] = judge_prompt

    async def judge(
        self,
        prompt: Messages | str,
        completion: Messages | str,
        answer: str,
        state: State | None = None,
        **kwargs: Any,
    ) -> str:
        """The judge's response about a completion. Raises `RewardError` where it has none.

        Other arguments of a reward function (`kwargs`) are accepted and ignored.
        """
        response = self.parser.parse_answer(completion)
        try:
            question = self.prompt_in_force.format(question=question_of(prompt), answer=answer, response=response)
        except (KeyError, IndexError, ValueError) as error:
            raise ConfigError(
                f"judge_prompt cannot be filled in ({describe(error)}). It may use {{question}}, {{answer}} and "
                "{response}; write other braces twice."
            ) from error
        answered = None if state is None else state.get("judge_response")
        if isinstance(answered, dict) and question in answered:
            known: str = answered[question]
            return known
        verdict = await self._ask(question)
        if state is not None:
            # Looked up again: another reward function may have changed it meanwhile.
            kept = state.get("judge_response")
            state["judge_response"] = {**(kept if isinstance(kept, dict) else {}), question: verdict}
        return verdict

    def _arguments(self, spec: CallSpec, state: State) -> dict[str, Any]:
        arguments = super()._arguments(spec, state)
        if "judge_prompt" in arguments:
            arguments["judge_prompt"] = self.prompt_in_force
        return arguments

    async def _ask(self, question: str) -> str:
        arguments = {key: value for key, value in self.judge_sampling_args.items() if value is not None}
        try:
            if isinstance(self.judge_client, Client):
                response = await self.judge_client.get_response([UserMessage(question)], self.judge_model, arguments)
                verdict = content_text(response.message.content)
            else:
                if "max_tokens" in arguments:
                    arguments["max_completion_tokens"] = arguments.pop("max_tokens")
                native = await resolve(
                    self.judge_client.chat.completions.create(
                        model=self.judge_model,
                        messages=[{"role": "user", "content": whole_characters(question)}],
                        **arguments,
                    )
                )
                charge(native, self._cost(native))
                verdict = content_text(native.choices[0].message.content)
        except WhetError:
            raise
        except Exception as error:
            if getattr(error, "status_code", None) in (401, 403):
                raise EndpointError(
                    f"the judge '{self.judge_model}' refuses access: {error}. Check the key."
                ) from error
            raise RewardError(f"the judge '{self.judge_model}' failed: {describe(error)}") from error
        if not verdict:
            raise RewardError(f"the judge '{self.judge_model}' answered with nothing")
        return verdict

    def _cost(self, native: Any) -> float | None:
        """Cost of a response in dollars."""
        tokens = usage_of(native)
        if self._price is None or tokens is None:
            return None
        return self._price.of(Usage(prompt_tokens=tokens[0], completion_tokens=tokens[1]))


@contextmanager
def judging_by(prompts: Mapping[JudgeRubric, str]) -> Iterator[None]:
    """Rollouts that are scored within are judged by these prompts."""
    token = _prompts.set({**_prompts.get(), **prompts})
    try:
        yield
    finally:
        _prompts.reset(token)


def question_of(prompt: Messages | str) -> str:
    """The text of the last user message; what follows it (an assistant's opening, tool calls) is not the question."""
    if isinstance(prompt, str):
        return prompt
    for message in reversed(prompt):
        if isinstance(message, Mapping) and message.get("role") in ("user", "text"):
            return content_text(message.get("content"))
    return ""


def _price(given: Mapping[str, float] | None, client: Any) -> Price | None:
    if given is None:
        return None
    if isinstance(client, Client):
        raise ConfigError(
            f"judge_price would have no effect: {type(client).__name__} is a client of whet; give its ClientConfig "
            "the price"
        )
    from whet.clients.config import Price  # pydantic, which environments without a price do without

    try:
        return Price(**given)
    except (TypeError, ValueError):
        raise ConfigError(
            f'judge_price is {given!r:.80}; it should be {{"input": dollars, "output": dollars}} for a million tokens'
        ) from None


def _openai_client() -> Any:
    try:
        import openai
    except ImportError as error:
        raise MissingExtraError("JudgeRubric without a judge_client", "openai") from error
    if not os.environ.get(_KEY):
        raise MissingKeyError([_KEY])
    return openai.AsyncOpenAI()
