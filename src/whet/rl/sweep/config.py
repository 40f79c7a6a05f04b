"""What a sweep varies over which values, how it chooses among them, and what it may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import tomli_w
from pydantic import BeforeValidator, Field, model_validator

from whet.config import Option, StrictModel, parse_overrides, read_toml, table_of, validate
from whet.errors import ConfigError

if TYPE_CHECKING:
    from whet.rl.config import RunConfig
    from whet.rl.sft.config import SftConfig

Method = Literal["grid", "random", "tpe", "asha"]
OWN_KEYS = ("name", "runs_directory", "budget.max_rollouts", "budget.max_rows", "deployment.threads")
"""Keys of a run that the sweep sets for each trial."""


class Range(StrictModel):
    """`{ low = 1e-5, high = 1e-3, log = true }`: any number between, a whole one where both ends are."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} is not below high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low = {self.low} has no logarithm; it needs to be above 0")
        return self


def _values(value: Any) -> Any:
    return value if isinstance(value, list | tuple | Mapping | Range) else [value]


Values = Annotated[Range | tuple[bool | int | float | str | list[Any], ...], BeforeValidator(_values)]


class SweepConfig(StrictModel):
    """The keys of a sweep file, which are options of `whet train sweep`."""

    name: str | None = Field(
        None,
        min_length=1,
        description="Name of the sweep: its folder is runs/NAME, its trials are runs/NAME-0, ...; "
        "by default that of the file with -sweep.",
    )
    method: Method = Field(
        "grid",
        description="How trials are chosen: grid (every combination), random, tpe (Optuna's, by the scores so far), or "
        "asha (as grid or random, and trials that are behind are stopped early).",
    )
    trials: int | None = Field(None, ge=1, description="Trials at most; needed where a range is varied, and by tpe.")
    rollouts: int | None = Field(
        None,
        ge=1,
        description="Budget of the whole sweep: rollouts (of whet train sft: rows) trained on. What would exceed it is "
        "not begun.",
    )
    parallel: int = Field(1, ge=1, description="Trials at once, each with its share of the threads.")
    rungs: int = Field(3, ge=2, description="asha: how often a trial is judged, the last time after all of its steps.")
    reduction: int = Field(
        3, ge=2, description="asha: one of so many trials goes on to the next rung, which has so many times the steps."
    )
    metric: str = Field(
        "reward",
        min_length=1,
        description="Held-out score: reward, or a reward function or metric of the rubric; or validation/loss.",
    )
    environment: str | None = Field(
        None, description="Environment whose score counts; absent: the mean of all that are evaluated."
    )
    vary: Annotated[dict[str, Values], Option(offered=False)] = Field(
        min_length=1,
        description="Values by key of the run's config: a list, a range, or a single value for all trials.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for key in self.vary:
            if key in OWN_KEYS or any(key.startswith(f"{own}.") for own in OWN_KEYS):
                raise ValueError(f"vary: '{key}' is set by the sweep for each trial, and cannot be varied")
            values = self.vary[key]
            if not isinstance(values, Range) and any(value in values[:at] for at, value in enumerate(values)):
                raise ValueError(f"vary: '{key}' has a value twice")
            if values == ():
                raise ValueError(f"vary: '{key}' has no values")
        ranges = [key for key, values in self.vary.items() if isinstance(values, Range)]
        if ranges and self.method == "grid":
            raise ValueError(
                f"vary: '{ranges[0]}' is a range, which a grid cannot have: give values, or method = random"
            )
        if self.trials is None and (ranges or self.method == "tpe"):
            raise ValueError("trials is missing: a range, and tpe, have no last trial of their own")
        if self.method != "asha":
            for key in ("rungs", "reduction"):
                if self.differs(key):
                    raise ValueError(f"{key} would have no effect: it is of method = asha")
        return self

    @property
    def varied(self) -> list[str]:
        """The keys that differ between trials."""
        return [key for key, values in self.vary.items() if isinstance(values, Range) or len(values) > 1]

    @property
    def most_trials(self) -> int:
        if self.trials is not None and (self.method == "tpe" or self.has_ranges):
            return self.trials
        every = prod(len(values) for values in self.vary.values() if not isinstance(values, Range))
        return every if self.trials is None else min(every, self.trials)

    @property
    def has_ranges(self) -> bool:
        return any(isinstance(values, Range) for values in self.vary.values())

    def targets(self, max_steps: int) -> list[int]:
        """Steps after which a trial of `max_steps` is judged; the last are all of them."""
        if self.method != "asha":
            return [max_steps]
        return [-(-max_steps // self.reduction**left) for left in reversed(range(self.rungs))]


def load_sweep(path: Path, given: Mapping[str, Any], vary: Sequence[str]) -> tuple[SweepConfig, Path]:
    """The sweep, and the file of the run's config. `path` is either that file, or a sweep file with `config`.

    Args:
        path: a TOML file.
        given: keys of `SweepConfig` from the command line, which go over the file's.
        vary: `key=values` from the command line, which go over `[vary]`.

    Raises `ConfigError`, one line per mistake.
    """
    data, base = read_toml(path), path
    if "vary" in data or "config" in data:
        config = data.pop("config", None)
        if not isinstance(config, str):
            raise ConfigError(f"{path}: 'config' is missing; it names the run's config file, relative to this file.")
        base = path.parent / config
        flat = dict(_flat(table_of(data, "vary")))
        data = {**data, "vary": flat} if isinstance(data.get("vary", {}), dict) else data
    else:
        data = {"vary": {}}
    data = {**data, **given, "vary": {**data.get("vary", {}), **dict(map(_parsed, vary))}}
    if not data["vary"]:
        raise ConfigError(f"{path}: there is nothing to vary. Give --vary KEY=VALUE,VALUE, or a [vary] table.")
    data.setdefault("name", f"{path.stem}-sweep")
    return validate(SweepConfig, data, str(path)), base


def imitates(base: Path) -> bool:
    """Whether the config is one of `whet train sft`."""
    return "data" in read_toml(base)


def trial_config(base: Path, values: Mapping[str, Any], metric: str = "reward") -> RunConfig | SftConfig:
    """The config of a trial, which goes by `metric`. Raises `ConfigError`."""
    if imitates(base):
        return _fine_tuning(base, values, metric)
    from whet.rl.config import load_run_config

    config = load_run_config(base, overrides(values))
    if not config.eval.after:
        raise ConfigError(f"{base}: a sweep goes by the score after training; leave eval.after at true.")
    if config.budget.max_rollouts is not None:
        raise ConfigError(f"{base}: budget.max_rollouts is set by the sweep for each trial; give `rollouts` for all.")
    return config


def _fine_tuning(base: Path, values: Mapping[str, Any], metric: str) -> SftConfig:
    from whet.rl.sft.config import VALIDATION_LOSS, load_sft_config

    config = load_sft_config(base, overrides(values))
    if metric == VALIDATION_LOSS and config.validation is None:
        raise ConfigError(f"{base}: --metric {metric} needs [validation], rows that are never trained on.")
    if metric != VALIDATION_LOSS and not (config.samples and config.eval.after):
        raise ConfigError(
            f"{base}: --metric {metric} needs an [[eval.env]] that is evaluated after training. Give one, with "
            f"eval.after at true, or --metric {VALIDATION_LOSS}."
        )
    if config.max_steps is None or config.batch_tokens is not None:
        key = "max_steps in place of num_epochs" if config.max_steps is None else "batch_size without batch_tokens"
        raise ConfigError(f"{base}: a sweep counts steps and rows before it reads any; set {key}.")
    if config.budget.max_rows is not None:
        raise ConfigError(f"{base}: budget.max_rows is set by the sweep for each trial; give `rollouts` for all.")
    return config


def overrides(values: Mapping[str, Any]) -> list[str]:
    """`--key=value` of each, as the command line of `whet train run` has it."""
    return [f"--{key}={tomli_w.dumps({'v': value}).partition('=')[2].strip()}" for key, value in values.items()]


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`lora.rank = [8]` of a TOML file by its dotted name. A table with `low` is a range."""
    for key, value in table.items():
        if isinstance(value, dict) and "low" not in value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parsed(text: str) -> tuple[str, Any]:
    """`learning_rate=1e-4,1e-3`, `lora.rank=[8, 16]` or `learning_rate={low=1e-5, high=1e-3, log=true}`."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise ConfigError(f"--vary {text}: expected KEY=VALUE,VALUE, for example --vary learning_rate=1e-4,1e-3")
    [(key, value)] = parse_overrides([f"--{key.strip()}={values.strip()}"])
    if isinstance(value, str) and not values.strip().startswith(('"', "'")):
        value = [parse_overrides([f"--x={part.strip()}"])[0][1] for part in value.split(",")]
    return key, value
