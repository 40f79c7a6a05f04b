"""Groups of commands: their modules are imported when used, and an unknown command gets a suggestion."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.models import Context

from whet.errors import ConfigError

COMMANDS_OF_OTHERS = {
    "whet eval": {"tui": "`whet view`"},
    "whet env": {
        "new": "`whet env init NAME`",
        "create": "`whet env init NAME`",
        "publish": "`whet env push NAME`",
        "upload": "`whet env push NAME`",
        "download": "`whet env pull OWNER/NAME`",
        "search": "`whet env list --search TEXT`",
    },
    "whet train": {
        "start": "`whet train run FILE`",
        "rl": "`whet train run FILE`",
    },
    "whet": {
        "rl": "`whet train run FILE`",
        "sft": "`whet train sft FILE`",
        "run": "`whet train run FILE`, or `whet eval run ENV`",
        "init": "`whet env init NAME`",
        "install": "`whet env install ENV`",
        "push": "`whet env push NAME`",
        "publish": "`whet env push NAME`",
        "prime-rl": "`whet train run FILE`",
        "inference": "`whet serve MODEL`",
        "tui": "`whet view`",
    },
}
"""By group: names that comparable tools have for something, and the command that does it here."""

OF_CONFIGS, OF_ENVIRONMENTS = re.compile(r"\bFILE\b"), re.compile(r"\b(?:OWNER/NAME|NAME|ENV|TEXT)\b")
"""What is replaced in those commands by the argument that was given."""

TARGETS = {"whet train": "run", "whet eval": "run", "whet gepa": "run"}
"""The command of a group that takes a config file (or, except for training, an environment)."""


class SuggestingGroup(TyperGroup):
    """A group whose error for an unknown command says what to type; without a command it prints its help."""

    def parse_args(self, ctx: Context, args: list[str]):  # type: ignore[no-untyped-def, override]
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Context, args: list[str]):  # type: ignore[no-untyped-def, override]
        word = args[0]
        if not word.startswith("-") and self.get_command(ctx, word) is None:
            raise ConfigError(unknown_command(ctx.command_path, args, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


def lazy_group(module: str, summary: str) -> typer.Typer:
    """The group whose commands are those of `app` in `module`; `summary` is its line in `whet --help`."""

    class LazyGroup(SuggestingGroup):
        def load(self) -> None:
            if not self.commands:
                group = get_command(import_module(module).app)
                assert isinstance(group, TyperGroup)
                self.commands.update(group.commands)

        def list_commands(self, ctx: Context) -> list[str]:  # type: ignore[override]
            self.load()
            return list(self.commands)

        def get_command(self, ctx: Context, cmd_name: str):  # type: ignore[no-untyped-def, override]
            self.load()
            return self.commands.get(cmd_name)

    return typer.Typer(cls=LazyGroup, help=summary, no_args_is_help=True)


def unknown_command(group: str, args: Sequence[str], commands: Sequence[str]) -> str:
    """The error for `args` after `group` ("whet train"), which has these `commands`."""
    word = args[0]
    instead = COMMANDS_OF_OTHERS.get(group, {}).get(word)
    if instead is not None and len(args) == 2 and not args[1].startswith("-"):
        holders = OF_CONFIGS if args[1].endswith(".toml") else OF_ENVIRONMENTS
        instead = holders.sub(lambda _: args[1], instead)
    if instead is None and group in TARGETS and (word.endswith(".toml") or Path(word).exists()):
        instead = _quoted(group, TARGETS[group], *args)
    if instead is None:
        near = difflib.get_close_matches(word, commands, n=1)
        instead = _quoted(group, *near, *args[1:]) if near else None
    if instead is None and group in ("whet eval", "whet gepa"):  # an environment, most likely
        instead = f"{_quoted(group, TARGETS[group], *args)}, if {word} is an environment"
    if instead is None:
        return f"there is no command `{group} {word}`. `{group} --help` lists the commands."
    return f"there is no command `{group} {word}`. Type {instead}."


def _quoted(*words: str) -> str:
    return f"`{' '.join(words)}`"
