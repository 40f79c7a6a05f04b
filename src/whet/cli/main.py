"""`whet`: the command groups joined, and how each kind of failure is reported to the shell.

Exit codes: 0 success, 1 failure while running, 2 a mistake of the user, 130 interrupted. A mistake of the user is one
line on standard error without a traceback; `--debug` or WHET_DEBUG=1 shows the traceback. An unexpected exception is a
bug in whet and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from whet import __version__
from whet.cli.groups import SuggestingGroup, lazy_group
from whet.cli.options import config_options
from whet.cli.output import JsonOption, answer, extra
from whet.cli.sharing.account import config_app, login, logout, whoami
from whet.config import options_of, validate
from whet.dashboard import serve as dashboard
from whet.errors import Error, RunError, TrainingError, WhetError
from whet.gateway.adapters import read_adapters
from whet.gateway.serve import ServeConfig, serve
from whet.system.loading_time import rare_collections
from whet.system.offline import is_loopback
from whet.system.terminal import safe_lines, safe_text

if TYPE_CHECKING:
    from rich.text import Text

    from whet.rl.doctor import Diagnosis, DoctorFinding


# `whet serve` and `whet dashboard`: a model behind the interfaces of OpenAI and Anthropic; runs in a browser.

FIELDS = ServeConfig.model_fields
DASHBOARD = dashboard.DashboardConfig.model_fields


@config_options(options_of(ServeConfig, without=("model", "adapters")))
def serve_command(
    model: Annotated[str, typer.Argument(help=FIELDS["model"].description)] = FIELDS["model"].default,
    adapter: Annotated[
        list[str] | None,
        typer.Option("--adapter", "-a", help=FIELDS["adapters"].description, metavar="NAME=PATH"),
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Serve a model to any program that speaks OpenAI's or Anthropic's interface, until Ctrl-C.

    Chat completions, completions, responses and messages, streamed or not; /v1/models, /health and /metrics.

    \b
    Examples:
      whet serve
      whet serve runs/quickstart/model --name mine --port 9000
      whet serve whet/tiny --adapter mine=runs/lora/adapters/step_80      # requests ask for whet/tiny:mine
      whet serve my-model --host 0.0.0.0 --api-key-var MY_KEY
    """
    values = {"model": model, "adapters": read_adapters(adapter or []), **given}
    config = validate(ServeConfig, values, "command line")

    def loading(model: str) -> None:
        typer.echo(f"loading {model}", err=True)

    def ready(address: str, served: str) -> None:
        typer.echo(f"{served} at {address}/v1 (OpenAI) and {address} (Anthropic); Ctrl-C stops it", err=True)

    with extra("serve", "serving a model"), extra("train", "running a model here"):
        serve(config, ready, loading)


@config_options(options_of(dashboard.DashboardConfig, without=("folders",)))
def dashboard_command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help=DASHBOARD["folders"].description, show_default="runs outputs"),
    ] = None,
    *,
    given: dict[str, Any],
) -> None:
    """Show runs and evaluations of some folders in a browser, live and read-only, until Ctrl-C.

    Curves, rollouts, tokens, logs, checkpoints and findings of training, imitation, evaluations and searches.

    \b
    Examples:
      whet dashboard
      whet dashboard runs/ outputs/ --port 9000
    """
    config = validate(dashboard.DashboardConfig, {"folders": tuple(folders or ()), **given}, "command line")

    def ready(address: str) -> None:
        if not is_loopback(config.host):
            typer.echo("other machines can reach this: everything in these folders can be read by them", err=True)
        typer.echo(f"dashboard at {address}; Ctrl-C stops it", err=True)

    with extra("dashboard", "the dashboard"):
        dashboard.serve(config, ready)


# `whet doctor`: problems of a run, or of what an evaluation says about training, and what to change.

STYLES = {"error": "red", "warning": "yellow", "info": "cyan"}
FEW_STEPS = 5


def doctor_command(
    path: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run: its directory or name; or a saved evaluation's directory.")
    ],
    json_output: JsonOption = False,
) -> None:
    """Diagnose a run: problems with their evidence and the change to make, most urgent first.

    The run may be running, dead or finished. For an evaluation it reports whether training would improve the model.
    Exit code: 0 when nothing keeps the run from learning (there may be warnings), 1 when something does, 2 when there
    is no such run.

    \b
    Examples:
      whet doctor runs/my-run
      whet doctor my-run --json
      whet doctor outputs/evals/reverse-text--whet--tiny/1f2e3d4c
    """
    with extra("train", "the doctor"):
        from whet.rl.doctor import examine

        diagnosis = examine(path)
    answer(diagnosis, json_output, lambda: _print(diagnosis), ok=not diagnosis.ill)


def _print(diagnosis: Diagnosis) -> None:
    from rich.text import Text

    from whet.system.console import SafeConsole

    console = SafeConsole()
    unit = "step" if diagnosis.what == "run" else "rollouts:"
    console.print(Text(safe_text(f"{diagnosis.path}: {diagnosis.state}, {unit} {diagnosis.step}")), soft_wrap=True)
    for finding in diagnosis.findings:
        console.print()
        for text in _lines(finding):
            console.print(text, soft_wrap=True)
    if not diagnosis.findings:
        few = diagnosis.what == "run" and diagnosis.step < FEW_STEPS
        why = f" yet: most rules look at {FEW_STEPS} steps or more" if few else ""
        console.print(f"nothing is wrong{why}")


def _lines(finding: DoctorFinding) -> list[Text]:
    from rich.text import Text

    head = Text(f"{finding.severity:<8} ", style=STYLES[finding.severity])
    head.append(safe_text(finding.what, 400), style="bold")
    head.append(f"  [{finding.rule}]", style="dim")
    evidence = [Text(f"         {safe_text(line, 600)}") for line in finding.evidence]
    return [head, *evidence, *(Text(f"       > {safe_text(change.text, 600)}") for change in finding.changes)]


DEBUG = "WHET_DEBUG"
HELP_WIDTH = 120
"""Columns of --help in a terminal that has as many."""

app = typer.Typer(
    name="whet",
    cls=SuggestingGroup,
    help="Sharpen language models on environments, from a laptop to a cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_WIDTH},
)
app.add_typer(lazy_group("whet.cli.train", "Train a model on environments."), name="train")
app.add_typer(lazy_group("whet.cli.eval", "Evaluate a model on an environment."), name="eval")
app.add_typer(lazy_group("whet.cli.gepa", "Optimise prompts; the model's weights stay as they are."), name="gepa")
app.add_typer(lazy_group("whet.cli.env", "Make, check and install environments."), name="env")
app.add_typer(lazy_group("whet.cli.agent", "Coding agents that attempt tasks: list, check, install."), name="agent")
app.add_typer(lazy_group("whet.cli.cache", "What whet keeps for sandboxes: list, prune."), name="cache")
app.add_typer(lazy_group("whet.cli.hub", "Share environments on a server that one hosts."), name="hub")
app.add_typer(lazy_group("whet.cli.tinker", "Train with a loop of your own, by the tinker SDK."), name="tinker")
app.add_typer(lazy_group("whet.cli.service.processes", "Train as a service: start it, or its parts."), name="service")
app.add_typer(
    lazy_group("whet.cli.service.deployments", "Serve checkpoints of the service's runs."), name="deployments"
)
app.add_typer(lazy_group("whet.cli.cluster", "Run on a Ray cluster: what it has, what a run needs."), name="cluster")
app.command("doctor")(doctor_command)
app.command("serve")(serve_command)
app.command("dashboard")(dashboard_command)
app.command("login")(login)
app.command("logout")(logout)
app.command("whoami")(whoami)
app.add_typer(lazy_group("whet.cli.sharing.lab", "Make a workspace; see what is missing."), name="lab")
app.add_typer(config_app, name="config", help="The hub and the owner that this machine uses.")
app.add_typer(lazy_group("whet.cli.service.keys", "Secrets for runs on the service."), name="secret")
app.add_typer(lazy_group("whet.cli.model", "Build the tiny model, or describe a model."), name="model")


@app.command("view")
def view(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="Directory of an evaluation or of a run, its results file, or a folder with many of them.",
            show_default="outputs/evals and runs",
        ),
    ] = None,
) -> None:
    """Browse rollouts: a list to filter, sort and search, each conversation, a group side by side, the tokens.

    \b
    Examples:
      whet view
      whet view outputs/evals/reverse-text--whet--tiny/1f2e3d4c
      whet view runs/quickstart
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RunError("whet view needs a terminal. Use `whet eval list` and `whet eval show PATH` without one.")
    from whet.viewer.app import view as open_viewer

    code = open_viewer(path)
    if code:
        raise typer.Exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whet {__version__}")
        raise typer.Exit


@app.callback()
def _whet(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (also: WHET_DEBUG=1).")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"  # inherited by the processes that a command starts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; does not return where other code left a thread that never ends."""
    with rare_collections(), _hangup_as_sigterm():
        status = _run(arguments)
    if "asyncio" in sys.modules:  # else nothing was run that could leave a thread, and imports take time
        from whet.system.cancellation import leave

        return leave(status)
    return status


@contextmanager
def _hangup_as_sigterm() -> Iterator[None]:
    """Inside, SIGHUP (a closed terminal, a lost connection) does what SIGTERM does, unless it is ignored (`nohup`)."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGHUP) != signal.SIG_DFL:
        yield
        return
    terminals = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]

    def end(number: int, _: object) -> None:
        # Kernel and shell both send one: of a second SIGTERM the command would end without a checkpoint, and of a
        # second SIGHUP while Python ends, when its own handlers are gone, it would die without its exit code.
        signal.signal(number, signal.SIG_IGN)
        for descriptor in terminals:
            if not os.isatty(descriptor):  # the terminal is gone, where writing would fail
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, descriptor)
                os.close(null)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGHUP, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGHUP) is end:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _run(arguments: Sequence[str] | None) -> int:
    # Torch's threads spin only briefly for each other, then sleep: as fast on idle cores, while threads that spin for
    # long made a step 5 to 15 times slower on cores shared with another process (docs/design/log.md). OpenMP reads this
    # when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    try:
        result = app(args=arguments, prog_name="whet", standalone_mode=False)
    except TyperException as error:
        return _complain(error.format_message(), error.exit_code)
    except typer.Abort:
        return _complain("stopped: the question was not answered", 1)
    except TrainingError as error:
        return _fail(error, str(error), 1)
    except WhetError as error:
        return _fail(error, str(error), 2)
    except Error as error:
        return _fail(error, f"{type(error).__name__}: {error}", 1)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        return _fail(error, f"the disk is full ({error.filename or 'no file named'})" if full else str(error), 1)
    return result if isinstance(result, int) else 0


def _fail(error: Exception, message: str, code: int) -> int:
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        raise error
    return _complain(message, code)


def _complain(message: str, code: int) -> int:
    """`error: ` and the message, which ends with a full stop if it is one line; further lines are indented."""
    text = "\n".join(safe_lines(message.strip()))
    if "\n" not in text and not text.endswith((".", "?", "!", ":")):
        text += "."
    sys.stdout.flush()
    print("error: " + text.replace("\n", "\n       "), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
