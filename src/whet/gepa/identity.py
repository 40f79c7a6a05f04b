"""What makes a search the one it is: a run that is continued has all of it in common with the run before.

How many calls it may make is no part of it, nor how fast they are made, nor where its model is reached.
"""

from __future__ import annotations

import json
from typing import Any

from whet.evals.config import EvalConfig
from whet.evals.identity import digest_of_tasks, environment_source, model_files
from whet.gepa.config import GepaConfig
from whet.gepa.splits import Splits
from whet.gepa.types import Candidate
from whet.system.redaction import redacted

FREE_IN_SEARCH = {"held_out", "confirm_calls", "max_retries", "retry_delay", "max_unusable"}


def identity_of(
    config: GepaConfig, policy: EvalConfig, reflector: EvalConfig, seed: Candidate, splits: Splits
) -> dict[str, Any]:
    """As JSON values."""
    fields = {
        "env": {
            section.label: {
                "environment": section.label,
                **environment_source(section.id),
                "args": section.loader_args(),
                "weight": section.weight,
            }
            for section in config.env
        },
        "model": _model(config, policy),
        "reflection_model": _model(config, reflector),
        "sampling": config.sampling,
        "reflection_sampling": config.reflection_sampling,
        "seed": config.seed,
        "num_train": config.num_train,
        "num_val": config.num_val,
        "minibatch_size": config.minibatch_size,
        "perfect_score": config.perfect_score,
        "state_columns": list(config.state_columns),
        "components": list(config.components),
        "timeout": config.timeout,
        "gepa": config.gepa.model_dump(mode="json", exclude=FREE_IN_SEARCH),
        "seed_candidate": dict(seed),
        "tasks": {
            "train": digest_of_tasks(example.row for example in splits.train),
            "val": digest_of_tasks(example.row for example in splits.val),
        },
    }
    plain: dict[str, Any] = redacted(json.loads(json.dumps(fields, default=str)))
    return plain


def _model(config: GepaConfig, model: EvalConfig) -> dict[str, Any]:
    return {
        "name": model.model,
        "runs": "here" if model.local else "behind an endpoint",
        "files": model_files(model.model) if model.local else None,
        "dtype": config.dtype if model.local else None,
    }
