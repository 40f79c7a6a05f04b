"""Other spellings of config keys that people's existing files use. Nothing else in whet knows of them.

Applied to the raw tables before validation. Giving a key in both spellings is an error, since one would be lost.

`extra_body` of `[sampling]`, as files for other trainers have it: fields of a server's request, as whet's own keys.

A run's requests are whet's own, to the embedded engine as to vLLM, and its learner needs the probability of each token
under the policy. So a field is another key of `[sampling]`, or what whet does in any case, or it is refused: with it
logprobs would be those of another distribution than the one that is learned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from whet.errors import ConfigError

logger = logging.getLogger(__name__)

SPELLINGS: dict[str, str] = {
    "model_name": "model",
    "lora_rank": "lora.rank",
    "lora_alpha": "lora.alpha",
    "difficulty_threshold": "buffer.difficulty_threshold",
    "use_difficulty_filtering": "buffer.online_difficulty_filtering",
    "num_gpus": "deployment.num_gpus",
    "num_train_gpus": "deployment.num_train_gpus",
    "num_infer_gpus": "deployment.num_infer_gpus",
    "tensor_parallel_size": "inference.tensor_parallel_size",
    "pipeline_parallel_size": "inference.pipeline_parallel_size",
    "gpu_memory_utilization": "inference.gpu_memory_utilization",
    "max_model_len": "inference.max_model_len",
}
BELOW: dict[str, tuple[str, ...]] = {
    "wandb": ("env_file",),
    "sampling": ("num_gpus", "tensor_parallel_size", "pipeline_parallel_size"),
}
"""Keys of the file that reference configs of other trainers have below the header of a table."""


def lifted(data: dict[str, Any], source: str, tables: Sequence[str] = tuple(BELOW)) -> dict[str, Any]:
    """The tables of a file with the keys of `BELOW` where they belong, and one warning that names them.

    `data` is changed in place and returned. Raises `ConfigError` for one that is there as well.
    """
    keys: list[str] = []
    for table in tables:
        section = data.get(table)
        for key in BELOW[table]:
            if not isinstance(section, dict) or key not in section:
                continue
            if key in data:
                raise ConfigError(f"{source}: '{key}' and '{table}.{key}' are the same key; give it once.")
            data[key] = section.pop(key)
            keys.append(f"{table}.{key} is read as {key}")
    if keys:
        where = "In a file such a key belongs above the first [table] header; below one it is that table's."
        logger.warning("%s: %s. %s", source, ", ".join(keys), where)
    return data


def canonical(data: dict[str, Any], source: str) -> dict[str, Any]:
    """The same tables in whet's own spelling. `data` is changed in place and returned."""
    for old, new in SPELLINGS.items():
        if old in data:
            _move(data, old, new, source)
    if (use_lora := data.pop("use_lora", None)) is not None:
        if use_lora is True:
            data.setdefault("lora", {})
        elif use_lora is False and "lora" in data:
            raise ConfigError(f"{source}: use_lora = false contradicts [lora]; remove one of the two.")
        elif not isinstance(use_lora, bool):
            raise ConfigError(f"{source}: 'use_lora': should be true or false (got {use_lora!r}).")
    evaluation = data.get("eval")
    for table, sampling in (
        ("sampling", data.get("sampling")),
        ("eval.sampling", evaluation.get("sampling") if isinstance(evaluation, dict) else None),
    ):
        if isinstance(sampling, dict):
            merge_request_fields(sampling, table, source)
    if isinstance(data.get("env"), dict):
        data["env"] = [data["env"]]
    return data


def canonical_overrides(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Overrides with whet's own spelling of their keys, so that they replace what a file says in either spelling."""
    given = {key for key, _ in pairs}
    for old, new in SPELLINGS.items():
        if old in given and new in given:
            raise ConfigError(f"--{old} and --{new} are the same key; give it once.")
    return [(SPELLINGS.get(key, key), value) for key, value in pairs]


def _move(data: dict[str, Any], old: str, new: str, source: str) -> None:
    *sections, last = new.split(".")
    table: dict[str, Any] = data
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: '{section}' should be a table.")
    if last in table:
        raise ConfigError(f"{source}: '{old}' and '{new}' are the same key; give it once.")
    table[last] = data.pop(old)


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


def merge_request_fields(sampling: dict[str, Any], table: str, source: str) -> None:
    """Replace `extra_body` and other fields of requests in the raw `sampling` table, called `table`, by what they mean.

    Raises `ConfigError`, a line for each field that is refused.
    """
    lines = [
        f"{source}: '{table}.{key}' is not a setting of a run: {REASONS[key]}. Remove the key."
        for key in [*sampling]
        if key in REASONS and not _always(key, sampling.pop(key))
    ]
    extra = sampling.pop("extra_body", {})
    if not isinstance(extra, Mapping):
        raise ConfigError(f"{source}: '{table}.extra_body' should be a table.")
    fields = dict(extra)
    template = fields.pop("chat_template_kwargs", None) or {}
    if not isinstance(template, Mapping):
        raise ConfigError(f"{source}: '{table}.extra_body.chat_template_kwargs' should be a table.")
    lines += [
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
