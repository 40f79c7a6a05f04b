"""The command that continues an evaluation: what was asked for, as words for a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.config import options_of
from whet.evals.config import EvalConfig

REPEATED = options_of(EvalConfig, without=("environment", "model", "base_url", "resume", "save"))


def resume_command(metadata: Mapping[str, Any], directory: Path) -> str | None:
    """`whet eval run ... --resume=DIRECTORY`; None where `metadata.json` does not say how it was run."""
    config = metadata.get("config")
    if not isinstance(config, Mapping) or not isinstance(config.get("environment"), str):
        return None
    words = ["whet", "eval", "run", config["environment"], *_model(config)]
    for name, field in REPEATED.items():
        value = config.get(name)
        if value is None or value in ([], {}, False) or value == _plain(field.default):
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option)
        elif isinstance(value, Mapping):
            words += [option, json.dumps(value)]
        elif isinstance(value, list):
            words += [option, ",".join(map(str, value))]
        else:
            words.append(f"{option}={value}")
    return shlex.join([*words, f"--resume={directory}"])


def _model(config: Mapping[str, Any]) -> list[str]:
    if config.get("short_name"):
        return ["-m", str(config["short_name"])]
    words = ["-m", str(config.get("model"))]
    return [*words, "-b", str(config["base_url"])] if config.get("base_url") else words


def _plain(default: Any) -> Any:
    return str(default) if isinstance(default, Path) else default
