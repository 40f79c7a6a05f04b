"""`Worded`: the prompt texts of an environment, and their replacement by others.

    system_prompt    the system prompt of the environment, or the one that all of its rows share
    tool:<name>      the description of a tool, without its name and its schema
    judge            the prompt of a `JudgeRubric`; a second one is judge:2

`reword` replaces them permanently. `worded` replaces them for rollouts that start inside it, so that one environment
can run rollouts with different texts concurrently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from whet.envs.config.arguments import nearest
from whet.errors import ConfigError
from whet.messages import content_text
from whet.rubrics.judge_rubric import JudgeRubric, judging_by
from whet.rubrics.rubric import Rubric
from whet.types import SystemMessage, Tool

SYSTEM_PROMPT, TOOL, JUDGE = "system_prompt", "tool:", "judge"


@dataclass(frozen=True, slots=True)
class Wording:
    """Replacements of prompt texts."""

    own: tuple[str, ...] = ()  # the system messages of the environment
    system_prompt: str | None = None  # their replacement; None: they stay
    tools: Mapping[str, str] = field(default_factory=dict)  # descriptions by name

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The messages with the new system prompt. The own system prompt of a row is not replaced."""
        systems = opening(messages)
        if self.system_prompt is None or not self.takes(messages):
            return list(messages)
        count = len(self.own) if systems else 0
        new = [SystemMessage(self.system_prompt)] if self.system_prompt else []
        return [*new, *messages[count:]]

    def takes(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the environment's system prompt applies to a task."""
        systems = opening(messages)
        if not systems:
            return not messages or messages[0]["role"] != "text"
        return bool(self.own) and systems[: len(self.own)] == self.own

    def described(self, tools: Iterable[Tool]) -> list[Tool]:
        """The tools with the new descriptions."""
        return [
            Tool(**{**tool, "description": self.tools[tool["name"]]}) if tool["name"] in self.tools else tool
            for tool in tools
        ]


_in_force: ContextVar[Mapping[Any, Wording]] = ContextVar("whet_wordings", default={})  # noqa: B039  never changed


class Worded:
    """The part of `Environment` for prompt texts."""

    system_prompt: str | None
    tool_defs: list[Tool] | None
    rubric: Rubric
    _own_system: tuple[str, ...] | None = None
    _reworded: Wording | None = None

    def prompt_texts(self) -> dict[str, str]:
        """Its texts by name, as they are or were replaced by `reword`.

        The system prompt is left out if it is empty and was not replaced.
        """
        given = self._reworded or Wording()
        own = "\n\n".join(self._own_system_prompt())
        system_prompt = own if given.system_prompt is None else given.system_prompt
        texts = {SYSTEM_PROMPT: system_prompt} if system_prompt or given.system_prompt is not None else {}
        for tool in given.described(self.tool_defs or ()):
            texts[f"{TOOL}{tool['name']}"] = tool["description"]
        return texts | {name: rubric.judge_prompt for name, rubric in self._find_judges().items()}

    def reword(self, texts: Mapping[str, str]) -> None:
        """Replace its texts permanently; other names stay.

        Raises `ConfigError` for an unknown name, and for a system prompt if every row has its own.
        """
        self._check_prompt_texts(texts)
        for rubric, text in self._judged_with(texts).items():
            rubric.set_judge_prompt(text)
        self._reworded = self._wording_with(texts)

    @contextmanager
    def worded(self, texts: Mapping[str, str]) -> Iterator[None]:
        """Use these texts in rollouts that start inside, and in their scoring. Names are not checked."""
        token = _in_force.set({**_in_force.get(), self: self._wording_with(texts)})
        try:
            with judging_by(self._judged_with(texts)):
                yield
        finally:
            _in_force.reset(token)

    def _check_prompt_texts(self, texts: Mapping[str, str]) -> None:
        """Raises `ConfigError` for texts that `reword` cannot replace."""
        known = [SYSTEM_PROMPT, *(name for name in self.prompt_texts() if name != SYSTEM_PROMPT)]
        for name, text in texts.items():
            if name not in known:
                raise ConfigError(f"{type(self).__name__} has no text '{name}'.{nearest(name, known)}")
            if not isinstance(text, str):
                raise ConfigError(f"{type(self).__name__}: '{name}' should be text (got {text!r:.80}).")
        if (
            SYSTEM_PROMPT in texts
            and not self._own_system_prompt()
            and not any(map(Wording().takes, self._prompts_of_rows()))
        ):
            raise ConfigError(
                f"{type(self).__name__}: every task brings a prompt that no system prompt of the environment has a "
                "place in, so that system_prompt would have no effect. Leave it out."
            )

    def _judged_with(self, texts: Mapping[str, str]) -> dict[JudgeRubric, str]:
        """The prompts in `texts` for each judge."""
        return {rubric: texts[name] for name, rubric in self._find_judges().items() if name in texts}

    def _wording_with(self, texts: Mapping[str, str]) -> Wording:
        before = self._reworded or Wording()
        tools = {name.removeprefix(TOOL): text for name, text in texts.items() if name.startswith(TOOL)}
        system_prompt = texts.get(SYSTEM_PROMPT, before.system_prompt)
        return Wording(self._own_system_prompt(), system_prompt, {**before.tools, **tools})

    def _own_system_prompt(self) -> tuple[str, ...]:
        """The system messages of the environment, or those that all of its tasks have in common."""
        if self._own_system is None:
            self._own_system = self._find_system_prompt()
        return self._own_system

    def _find_system_prompt(self) -> tuple[str, ...]:
        if self.system_prompt:
            return (self.system_prompt,)
        openings = set(map(opening, self._prompts_of_rows()))
        return openings.pop() if len(openings) == 1 else ()

    def _prompts_of_rows(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        """The prompts of all rows."""
        for dataset in (self.build_dataset(), self.build_eval_dataset()):  # type: ignore[attr-defined]
            for row in dataset or ():
                yield row["prompt"]

    def _find_judges(self) -> dict[str, JudgeRubric]:
        rubrics = [rubric for rubric in _flat(self.rubric) if isinstance(rubric, JudgeRubric)]
        return {JUDGE if not number else f"{JUDGE}:{number + 1}": rubric for number, rubric in enumerate(rubrics)}


def wording_of(env: Worded) -> Wording | None:
    """The replacements that apply to an environment in the current context."""
    return _in_force.get().get(env, env._reworded)


def opening(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The texts of the system messages at the start of a prompt."""
    texts = []
    for message in messages:
        if message["role"] != "system":
            break
        texts.append(content_text(message["content"]))
    return tuple(texts)


def joined(texts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The texts of several environments: `system_prompt@reverse-text`, or `system_prompt` if all that have it agree."""
    labelled: dict[str, dict[str, str]] = {}
    for label, own in texts.items():
        for name, text in own.items():
            labelled.setdefault(name, {})[label] = text
    result: dict[str, str] = {}
    for name, by_label in labelled.items():
        if len(set(by_label.values())) == 1:
            result[name] = next(iter(by_label.values()))
        else:
            result |= {f"{name}@{label}": text for label, text in by_label.items()}
    return result


def texts_for(env: Worded, label: str, texts: Mapping[str, str]) -> dict[str, str]:
    """The part of `joined` texts for one of the environments."""
    suffix = f"@{label}"
    own = {name.removesuffix(suffix): text for name, text in texts.items() if name.endswith(suffix)}
    known = env.prompt_texts()
    return {name: text for name, text in {**texts, **own}.items() if name in known}


def _flat(rubric: Rubric) -> Iterator[Rubric]:
    yield rubric
    for inner in getattr(rubric, "rubrics", ()):
        yield from _flat(inner)
