"""`extra_body` of `[sampling]`, as files for other trainers have it: fields of a server's request, as whet's own keys.

A run's requests are whet's own, to the embedded engine as to vLLM, and its learner needs the probability of each token
under the policy. So a field is another key of `[sampling]`, or what whet does in any case, or it is refused: with it
logprobs would be those of another distribution than the one that is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whet.errors import ConfigError

OWN_KEYS = ("enable_thinking", "max_tokens", "min_p", "stop", "temperature", "top_k", "top_p")
"""Fields that are keys of `[sampling]` under the same names."""

ALWAYS: dict[str, Any] = {
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "logprobs": True,
    "n": 1,
    "best_of": 1,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "length_penalty": 1,
    "min_tokens": 0,
    "ignore_eos": False,
    "use_beam_search": False,
    "stream": False,
}
"""Values that say what whet does in any case; others of these fields are refused."""

DISTRIBUTION = "the tokens are then not drawn from the policy alone, so logprobs would be wrong for the learner"
WHETS = "whet sets it itself"
REASONS: dict[str, str] = {
    **dict.fromkeys(
        (
            "allowed_token_ids",
            "bad_words",
            "frequency_penalty",
            "guided_choice",
            "guided_decoding",
            "guided_grammar",
            "guided_json",
            "guided_regex",
            "ignore_eos",
            "length_penalty",
            "logit_bias",
            "logits_processors",
            "min_tokens",
            "presence_penalty",
            "repetition_penalty",
            "response_format",
            "structured_outputs",
            "use_beam_search",
        ),
        DISTRIBUTION,
    ),
    **dict.fromkeys(("cache_salt", "logprobs", "model", "prompt", "prompt_logprobs", "stream", "vllm_xargs"), WHETS),
    **dict.fromkeys(("return_token_ids", "return_tokens_as_token_ids"), "a run needs token ids"),
    **dict.fromkeys(("best_of", "n"), "rollouts_per_example says how often a task is attempted"),
    "seed": "the run's own 'seed' fixes every draw",
    "stop_token_ids": "the chat template says which tokens end a turn; strings that do are 'stop'",
}
"""Why a field is refused."""
OTHERWISE = "requests of a run are whet's own. What vLLM servers are started with is inference.server_args"


def merge_extra_body(sampling: dict[str, Any], table: str, source: str) -> None:
    """Replace `extra_body` in the raw `sampling` table, called `table`, by the keys that it means.

    Raises `ConfigError`, a line for each field that is refused.
    """
    if "extra_body" not in sampling:
        return
    extra = sampling.pop("extra_body")
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{source}: '{table}.extra_body' should be a table.")
    fields = dict(extra)
    template = fields.pop("chat_template_kwargs", None) or {}
    if not isinstance(template, Mapping):
        raise ConfigError(f"{source}: '{table}.extra_body.chat_template_kwargs' should be a table.")
    lines = [
        f"{source}: '{table}.extra_body.chat_template_kwargs.{key}': whet renders the template itself, and gives it "
        "enable_thinking alone. Remove the key."
        for key in template
        if key != "enable_thinking"
    ]
    if "enable_thinking" in template:
        lines += _take(sampling, "enable_thinking", template["enable_thinking"], table, source)
    for key, value in fields.items():
        if key in OWN_KEYS:
            off = key == "top_k" and value == -1  # as vLLM writes it
            lines += _take(sampling, key, 0 if off else value, table, source)
        elif value is not None and not _always(key, value):
            reason = REASONS.get(key, OTHERWISE)
            lines.append(f"{source}: '{table}.extra_body.{key}': {reason}. Remove the key.")
    if lines:
        raise ConfigError("\n".join(lines))


def _always(key: str, value: Any) -> bool:
    known = ALWAYS.get(key)
    return known is not None and value == known and isinstance(value, bool) == isinstance(known, bool)


def _take(sampling: dict[str, Any], key: str, value: Any, table: str, source: str) -> list[str]:
    """Set a key of the table, if it does not say something else."""
    if key in sampling and sampling[key] != value:
        return [f"{source}: '{table}.extra_body' has another value for '{table}.{key}'; give it once."]
    if value is not None:
        sampling[key] = value
    return []
