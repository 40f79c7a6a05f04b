"""Several runs over one another: what differs in their configs, their curves, their held-out scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whet.dashboard.data.facts import config_of, evaluations
from whet.dashboard.data.series import metrics
from whet.dashboard.errors import DashboardError
from whet.dashboard.library import LibraryRun
from whet.records.differences import ABSENT, OF_THE_RUN_ITSELF, flat

if TYPE_CHECKING:
    from whet.dashboard.data.dashboard_data import DashboardData

MOST_DIFFERENCES = 500


def compare(
    data: DashboardData, runs: Sequence[LibraryRun], names: Sequence[str] = (), points: int = 500
) -> dict[str, Any]:
    """Lists are in the order of `runs`, null where a run has nothing."""
    from whet.rl.stored.compare import HEADLINES

    environments = list(dict.fromkeys(name for run in runs for name in run.environments))
    each = [f"reward/{name}/mean" for name in environments] if len(environments) > 1 else []
    wanted = list(names) or [HEADLINES[0], *each, *HEADLINES[1:]]
    curves = [None if run.directory is None else metrics(data.series, run, wanted, points) for run in runs]
    scores = [_scores(run) for run in runs]
    known = dict.fromkeys(name for one in curves if one is not None for name in one["series"])
    lasts = [one["last_step"] or 0 for one in curves if one is not None]
    return {
        "runs": [run.view() for run in runs],
        "config": config_table([_config(run) for run in runs]),
        "names": [name for name in wanted if name in known] + sorted(set(known) - set(wanted)),
        "curves": curves,
        "common_steps": min(lasts, default=0),
        "held_out": [
            {"environment": key[0], "sampling": key[1], "rewards": [one.get(key) for one in scores]}
            for key in dict.fromkeys(key for one in scores for key in one)
        ],
    }


def _config(run: LibraryRun) -> Mapping[str, Any]:
    try:
        return config_of(run)
    except (DashboardError, FileNotFoundError):
        return {}


def config_table(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The values of each setting that is not the same in all configs, by path; `absent` where one does not have it."""
    values = [flat(config) for config in configs]
    table: dict[str, list[Any]] = {}
    for path in sorted({path for one in values for path in one}):
        row = [one.get(path, ABSENT) for one in values]
        if path not in OF_THE_RUN_ITSELF and any(value != row[0] for value in row) and len(table) < MOST_DIFFERENCES:
            table[path] = row
    return table


def _scores(run: LibraryRun) -> dict[tuple[str, str], dict[str, Any]]:
    """By environment and way of sampling: the newest reward and its step."""
    if run.directory is None or run.kind not in ("training", "sft"):
        return {}
    newest = {}
    for item in evaluations(run):
        for score in item["scores"]:
            key = str(score.get("environment")), str(score.get("sampling"))
            newest[key] = {"step": item["step"], "reward": score.get("reward"), "moment": item["moment"]}
    return newest
