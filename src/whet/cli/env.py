"""`whet env`: make an environment's package, review one, install one, list those there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from whet.authoring.install import Installed, environments_here, install_environment
from whet.authoring.scaffold import Kind
from whet.cli.output import JsonOption, answer, json_object, print_done, print_json, print_result
from whet.cli.sharing import packages
from whet.cli.sharing.common import HubOption, safe
from whet.cli.sharing.keys import secret_app, var_app
from whet.cli.sharing.versions import action_app, version_app
from whet.envs.identity.ids import parse_id
from whet.errors import ConfigError, MissingExtraError
from whet.hub.answers import EnvironmentAnswer
from whet.hub.client.connection import connect
from whet.hub.client.fetch import HubId, credentials_for_pip, find_version, requirement_of
from whet.system.files import expanded

VERIFY_S = 600.0

EnvArgsOption = Annotated[str, typer.Option("--env-args", "-a", help="Arguments of load_environment.", metavar="JSON")]
SandboxOption = Annotated[
    bool,
    typer.Option(
        "--sandbox/--no-sandbox",
        help="Run the package's code in bubblewrap, without network, home or keys; or here, with your rights.",
    ),
]
TimeoutOption = Annotated[float, typer.Option(help="Seconds for all of it.")]

app = typer.Typer(rich_markup_mode=None)
app.add_typer(packages.app)
app.add_typer(version_app, name="version", help="Versions on the hub: list, yank, delete.")
app.add_typer(action_app, name="action", help="How the hub tried a version out: list, logs, retry.")
app.add_typer(secret_app, name="secret", help="Secrets of an environment on the hub: names are shown, values never.")
app.add_typer(var_app, name="var", help="Variables of an environment on the hub.")


@app.command("init")
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new environment's id, such as word-game.")],
    kind: Annotated[Kind, typer.Option("--kind", "-k", help="Template to begin with.")] = "single",
    path: Annotated[
        Path | None,
        typer.Option(help="Folder to make the package's folder in.", show_default="environments", metavar="DIR"),
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Write the package of a new environment, which runs at once.

    It has tasks, a reward, tests, a README and a training config; change them one by one into your own.

    \b
    Examples:
      whet env init word-game
      whet env init word-game --kind tool
      whet env init word-game --kind multi --path ~/my-environments
    """
    from whet.authoring.scaffold import init_package

    made = init_package(name, kind, path)
    if json_output:
        print_json(made)
        return
    typer.echo(f"made {made.folder}/")
    for file in made.files:
        typer.echo(f"  {file}")
    typer.echo("next:")
    for command in made.commands:
        typer.echo(f"  {command}")


@app.command("check")
def check(
    environment: Annotated[str, typer.Argument(metavar="ENV", help="Id of an environment, or a path to one.")],
    env_args: EnvArgsOption = "{}",
    tasks: Annotated[int, typer.Option("--num-examples", "-n", help="Tasks that scripted models attempt.")] = 5,
    timeout: TimeoutOption = 300.0,
    sandbox: SandboxOption = True,
    json_output: JsonOption = False,
) -> None:
    """Review a package and print what to fix. Exit code 1 if there are errors.

    This runs the package's code, in a sandbox by default. Scripted models attempt its tasks, with right
    answers and with answers without merit, which no reward should accept. docs/authoring.md explains the codes.

    \b
    Examples:
      whet env check word-game
      whet env check ./environments/word_game -n 20
      whet env check word-game -a '{"max_length": 9}' --json
    """
    from whet.authoring.review.check import check_environment, print_report

    args = json_object("--env-args", env_args)
    report = check_environment(environment, args, tasks=tasks, timeout_s=timeout, sandbox=sandbox)
    answer({"ok": report.ok, **report.as_dict()}, json_output, lambda: print_report(report), ok=report.ok)


@app.command("verify")
def verify(
    environment: Annotated[str, typer.Argument(metavar="ENV", help="Id of an environment, a path, or harbor:DIR.")],
    env_args: EnvArgsOption = "{}",
    tasks: Annotated[int, typer.Option("--num-examples", "-n", help="Held-out tasks to try; -1 for all.")] = -1,
    timeout: TimeoutOption = VERIFY_S,
    sandbox: SandboxOption = True,
    json_output: JsonOption = False,
) -> None:
    """Try every task with its own answer and with answers without merit. Exit code 1 if a task rewards the wrong one.

    Its own answer should earn full reward; nothing, the prompt, answers of other tasks and other answers without merit
    should earn less. It says which tasks could not be tried, and why. Of harbor:DIR each task's solution is run, which
    should have the reward 1, nothing, and what the task has in cheats/*.sh, which should have less.

    \b
    Examples:
      whet env verify arithmetic
      whet env verify ./environments/word_game -n 100 --json
      whet env verify harbor:./tasks#hello
    """
    from whet.authoring.review.verify import print_verified, verify_environment

    args = json_object("--env-args", env_args)
    if environment.startswith("harbor:"):
        if (tasks, timeout, sandbox) != (-1, VERIFY_S, True):
            raise ConfigError("-n, --timeout and --no-sandbox are not for harbor:DIR; name one task by #NAME.")
        _verify_harbor(environment, args, json_output)
        return
    result = verify_environment(environment, args, tasks=tasks, timeout_s=timeout, sandbox=sandbox)
    ok = not result.faults
    answer({"ok": ok, **result.as_dict()}, json_output, lambda: print_verified(result), ok=ok)


def _verify_harbor(environment: str, args: dict[str, Any], json_output: bool) -> None:
    from whet.envs.loading import load_environment
    from whet.integrations.harbor_env import HarborEnv
    from whet.integrations.harbor_verify import verify_tasks

    own = {name: value for name, value in args.items() if name != "agent"}  # tasks are the same for every agent
    env = cast(HarborEnv, load_environment(environment, **own))
    results = verify_tasks(env, None if json_output else lambda result: typer.echo(result.describe()))
    right = sum(result.ok for result in results)
    ok = right == len(results)
    said = f"{right} of {len(results)} tasks of {environment} verified"
    print_done({"ok": ok, "tasks": [result.as_dict() for result in results]}, json_output, said, ok=ok)


@app.command("generate")
def generate(
    kind: Annotated[Literal["terminal"], typer.Argument(metavar="KIND", help="terminal: tasks in a shell.")],
    to: Annotated[Path, typer.Option(help="New folder for the tasks.", metavar="DIR")],
    number: Annotated[int, typer.Option("--num-examples", "-n", min=1, help="How many tasks.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the tasks.")] = 0,
    families: Annotated[
        str, typer.Option(help="Kinds of tasks, with commas, such as find,git.", metavar="NAME,...", show_default="all")
    ] = "",
    levels: Annotated[str, typer.Option(help="Levels, from 0 (easiest) to 3.", metavar="LEVEL,...")] = "0,1,2,3",
    verify: Annotated[bool, typer.Option("--verify", help="Then do what whet env verify harbor:DIR does.")] = False,
) -> None:
    """Write generated tasks in Harbor's format, to be evaluated and trained on as harbor:DIR.

    A seed gives the same tasks again, to the byte. At level 0 the instruction quotes the command to run.

    \b
    Examples:
      whet env generate terminal --to tasks -n 200 --seed 1
      whet env generate terminal --to first --families write,count --levels 0,1 --verify
    """
    from whet.authoring.terminal.generate import generate as generate_tasks

    if not all(level.strip().isdecimal() for level in levels.split(",")):
        raise ConfigError(f"--levels is '{levels}'; give numbers with commas, such as 0,1.")
    names = [name.strip() for name in families.split(",") if name.strip()]
    folder = generate_tasks(to, seed, number, names, [int(level) for level in levels.split(",")])
    typer.echo(f"made {number} tasks of seed {seed} in {folder}")
    if verify:
        _verify_harbor(f"harbor:{folder}", {}, json_output=False)


@app.command("serve")
def serve(
    environment: Annotated[str, typer.Argument(metavar="ENV", help="Id of an environment, or a path to one.")],
    env_args: EnvArgsOption = "{}",
    host: Annotated[str, typer.Option(help="Address of this machine alone to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    protocol: Annotated[
        Literal["openenv", "nemo-gym"], typer.Option("--as", help="Whose clients are to play it.")
    ] = "openenv",
) -> None:
    """Serve an environment to other trainers, until interrupted.

    For OpenEnv an episode is a WebSocket. For NeMo-Gym the server is a resources server of its gymnasium agent,
    whose rows it has at /rows/train.jsonl and /rows/eval.jsonl.

    \b
    Examples:
      whet env serve calculator
      whet env serve ./environments/word_game -a '{"max_length": 9}' --port 8001 --as nemo-gym
    """
    from whet.envs.loading import load_environment

    try:
        from whet.integrations import nemo_server, openenv_server
    except ImportError as error:
        raise MissingExtraError("whet env serve", "openenv") from error
    env = load_environment(environment, **json_object("--env-args", env_args))
    app = nemo_server.NemoGymApp(env).app if protocol == "nemo-gym" else openenv_server.OpenEnvApp(env).app
    openenv_server.serve(app, host, port, lambda address: typer.echo(f"{environment} at {address}"))


@app.command("install")
def install(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="ENV...", help="Paths, folders in environments/, OWNER/NAME[@VERSION], URLs, or names for pip."
        ),
    ],
    editable: Annotated[
        bool, typer.Option("--editable", "-e", help="Install folders so that their edits count at once.")
    ] = False,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """Install environments into this Python, with what they require, by pip.

    For an environment written for verifiers 0.1, verifiers itself is left out: whet replaces it. Installing may
    run the package's build code. OWNER/NAME comes from the hub of `whet login`, by URL and hash.

    \b
    Examples:
      whet env install ./my-environments/word_game -e
      whet env install word-game==1.2
      whet env install alice/word-game@1.2
    """

    done = [install_from_anywhere(target, editable=editable, hub=hub) for target in targets]
    if json_output:
        print_json(done)
        return
    for one in done:
        how = "editable, " if one.editable else ""
        typer.echo(f"installed {one.id} {one.version} ({how}{one.source})")
        if one.dependencies:
            typer.echo(f"  with {', '.join(one.dependencies)}")
        if one.left_out:
            typer.echo(f"  without {', '.join(one.left_out)}: whet replaces it")
        for before in one.replaced:
            typer.echo(f"  instead of the editable install of {before}; edits there count no more (again: -e FOLDER)")


@app.command("uninstall")
def uninstall(
    names: Annotated[list[str], typer.Argument(metavar="ENV...", help="Ids of environments that are installed.")],
) -> None:
    """Remove environments from this Python. What they required stays.

    \b
    Example:
      whet env uninstall word-game
    """
    from whet.authoring.install import uninstall_environment

    for name in names:
        typer.echo(f"removed {uninstall_environment(name)}")


@app.command("list")
def list_environments(
    on_hub: Annotated[bool, typer.Option("--on-hub", help="Those of the hub that you may read.")] = False,
    owner: Annotated[str | None, typer.Option(help="Those of this owner on the hub.")] = None,
    search: Annotated[str | None, typer.Option(help="Those on the hub with this text in name or summary.")] = None,
    hub: HubOption = None,
    json_output: JsonOption = False,
) -> None:
    """The environments that are found by their id here, installed or in environments/; or those of the hub.

    \b
    Examples:
      whet env list
      whet env list --owner my-team
      whet env list --search word --json
    """
    if on_hub or owner or search or hub:
        _list_hub(owner, search, hub, json_output)
        return
    environments = environments_here()
    if not environments and not json_output:
        typer.echo("no environments here. Make one with: whet env init NAME")
        return
    print_result({"environments": environments}, json_output)


def _list_hub(owner: str | None, search: str | None, hub: str | None, json_output: bool) -> None:
    with connect(hub) as connection:
        environments = list(connection.items(EnvironmentAnswer, "/environments", owner=owner, search=search))
    if not environments and not json_output:
        typer.echo(f"no such environments on {connection.url}")
        return
    shown = None if json_output else {"id", "latest", "visibility", "downloads", "summary"}
    rows = [environment.model_dump(include=shown) for environment in environments]
    print_result(safe({"environments": rows}), json_output)


# `whet env install owner/name[@version]`: exactly that wheel of the hub, by its URL and hash.


def install_from_anywhere(target: str, *, editable: bool = False, hub: str | None = None) -> Installed:
    """Install an environment, from the hub where it is named by an owner.

    `hub` is the hub's address, by default the one of `whet login`. Raises `ConfigError` and `HubRequestError`, besides
    what `install_environment` raises.
    """
    if not _is_of_a_hub(target):
        return install_environment(target, editable=editable)
    if editable:
        raise ConfigError(
            f"{target} is not a folder, so it cannot be installed with -e. Take its source: whet env pull"
        )
    with connect(hub) as connection:
        requirement = requirement_of(connection, find_version(connection, HubId.parse(target)))
        with credentials_for_pip(connection) as variables:
            return install_environment(requirement, variables=variables)


def _is_of_a_hub(target: str) -> bool:
    if "/" not in target or "://" in target or expanded(target.partition("[")[0]).exists():
        return False
    return parse_id(target).owner is not None
