"""`whet train submit`, `eval submit`, `gepa submit`: show what will be sent, ask, and queue it on the service."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whet.cli.options import check_config_first
from whet.cli.output import JsonOption, extra, print_json, progress_bar
from whet.cli.service.common import CapCost, CapHours, CapTokens, caps_of, needs_text, size_text
from whet.cli.sharing.common import HubOption, safe
from whet.errors import ConfigError
from whet.system.terminal import safe_text

if TYPE_CHECKING:
    from whet.hub.answers import VersionAnswer
    from whet.hub.client.connection import HubClient
    from whet.hub.client.package import Built, PackageSource
    from whet.service.answers import ServiceAnswer, SubmittedRun
    from whet.service.client.connection import Submission
    from whet.service.client.environments import Origin
    from whet.service.client.packed import Packed

SHOWN_FILES = 12
SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

VARIABLE_HELP = "A secret of the run; KEY alone takes the value set here."
VariableOption = Annotated[list[str] | None, typer.Option("--env-var", help=VARIABLE_HELP, metavar="KEY[=V]")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Options that every submission has."""

    owner: Annotated[
        str | None, typer.Option(help="User or organisation it belongs to.", show_default="`whet config`'s, or you")
    ] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; push environments that are new.")] = False
    skip_action_check: Annotated[
        bool, typer.Option("--skip-action-check", help="Take a version of an environment that the hub's trial refused.")
    ] = False
    cores: Annotated[int | None, typer.Option(min=1, help="Cores to keep for it.", show_default="by the config")] = None
    memory: Annotated[
        str | None, typer.Option(help="Memory to keep for it, such as 8G.", show_default="by the estimate")
    ] = None
    devices: Annotated[int | None, typer.Option(min=0, help="GPUs to keep for it.", show_default="by the config")] = (
        None
    )
    disk: Annotated[
        str | None, typer.Option(help="What its folder may take, such as 50G.", show_default="8 times the memory")
    ] = None
    cap_hours: CapHours = None
    cap_tokens: CapTokens = None
    cap_cost: CapCost = None
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Among the owner's own; higher is sooner.")] = 0
    auto_bump: Annotated[
        bool, typer.Option("--auto-bump", help="Raise an environment's version where the hub has it with other files.")
    ] = False
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Push environments with changes that git has no commit of.")
    ] = False
    hub: HubOption = None
    json_output: JsonOption = False

    @property
    def needs(self) -> dict[str, float]:
        """Those that are given. Raises `ConfigError`."""
        memory, disk = _bytes("memory", self.memory), _bytes("disk", self.disk)
        needs = {"cores": self.cores, "devices": self.devices, "memory": memory, "disk": disk}
        return {name: float(value) for name, value in needs.items() if value is not None}


def with_choices(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of every submission, in place of its parameter `choices`."""
    shared = inspect.signature(Choices, eval_str=True).parameters

    @functools.wraps(command)
    def run(**values: Any) -> None:
        chosen = Choices(**{name: values.pop(name) for name in shared})
        command(**values, choices=chosen)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += shared.values() if name == "choices" else [own]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@with_choices
def train_submit(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The TOML file, as for `train run` or `train sft`.")],
    choices: Choices,
    name: Annotated[str | None, typer.Option(help="Name of the run.", show_default="the file's")] = None,
    env_var: Annotated[list[str] | None, typer.Option("-e", "--env-var", help=VARIABLE_HELP, metavar="KEY[=V]")] = None,
    env_file: Annotated[
        list[Path] | None,
        typer.Option("--env-file", help="File of KEY=VALUE lines: secrets of the run.", metavar="FILE"),
    ] = None,
) -> None:
    """Queue a training run on the service; any key of the file can follow it, as --key value.

    What `train run` refuses is refused here. Files that the config names are sent along, and environments in folders
    are packaged and pushed. Shows all of it and asks first.

    \b
    Examples:
      whet train submit my.toml
      whet train submit my.toml --max_steps 200 -e OPENAI_API_KEY --cap-hours 2
      whet train submit configs/sft/hours.toml --env-file secrets.env -y
    """
    with extra("train", "checking a training config"):
        from whet.service.client.packed import secrets_of
        from whet.service.client.training import load_config, pack

        check_config_first(context, config)
        resolved = load_config(config, [*(["--name", name] if name is not None else []), *context.args])
        secrets = secrets_of([*(env_file or []), *resolved.env_file], env_var or [])
        submit_packed(lambda service, url: pack(resolved, service, secrets, url), secrets, choices)


def submit_packed(pack: Callable[[ServiceAnswer, str], Packed], secrets: Mapping[str, str], choices: Choices) -> None:
    """Show what `pack` makes, ask, and send it. Raises `WhetError`."""
    from whet.hub.client.publish import default_owner
    from whet.service.client.connection import Submission, ask_service, connect_service, submit
    from whet.service.client.environments import origin_of
    from whet.service.client.packed import changed_needs

    needs = choices.needs
    if not choices.yes and not sys.stdin.isatty():
        raise ConfigError("there is no terminal to ask on. Add -y to submit without a question.")
    with connect_service(choices.hub) as service:
        there = ask_service(service)
        packed = pack(there, service.url)
        packed.needs = changed_needs(packed.needs, needs)
        packed.config(secrets)  # refuses secrets before anything is shown or sent
        installed = {one.id.replace("_", "-").lower(): one for one in there.environments}
        origins = {env_id: origin_of(env_id, installed) for env_id in packed.environment_ids}
        owner = choices.owner or default_owner(service)
        _show(packed, origins, secrets, owner, service.url, aside=choices.json_output)
        if not choices.yes and not typer.confirm("submit it?", err=True):
            raise typer.Exit(1)
        pinned = _pinned(service, owner, origins, choices)
        environments = packed.settle(pinned)
        submission = Submission(
            owner,
            packed.name,
            packed.kind,
            packed.config(secrets),
            packed.files,
            environments,
            packed.needs,
            secrets,
            caps_of(choices.cap_hours, choices.cap_tokens, choices.cap_cost),
            choices.priority,
            choices.skip_action_check,
        )
        run, new = _sent(service, submission, submit, choices)
        if choices.json_output:
            print_json({"new": new, **run.as_dict(), "url": _page(service, run)})
        else:
            _show_submitted(run, new, _page(service, run))


def _sent(
    service: HubClient, submission: Submission, submit: Callable[..., tuple[SubmittedRun, bool]], choices: Choices
) -> tuple[SubmittedRun, bool]:
    """The answer; what the service refuses of a config is listed, a line each."""
    from whet.hub.client.connection import HubRequestError

    with progress_bar(quiet=choices.json_output or not sys.stderr.isatty()) as progress:
        try:
            return submit(service, submission, progress)
        except HubRequestError as error:
            lines = [
                f"{safe_text(str(one.get('field', '')), 80)}: {safe_text(str(one.get('reason', '')), 500)}"
                for one in error.details
                if isinstance(one, dict)
            ]
            if error.code != "refused_config" or not lines:
                raise
            raise HubRequestError("\n".join(["the service refuses this:", *lines]), error.code) from None


def _pinned(service: HubClient, owner: str, origins: Mapping[str, Origin], choices: Choices) -> dict[str, str]:
    """The id of each environment as the service knows it; packages are pushed first."""
    from whet.service.client.environments import pinned

    pushed: dict[Path, VersionAnswer] = {}

    def push(source: PackageSource) -> VersionAnswer:
        if source.folder not in pushed:
            pushed[source.folder] = _push(service, owner, source, choices)
        return pushed[source.folder]

    return {
        env_id: pinned(origin, service, push, skip_action_check=choices.skip_action_check)
        for env_id, origin in origins.items()
    }


def _push(service: HubClient, owner: str, source: PackageSource, choices: Choices) -> VersionAnswer:
    from whet.cli.sharing.packages import show_findings
    from whet.hub.client.publish import Options, push, refuse_unready

    def say(text: str) -> None:
        typer.echo(text, err=choices.json_output)

    options = Options(None, choices.auto_bump, choices.allow_dirty)
    refuse_unready(source, options, lambda report: show_findings(report, quiet=True))
    with progress_bar(quiet=choices.json_output or not sys.stderr.isatty()) as progress:
        done = push(
            service,
            owner,
            source,
            options,
            preview=_warn,
            say=say,
            progress=progress,
        )
    say(f"{'pushed' if done.new else 'on the hub already:'} {done.version.id} ({done.version.visibility})")
    return done.version


def _warn(source: PackageSource, built: Built) -> None:
    for warning in built.warnings:
        typer.echo(f"warning: {safe_text(warning, 300)}", err=True)


def _show(
    packed: Packed, origins: Mapping[str, Origin], secrets: Mapping[str, str], owner: str, url: str, aside: bool
) -> None:
    """What will be submitted."""
    from whet.service.client.environments import OnHub, ToPush

    def fact(label: str, text: str) -> None:
        typer.echo(f"  {label:<13} {text}", err=aside)

    typer.echo(f"{packed.kind} {packed.name} with {safe_text(packed.model, 200)}, for {owner} at {url}", err=aside)
    for env_id, origin in origins.items():
        if isinstance(origin, ToPush):
            text = (
                f"{origin.source.name} {origin.source.version} will be pushed to {owner}, from {origin.source.folder}"
            )
        else:
            text = f"{env_id}, {'of the hub' if isinstance(origin, OnHub) else 'as the service has it'}"
        fact("environment", safe_text(text, 300))
    for name, file in list(packed.files.by_name.items())[:SHOWN_FILES]:
        fact("file", f"{safe_text(name, 200)}  {size_text(file.size)}")
    if len(packed.files.by_name) > SHOWN_FILES:
        fact("", f"and {len(packed.files.by_name) - SHOWN_FILES} more, {size_text(packed.files.size)} in all")
    fact("needs", needs_text(packed.needs))
    if secrets:
        fact("secrets", ", ".join(sorted(secrets)) + " (encrypted there, shown nowhere)")
    for warning in packed.files.warnings():
        typer.echo(f"warning: {safe_text(warning, 300)}", err=True)
    for note in packed.notes:
        fact("note", safe_text(note, 300))


def _show_submitted(run: SubmittedRun, new: bool, page: str) -> None:
    position = f"place {run.place} in line" if run.place else run.state
    before = "" if new else "; an earlier command had submitted it"
    typer.echo(safe(f"submitted {run.id} ({run.owner}/{run.name}): {position}{before}"))
    if run.reason:
        typer.echo(f"  {safe_text(run.reason, 300)}")
    for label, text in (
        ("page", page),
        ("follow", f"whet train logs {run.id} -f"),
        ("state", f"whet train get {run.id}"),
        ("stop", f"whet train stop {run.id}"),
    ):
        typer.echo(f"  {label:<7} {text}")


def _page(service: HubClient, run: SubmittedRun) -> str:
    return f"{service.url}/runs/{run.id}"


def _bytes(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"--{option} {safe_text(text, 40)}: write it like 8G or 500M.")
    return int(float(match[1]) * SIZES[match[2].upper()])
