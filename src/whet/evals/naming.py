"""Where the results of an evaluation are saved."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from whet.evals.config import EvalConfig


def results_directory(config: EvalConfig) -> Path:
    """`outputs/evals/<env>--<model>/<id>`, new every time."""
    return config.output_directory / f"{_slug(config.label)}--{_slug(config.model)}" / uuid.uuid4().hex[:8]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.@-]+", "--", name).strip("-.") or "unnamed"
