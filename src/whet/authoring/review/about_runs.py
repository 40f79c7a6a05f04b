"""What a reviewer says of what a package's code did: importing, loading, its rows. Pure: events in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whet.authoring.review.findings import CODES, Finding
from whet.authoring.review.observations import (
    BatchStarted,
    Effect,
    Event,
    Found,
    Imported,
    Loaded,
    Read,
    Rows,
    SideEffect,
    Split,
)

IN_THE_SANDBOX = "The sandbox has no network and no files but the package's; with --no-sandbox it has yours."
SLOW_IMPORT_S = 5.0
SLOW_LOAD_S = 30.0
EFFECTS: dict[Effect, tuple[str, str, str]] = {
    "writes": ("import-writes", "importing it writes or removes a file", "Do that in load_environment, if at all."),
    "process": ("import-process", "importing it starts a process", "Start it when a rollout needs it."),
    "network": (
        "import-network",
        "importing it uses the network",
        "Fetch data in load_environment, or in its dataset.",
    ),
    "thread": ("import-thread", "importing it starts a thread", "Start it when a rollout needs it."),
    "environment": (
        "import-environment",
        "importing it changes the process around it",
        "Leave environment variables, working directory and signals to the caller.",
    ),
}


def review_files(events: Sequence[Event], ended: str | None) -> Iterator[Finding]:
    """What was found in the package's files, and whether they could be read to their end."""
    for event in events:
        if isinstance(event, Found) and event.code in CODES:
            yield Finding.of(event.code, event.message, event.fix, where=event.where)
    if not any(isinstance(event, Read) for event in events):
        yield Finding.of("unfinished", f"reading its files did not end well: {ended}", "Look for what is so large.")


def review_import(events: Sequence[Event], printed: str, ended: str | None) -> Iterator[Finding]:
    """Side effects of the import, and whether it works."""
    done = next((event for event in events if isinstance(event, Imported)), None)
    for event in events:
        if isinstance(event, SideEffect):
            code, message, fix = EFFECTS[event.effect]
            yield Finding.of(code, f"{message}: {event.detail}", fix, where=event.where)
    if done is None:
        last = printed.strip().splitlines()[-1:]
        said = f" ({last[0]})" if last else ""
        yield Finding.of("unfinished", f"importing it did not end well: {ended}{said}", "Make the import quick.")
        return
    if ended is not None:
        yield Finding.of("unfinished", f"its process did not end well after the import: {ended}", "End it well.")
    if done.error is not None:
        yield Finding.of("import-fails", done.error, "Make it importable with its declared dependencies alone.")
    if done.seconds > SLOW_IMPORT_S:
        yield Finding.of(
            "import-slow", f"importing it took {done.seconds:.1f} s", "Import heavy libraries where they are used."
        )
    if printed.strip() and done.error is None:
        first = printed.strip().splitlines()[0]
        yield Finding.of("import-output", f"importing it prints: {first}", "Log instead, from inside functions.")


def review_load(events: Sequence[Event], ended: str | None, sandbox: bool) -> Iterator[Finding]:
    """`load_environment`: its signature, and what it gives."""
    loaded = next((event for event in events if isinstance(event, Loaded)), None)
    if loaded is None:
        yield Finding.of("unfinished", f"load_environment did not return: {ended}", "Make loading quick.")
        return
    if loaded.error is not None:
        hint = f" {IN_THE_SANDBOX}" if sandbox else ""
        yield Finding.of(
            "load-fails", loaded.error, f"Make it load with its default arguments.{hint}", where=loaded.where
        )
    if loaded.missing_keys:
        yield Finding.of("needs-keys", f"it needs {', '.join(loaded.missing_keys)}", where=loaded.where)
    rows = next((event for event in events if isinstance(event, Rows)), None)
    splits = [split for split in (rows.train, rows.eval) if split is not None] if rows is not None else []
    seconds = loaded.seconds + sum(split.seconds for split in splits)
    if seconds > SLOW_LOAD_S:
        yield Finding.of(
            "load-slow",
            f"loading it and its data took {seconds:.0f} s",
            "Prepare the data beforehand.",
            where=loaded.where,
        )
    yield from _review_signature(loaded)
    if loaded.undescribed:
        yield Finding.of(
            "readme-arguments",
            f"it does not name {', '.join(loaded.undescribed)}",
            "Describe every argument there.",
            where="README.md",
        )


def _review_signature(loaded: Loaded) -> Iterator[Finding]:
    named = [argument for argument in loaded.arguments if not argument.open]
    for lacking, what in (
        ([one.name for one in named if not one.typed], "no type"),
        ([one.name for one in named if not one.has_default], "no default"),
        ([one.name for one in named if not one.documented], "no line in the docstring's Args"),
    ):
        if lacking:
            yield Finding.of(
                "signature",
                f"{what}: {', '.join(lacking)}",
                "Give each argument a type, a default and a line in the docstring.",
                where=loaded.where,
            )
    for argument in loaded.arguments:
        if argument.open:
            yield Finding.of(
                "signature",
                f"'{argument.name}' takes whatever is given, misspelt arguments as well",
                "Name the arguments that there are.",
                where=loaded.where,
            )


def review_rows(events: Sequence[Event], again: Sequence[Event]) -> Iterator[Finding]:
    """The two splits, and whether a second load gives the same (`again`)."""
    rows = next((event for event in events if isinstance(event, Rows)), None)
    if rows is None:
        return
    for name, split in (("training", rows.train), ("evaluation", rows.eval)):
        if split is not None:
            yield from _review_split(name, split)
    if rows.eval is None:
        yield Finding.of(
            "no-eval-split",
            "there is no eval_dataset, so a model would be evaluated on what it was trained on",
            "Hold tasks out, for instance by a hash of the task, and give them as eval_dataset.",
        )
    if rows.overlap:
        yield Finding.of(
            "splits-overlap",
            f"{rows.overlap} of {rows.eval.rows if rows.eval else 0} evaluation tasks are training tasks as well, "
            f"for instance: {rows.overlapping}",
            "Decide by a hash of the task itself which split it is in.",
        )
    if rows.shared_prompts and rows.prompts_are_tasks:
        yield Finding.of(
            "splits-share-prompts",
            f"prompts that are in both splits with different answers: {rows.shared_prompts}, for instance: "
            f"{rows.shared_prompt}",
            "Decide by a hash of the prompt which split it is in.",
        )
    second = next((event for event in again if isinstance(event, Rows)), None)
    for name, first, later in (
        ("training", rows.train, second.train if second else None),
        ("evaluation", rows.eval, second.eval if second else None),
    ):
        if first is not None and later is not None and first.digest != later.digest:
            yield Finding.of(
                "rows-vary",
                f"the {name} rows differ from one process to the next",
                "Draw them from a seed, and do not depend on the order of sets.",
            )


def _review_split(name: str, split: Split) -> Iterator[Finding]:
    if split.error is not None:
        yield Finding.of("rows", f"{name} split: {split.error}", "Make every row a task.")
    for problem in split.type_problems:
        yield Finding.of("row-types", f"{name} split: {problem}", "Keep `answer` text and `info` plain JSON values.")
    if split.duplicates:
        yield Finding.of(
            "duplicates",
            f"{split.duplicates} of {split.rows} {name} rows repeat another, for instance: {split.duplicate}",
        )


def last_started(events: Sequence[Event]) -> str:
    """The probe that was at work at the end."""
    return next((event.probe for event in reversed(events) if isinstance(event, BatchStarted)), "")
