"""Command groups whose module is imported when one of their commands is asked for, and not to list the groups."""

from __future__ import annotations

from importlib import import_module

import typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.models import Context

from whet.cli.unknown import SuggestingGroup


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
