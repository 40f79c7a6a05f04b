"""Write docs/config.md from the descriptions in the config classes. A test checks that it has been done."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from whet.config import section_of
from whet.gepa.config import GepaConfig
from whet.rl.config import RunConfig
from whet.rl.sft.config import SftConfig

TARGET = Path(__file__).parents[1] / "docs" / "config.md"
HEADER = """# Every config key

Written by `scripts/config_reference.py` from the classes themselves. [Training](training.md) explains what they do.
Each key can be given on the command line as well: `--sampling.max_tokens 256`, `--env.0.weight 2`.
"""

FILLED_IN = {"name": "the file's name"}
"""Keys whose default is not the class's, but set where a file is read."""


FINE_TUNING = """
# Keys of `whet train sft`

[Supervised fine-tuning](guides/sft.md) explains them. `[lora]`, `[optimizer]`, `[learner]`, `[eval]`, `[sampling]`,
`[checkpointing]`, `[watchdog]`, `[inference]`, `[deployment]`, `[wandb]` and `[trackio]` are as above.
"""
ITS_OWN = ("data", "validation", "budget", "early_stop")
"""Sections that only fine-tuning has."""


PROMPTS = """
# Keys of `whet gepa run`

[Prompt optimisation](guides/gepa.md) explains them. On the command line those above the tables are options of the same
names: `--max-calls 800`.
"""


def reference() -> str:
    training = "".join(tables(RunConfig, "", ())) + FINE_TUNING + "".join(fine_tuning())
    return HEADER + training + PROMPTS + "".join(tables(GepaConfig, "", ()))


def fine_tuning() -> list[str]:
    shared = {name for name, field in SftConfig.model_fields.items() if section_of(field.annotation) is not None}
    return tables(SftConfig, "", (), without=shared - {*ITS_OWN})


def tables(model: type[BaseModel], title: str, seen: tuple[str, ...], without: Collection[str] = ()) -> list[str]:
    """The table of one section, and after it those of the sections inside, except those named in `without`."""
    rows, inside = [], []
    for name, field in model.model_fields.items():
        if name in without:
            continue
        section = section_of(field.annotation)
        if section is None:
            usual = FILLED_IN.get(".".join((*seen, name)), default(field))
            rows.append(f"| `{name}` | {kind(field.annotation)} | {usual} | {cell(field.description)} |")
            continue
        path = (*seen, name)
        many = get_origin(field.annotation) in (tuple, list)
        heading = f"[[{'.'.join(path)}]]" if many else f"[{'.'.join(path)}]"
        inside += tables(section, f"\n## `{heading}`\n\n{cell(field.description)}\n", path)
    body = ["\n| key | type | default | meaning |\n|---|---|---|---|\n", "\n".join(rows), "\n"] if rows else []
    return [title, *body, *inside]


def kind(annotation: Any) -> str:
    """A type as a person would say it in TOML."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " \\| ".join(f"`{toml(value)}`" for value in arguments)
    if origin is Annotated:
        return kind(arguments[0])
    if origin in (tuple, list):
        return f"list of {kind(arguments[0])}"
    if origin is dict or annotation is dict:
        return "table"
    if origin is Union or type(annotation).__name__ == "UnionType":
        return " or ".join(kind(argument) for argument in arguments if argument is not type(None))
    names = {int: "integer", float: "number", str: "string", bool: "boolean", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default_factory() if field.default is PydanticUndefined else field.default
    return "" if value is None or value == {} else f"`{toml(value)}`"


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml, value))}]"
    return str(value)


def cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
    print(TARGET)
