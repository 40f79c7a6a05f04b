"""The OpenAI-shaped `sampling_args` of environments and configs, read strictly into what an engine takes."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whet.errors import ConfigError, RequestRefusedError
from whet.inference.protocol import SamplingOptions, SamplingParams
from whet.inference.requests import check_stops, is_whole, shown

_KEYS = (
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "stop",
    "stop_token_ids",
    "seed",
    "n",
    "logprobs",
    "enable_thinking",
    "chat_template_kwargs",
    "extra_body",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings(SamplingOptions):
    """Sampling arguments of a rollout. `max_tokens=None` is all the room the context leaves."""

    max_tokens: int | None = None
    enable_thinking: bool | None = None

    def params(self, *, room: int, turn: int, stop_token_ids: tuple[int, ...]) -> SamplingParams:
        """For one turn: at most `room` tokens, the model's own stop tokens added, and a seed of the turn's own."""
        same = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k", "min_p", "stop")}
        return SamplingParams(
            **same,
            max_tokens=room if self.max_tokens is None else min(self.max_tokens, room),
            stop_token_ids=tuple(dict.fromkeys((*stop_token_ids, *self.stop_token_ids))),
            seed=None if self.seed is None else turn_seed(self.seed, turn),
        )


def turn_seed(seed: int, turn: int) -> int:
    """A seed in [0, 2**63) that depends on a rollout's seed and the number of the turn alone."""
    digest = hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def read_sampling_args(args: Mapping[str, Any]) -> SamplingSettings:
    """Raises `ConfigError` for a key that is unknown or would have no effect, and for a value out of range.

    `extra_body` is read as if its keys were among the others, `None` as if the key were absent.
    """
    given = {key: value for key, value in args.items() if value is not None}
    extra = _table(given.pop("extra_body", {}), "extra_body")
    template = {
        **_table(given.pop("chat_template_kwargs", {}), "chat_template_kwargs"),
        **_table(extra.get("chat_template_kwargs") or {}, "extra_body.chat_template_kwargs"),
    }
    given |= {key: value for key, value in extra.items() if value is not None and key != "chat_template_kwargs"}
    for key in (*given, *template):
        if key not in _KEYS or (key in template and key != "enable_thinking"):
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known are: {', '.join(_KEYS)}."
            raise ConfigError(f"sampling argument {key!r} is not one a policy takes.{hint}")
    if given.get("n", 1) != 1:
        raise ConfigError("sampling argument 'n' must be 1: each rollout samples one answer a turn")
    stop = given.get("stop", ())
    stop = (stop,) if isinstance(stop, str) else stop
    stop_token_ids = given.get("stop_token_ids", ())
    try:
        check_stops("stop", stop, str)
        check_stops("stop_token_ids", stop_token_ids, int)
    except RequestRefusedError as error:
        raise ConfigError(f"sampling argument {error}") from None
    if "max_completion_tokens" in given:
        given.setdefault("max_tokens", given["max_completion_tokens"])
    thinking = template.get("enable_thinking", given.get("enable_thinking"))
    if thinking is not None and not isinstance(thinking, bool):
        raise ConfigError(f"sampling argument 'enable_thinking' must be true or false, not {shown(thinking)}")
    return SamplingSettings(
        max_tokens=_whole(given, "max_tokens", 0, at_least=1) if "max_tokens" in given else None,
        temperature=_number(given, "temperature", 1.0, 0.0, 100.0),
        top_p=_number(given, "top_p", 1.0, 0.0, 1.0),
        top_k=max(_whole(given, "top_k", 0, at_least=-1), 0),
        min_p=_number(given, "min_p", 0.0, 0.0, 1.0),
        stop=tuple(stop),
        stop_token_ids=tuple(stop_token_ids),
        seed=_whole(given, "seed", 0, at_least=None) if "seed" in given else None,
        enable_thinking=thinking,
    )


def _table(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"sampling argument {key!r} must be a table, not {shown(value)}")
    return value


def _number(given: Mapping[str, Any], key: str, default: float, least: float, most: float) -> float:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"sampling argument {key!r} must be a number from {least:g} to {most:g}, not {shown(value)}")
    return float(value)


def _whole(given: Mapping[str, Any], key: str, default: int, *, at_least: int | None) -> int:
    value: Any = given.get(key, default)
    if not is_whole(value) or (at_least is not None and value < at_least):
        bound = " of 64 bits" if at_least is None else f" of at least {at_least} and of 64 bits"
        raise ConfigError(f"sampling argument {key!r} must be a whole number{bound}, not {shown(value)}")
    return int(value)
