"""`Harness(program={"command": [...]})`: any program, in a sandbox that can reach nothing but its model.

    open a session ─▶ sandbox ─▶ packages, setup, files ─▶ the command ─▶ artifacts ─▶ sandbox closed, session shut
                                                             │    ▲
                                                  a request ─┘    └─ the answer: one turn of the rollout

The command finds its model in OPENAI_BASE_URL and OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, at a port
of the sandbox's own loopback, and its prompt in the JSON file that WHET_TASK names. What it did is in
`state["program"]`, its files in `state["artifacts"]`.

A command that fails before the first answer of its model has not failed because of the model: the rollout is errored.
A failure after that counts as an attempt at the task and is scored.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import itertools
import json
import posixpath
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.calls import describe
from whet.config import StrictModel
from whet.errors import ConfigError, EnvError, Error, WhetError
from whet.messages import content_text
from whet.rollouts.limits import to_the_end
from whet.sandboxes.protocol import MIB, ORIGIN_URL, Command, ExecResult, Sandbox
from whet.tasksets.config import Config, SandboxConfig
from whet.tasksets.programs.session import Opening, Request, Session, SessionGateway, make_gateway
from whet.tasksets.state import TaskState
from whet.tasksets.task import Task
from whet.tasksets.tools.bindings import at_path, value_of
from whet.tasksets.tools.sandboxes import SandboxOwner

TASK_FILE = "whet-task.json"
OUTPUT_BYTES = 8 * MIB  # of a command; one that writes more is ended
TAIL_CHARS = 16_000  # kept of each of its streams
ARTIFACT_BYTES = 16 * MIB
COLLECT_S = 4.0  # to read the artifacts of a command whose rollout has ended; less than a program's grace


class ArtifactConfig(StrictModel):
    """A file that is read when the command has ended: `state["artifacts"][name]`."""

    path: str = Field(min_length=1, description="Its path, absolute or relative to the working directory.")
    format: Literal["text", "json"] = Field("text", description="How it is read.")
    key: str | None = Field(None, description="Of a JSON object, this value only.")
    optional: bool = Field(False, description="Whether the command may leave it out without having failed.")


class CommandConfig(Config):
    """`program = {command = [...]}`. A value is a text, a path ("task.question", "state.x"), or a function of task and
    state."""

    command: str | list[Any] = Field(min_length=1, description="The program and its arguments, values.")
    args: list[Any] = Field(default_factory=list, description="More arguments, values.")
    sandbox: Any = Field(None, description="Settings of its sandbox; the harness's if absent.")
    files: dict[str, Any] = Field(default_factory=dict, description="Path inside: content, a value.")
    dirs: dict[str, Any] = Field(
        default_factory=dict, description="Path inside: a folder of the host, or a function of one."
    )
    setup: str | list[str] = Field(default_factory=list, description="Shell commands that run first.")
    env: dict[str, Any] = Field(default_factory=dict, description="Environment variables, values.")
    artifacts: dict[str, ArtifactConfig] = Field(default_factory=dict, description="Name: a file to read at the end.")
    helper_models: list[str] = Field(
        default_factory=list, description="Names of models, * is any text, for which requests are not trained."
    )
    helper_prompts: list[str] = Field(
        default_factory=list, description="System prompts, * is any text, with which requests are not trained."
    )


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a command is started; its variables come on top of the sandbox's."""

    argv: list[str]
    variables: dict[str, str]
    stdin: bytes = b""
    cwd: str | None = None
    timeout_s: float = 0


class CommandProgram:
    """A command that attempts tasks; `run` is a program like any function's."""

    config_type: ClassVar[type[CommandConfig]] = CommandConfig

    def __init__(self, config: CommandConfig, sandbox: Any, whose: str) -> None:
        """`sandbox` is the harness's. Raises `ConfigError` for what cannot be run."""
        self.config = config
        self._whose = whose
        self._sandboxes = SandboxOwner(read_sandbox_config(config.sandbox, sandbox, whose), whose, "program")
        self._gateway: SessionGateway | None = None

    async def run(self, task: Task, state: TaskState, session: Session) -> None:
        if state.tools_now is not None and state.tools_now.shown:
            raise ConfigError(f"{self._whose}: a row brings tools, which a command cannot be shown; it brings its own.")
        # Set first, so that rewards find both however the rollout ends.
        state["program"] = _record(None, "")
        state["artifacts"].update(dict.fromkeys(self.config.artifacts))
        async with self._opened(session) as opening, self._sandbox(opening, task, state) as sandbox:
            home = await self._prepare(task, state, sandbox)
            invocation = await self._invocation(task, state, sandbox, opening, home)
            await self._attempt(sandbox, invocation, state, opening)

    def is_helper(self, request: Request) -> bool:
        """Whether a request is for something beside the task, such as a title: its answer is not trained."""
        opening = itertools.takewhile(lambda message: message["role"] == "system", request.prompt)
        system = "\n\n".join(content_text(message["content"]) for message in opening)
        given = [(request.model, self._helper_models()), (system, self.config.helper_prompts)]
        return any(fnmatch.fnmatchcase(text, pattern) for text, patterns in given for pattern in patterns)

    def _helper_models(self) -> Sequence[str]:
        return self.config.helper_models

    async def close(self) -> None:
        if self._gateway is not None:
            await self._gateway.close()

    @contextlib.asynccontextmanager
    async def _opened(self, session: Session) -> AsyncIterator[Opening]:
        if self._gateway is None:
            self._gateway = make_gateway()
        opening = self._gateway.open(session)
        try:
            yield opening
        finally:
            await self._gateway.shut(opening)

    @contextlib.asynccontextmanager
    async def _sandbox(self, opening: Opening, task: Task, state: TaskState) -> AsyncIterator[Sandbox]:
        # Sandboxes without a boundary are on the host's loopback already.
        origin = f"127.0.0.1:{opening.port}" if self._sandboxes.is_boundary else None
        made = await self._sandboxes.make(origin, await self._shown())
        try:
            yield await made.itself()
        finally:
            await to_the_end(made.close())

    async def _shown(self) -> Mapping[str, str]:
        """What of the host the sandbox shows, by the path inside."""
        return {}

    async def _invocation(
        self, task: Task, state: TaskState, sandbox: Sandbox, opening: Opening, home: str
    ) -> Invocation:
        """How the command is started, in a sandbox that is prepared."""
        config = self._sandboxes.config
        return Invocation(
            await self._argv(task, state),
            await self._variables(task, state, opening, home),
            cwd=self._workdir,
            timeout_s=config.command_timeout or config.timeout_minutes * 60,
        )

    async def _prepare(self, task: Task, state: TaskState, sandbox: Sandbox) -> str:
        """Copy folders and files, run the setup commands, write the prompt; returns the home directory inside."""
        if self._workdir is not None:
            await self._set_up(sandbox, ["mkdir", "-p", "--", self._workdir], cwd=None)
        for path, folder in self.config.dirs.items():
            # A text is the folder itself, never a path into the task: a row must not choose a folder of the host.
            chosen = folder if isinstance(folder, str) else await self._value(folder, task, state)
            await sandbox.upload(str(chosen), self._place(path))
        for path, source in self.config.files.items():
            content = await self._value(source, task, state)
            await sandbox.write(self._place(path), content if isinstance(content, bytes) else str(content).encode())
        setup = [self.config.setup] if isinstance(self.config.setup, str) else self.config.setup
        for line in setup:
            await self._set_up(sandbox, line, cwd=self._workdir)
        prompt = [*state["system_prompt"], *state["prompt"]]
        # The prompt only: a task has its answer as well.
        data = json.dumps({"prompt": prompt}).encode()
        script = f'cat > "$HOME/{TASK_FILE}" && printf %s "$HOME"'
        return (await self._set_up(sandbox, ["sh", "-c", script], cwd=None, stdin=data)).stdout

    async def _set_up(self, sandbox: Sandbox, command: Command, *, cwd: str | None, stdin: bytes = b"") -> ExecResult:
        result = await sandbox.exec(command, stdin=stdin, cwd=cwd, timeout_s=self._sandboxes.config.setup_timeout)
        if not result.ok:
            said = f"{result.describe()}. {_tail(result, 500)}"
            raise EnvError(f"setting up the sandbox of a program: {str(command)[:200]!r}: {said}")
        return result

    def _place(self, path: str) -> str:
        return posixpath.join(self._workdir or "", path)

    async def _attempt(self, sandbox: Sandbox, started: Invocation, state: TaskState, opening: Opening) -> None:
        try:
            result = await sandbox.exec(
                started.argv,
                stdin=started.stdin,
                cwd=started.cwd,
                env=started.variables,
                timeout_s=started.timeout_s,
                output_bytes=OUTPUT_BYTES,
            )
        except asyncio.CancelledError:  # the rollout has ended before its program: the artifacts so far count
            with contextlib.suppress(TimeoutError, Error):
                async with asyncio.timeout(COLLECT_S):
                    await self._collect(sandbox, state)
            raise
        state["program"] = _record(result, opening.key)
        if not result.ok and not state["trajectory"]:
            raise EnvError(
                f"{self._called(started)} failed before its model answered: {result.describe()}. "
                f"{_tail(result, 2000, opening.key)}"
            )
        if not sandbox.closed:
            await self._collect(sandbox, state)
        if not result.ok or state["program"]["missing"]:
            state.ended_by = "program_failed"

    async def _collect(self, sandbox: Sandbox, state: TaskState) -> None:
        """Read the artifacts; `missing` lists required ones that are absent or not of their format."""
        for name, spec in self.config.artifacts.items():
            read = ["sh", "-c", 'cat < "$1"', "sh", spec.path]
            result = await sandbox.exec(read, cwd=self._workdir, output_bytes=ARTIFACT_BYTES)
            value = _artifact(result, spec)
            state["artifacts"][name] = value
            if value is None and not spec.optional:
                state["program"]["missing"].append(name)

    @property
    def _workdir(self) -> str | None:
        return self._sandboxes.config.workdir

    def _called(self, started: Invocation) -> str:
        return f"program {started.argv[0]!r}"

    def _address(self, opening: Opening) -> str:
        """That of the model, inside the sandbox and without /v1."""
        origin = ORIGIN_URL if self._sandboxes.is_boundary else f"http://127.0.0.1:{opening.port}"
        return f"{origin}{opening.path}"

    async def _variables(self, task: Task, state: TaskState, opening: Opening, home: str) -> dict[str, str]:
        base = self._address(opening)
        own = {name: str(await self._value(value, task, state)) for name, value in self.config.env.items()}
        return {
            "OPENAI_BASE_URL": f"{base}/v1",
            "OPENAI_API_KEY": opening.key,
            "ANTHROPIC_BASE_URL": base,  # clients of that interface add /v1 themselves
            "ANTHROPIC_API_KEY": opening.key,
            "WHET_TASK": f"{home}/{TASK_FILE}",
            **own,
        }

    async def _argv(self, task: Task, state: TaskState) -> list[str]:
        command = self.config.command
        if isinstance(command, str):
            values: list[Any] = [*shlex.split(command), *self.config.args]
        else:
            values = [*command, *self.config.args]
        return [str(await self._value(value, task, state)) for value in values]

    async def _value(self, value: Any, task: Task, state: TaskState) -> Any:
        """The value resolved for this task and state. Raises `EnvError` if a path does not exist."""
        roots = {"task": task, "state": state, "runtime": state["runtime"]}

        async def look_up(root: str, path: str) -> Any:
            return at_path(roots[root], path) if path and root in roots else value

        try:
            return await value_of(value, look_up, {"task": task, "state": state}, f"{self._whose}: a value")
        except (Error, WhetError):
            raise
        except Exception as error:
            raise EnvError(f"{self._whose}: the value {value!r} of a command: {describe(error)}") from error


def read_command(
    program: Mapping[str, Any], sandbox: Any, whose: str, kind: type[CommandProgram] = CommandProgram
) -> CommandProgram:
    """The program of a table with a command, or of another `kind`. Raises `ConfigError`."""
    if program.get("bindings"):
        raise ConfigError(f"{whose}: whet has no bindings; functions among the values take task and state.")
    if program.get("tools"):
        raise ConfigError(f"{whose}: a command cannot be shown tools of this process; it brings its own.")
    settings = {name: value for name, value in program.items() if name not in ("bindings", "tools", "fn", "base")}
    if isinstance(settings.get("command"), tuple):
        settings["command"] = list(settings["command"])
    try:
        return kind(kind.config_type.from_config(settings), sandbox, whose)
    except ConfigError as error:
        raise ConfigError(f"{whose}: {error}") from error


def read_sandbox_config(own: Any, of_harness: Any, whose: str) -> SandboxConfig:
    """The sandbox's settings: the program's or the harness's. A command always has one."""
    if own is False or of_harness is False:
        raise ConfigError("sandbox = false: what a model does runs in a sandbox only.")
    given = [value for value in (own, of_harness) if value is not None and value is not True]
    if len(given) > 1:
        raise ConfigError("both the program and the harness have a sandbox; give one.")
    if given and not isinstance(given[0], Mapping | SandboxConfig):
        raise ConfigError(f"sandbox is {given[0]!r}; it should be a table, or true.")
    config = SandboxConfig.from_config(given[0] if given else None)
    if config.scope != "rollout" or config.prefer is not None:
        raise ConfigError("a command has a sandbox for each rollout: leave out scope and prefer.")
    return config


def _record(result: ExecResult | None, key: str) -> dict[str, Any]:
    """The record for reward functions: data only, without the key; all None if the rollout ended first."""
    return {
        "exit_code": None if result is None else result.exit_code,
        "signal": None if result is None else result.signal,
        "limit": None if result is None else result.limit,
        "stdout": "" if result is None else result.stdout.replace(key, "[key]")[-TAIL_CHARS:],
        "stderr": "" if result is None else result.stderr.replace(key, "[key]")[-TAIL_CHARS:],
        "seconds": None if result is None else result.duration_s,
        "missing": [],
    }


def _tail(result: ExecResult, length: int, key: str = "[key]") -> str:
    return (result.stderr.strip() or result.stdout.strip()).replace(key, "[key]")[-length:]


def _artifact(result: ExecResult, spec: ArtifactConfig) -> Any:
    """The content of a file; None if it is absent, too large, or not of its format."""
    if not result.ok:
        return None
    if spec.format == "text":
        return result.stdout
    try:
        data = json.loads(result.stdout)
        return data if spec.key is None else data[spec.key]
    except (ValueError, RecursionError, KeyError, TypeError, IndexError):
        return None
