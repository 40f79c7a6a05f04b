"""`HarborEnv`: tasks of Harbor's format, `harbor:DIR` (a task, or a folder of tasks) or `harbor:DIR#NAME`.

    env = whet.load_environment("harbor:./tasks", max_turns=30)

The model has a shell (`bash`) in a sandbox that the Dockerfile prepared (`harbor_dockerfile.py` says which ones are
possible), without `tests/` and `solution/`. Once it has answered without a command, the folders of the task are carried
into a second, fresh sandbox; the first one is gone by then. There `tests/test.sh` runs, and what it writes to
`/logs/verifier/reward.json` or `reward.txt` is the reward. A verifier that gives none is an error of the rollout.

With `backend="docker"` or `"podman"` both boxes are containers of what the engine builds (`harbor_container.py`).
It deliberately has no compose files, and in bubblewrap no images of a registry and no other user than the sandbox's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from whet.decorators import cleanup, stop
from whet.envs.config.arguments import Check, check_values
from whet.envs.environment import Environment
from whet.envs.sandbox_env import SandboxEnv
from whet.envs.sandboxed.request import CreateSandboxRequest
from whet.errors import ConfigError, EnvError, SandboxFileError
from whet.integrations.external_scores import ExternalScoreRubric
from whet.integrations.harbor_container import ContainerImages
from whet.integrations.harbor_image import COMMAND_S, HARMLESS, LOGS, REWARDS, SHOWN, TaskImages, done, said
from whet.integrations.harbor_root import image_roots
from whet.integrations.harbor_task import SHOWN as SHOWN_TASKS
from whet.integrations.harbor_task import HarborTask, find_tasks
from whet.parsing import as_number, parse_json
from whet.rollouts.limits import to_the_end
from whet.sandboxes.network.allow_list import AllowList
from whet.sandboxes.protocol import MIB, OPEN_NETWORK, Sandbox
from whet.system.logs import warning_once
from whet.types import State

_log = logging.getLogger(__name__)
TESTS, SOLUTION = "/tests", "/solution"
CONTAINERS = ("docker", "podman")
ANYTHING = list(OPEN_NETWORK)
SOLVE = "solution/solve.sh"
REWARD_BYTES = 64 * 1024
# A folder's contents, or a file by its name; 3 where there is neither.
_PACK = """[ -e "$1" ] || exit 3
if [ -d "$1" ]; then printf d; cd -- "$1" && exec tar -cf - .; fi
printf f; cd -- "${1%/*}/" && exec tar -cf - -- "${1##*/}"
"""
# Of a file's archive, its own name and no other: what packed it ran where the agent could write to its pipe.
_UNPACK = 'mkdir -p -- "$1" && cd -- "$1" && shift && exec tar --no-same-owner -xf - -- "$@"'
# In a grading box all but the tests have this system's PATH: that of the task may begin with a folder of the agent's.
_TEST = 'bash=$(command -v bash); export PATH="$TASK_PATH"; unset TASK_PATH; exec "$bash" /tests/test.sh > "$1" 2>&1'
_EMPTY = 'if [ -d "$1" ]; then find "$1/" -mindepth 1 -delete; else rm -f -- "$1"; fi'
_REWARD = 'for f in reward.json reward.txt; do if [ -e "$1/$f" ]; then echo "$f"; exec cat -- "$1/$f"; fi; done'
_EXPECTED: dict[str, tuple[Check, str]] = {
    "max_carried_mb": (Real, "a number of MiB"),
    "images": (Mapping, "a table: an image of FROM = its files"),
    "num_eval_examples": (Integral, "a whole number"),
}


def load_environment(target: str, **kwargs: Any) -> Environment:
    """The environment `harbor:TARGET`; with `agent`, a coding agent attempts its tasks."""
    if kwargs.get("agent") is None:
        return HarborEnv(target, **{name: value for name, value in kwargs.items() if name != "agent"})
    from whet.integrations.harbor_agent import HarborWithAgentEnv  # which imports this module

    return HarborWithAgentEnv(target, **kwargs)


@dataclass(frozen=True, slots=True)
class CarriedPath:
    """What an agent left at a path: an archive, of a folder's contents or of one file."""

    path: str
    is_folder: bool
    archive: bytes


@dataclass(frozen=True, slots=True)
class Graded:
    """Numbers of a verifier, of which `reward` is one, and the end of what it printed."""

    rewards: dict[str, float]
    wrote: str


class HarborEnv(SandboxEnv):
    """Tasks of Harbor's format, with a shell for the model."""

    def __init__(
        self,
        target: str,
        max_turns: int = 50,
        timeout_per_command_seconds: float = 60,
        max_carried_mb: float = 64,
        leave_out_refused: bool = False,
        num_eval_examples: int = 0,
        packages: str = "",
        build_network: Sequence[str] = (),
        verifier_network: Sequence[str] = (),
        one_user: bool = False,
        images: Mapping[str, str] | None = None,
        max_output_chars: int | None = 16_000,
        **kwargs: Any,
    ) -> None:
        """Make an environment.

        Args:
            target: a folder with a task or with tasks, or FOLDER#NAME.
            max_turns: turns of the model after which a rollout ends, and is graded.
            timeout_per_command_seconds: a command of the model is ended so long after its start.
            max_carried_mb: MiB that the verifier is shown of each path; what is more is graded 0.
            leave_out_refused: play a folder's other tasks where some cannot be played, which is an error otherwise.
            num_eval_examples: tasks, the last ones by name, that are for evaluation alone.
            packages: packages of Python that boxes have besides those of the Dockerfile, as on pip's command line.
            build_network: hosts that RUN may reach besides those of `network`, such as registry.npmjs.org, whatever
                network the task has.
            verifier_network: hosts that tests/test.sh may reach besides those of `network`, such as pypi.org.
            one_user: play tasks with another USER than root, although all files belong to one user here: the agent can
                change what the Dockerfile made for root alone.
            images: the files of images of FROM, each a folder or an archive of `docker export`, whose system is shown
                in place of this machine's.
            max_output_chars: the middle of a longer answer is left out before the model reads it.
            kwargs: arguments of `SandboxEnv`, other than datasets and rubric; `network` names the hosts that tasks
                with a public network may reach, none by default, any in a container with ["*"]; `backend` is
                bubblewrap, docker or podman.
        """
        check_values(self, locals(), _EXPECTED)
        self._in_container = kwargs.setdefault("backend", "bubblewrap") in CONTAINERS
        if kwargs["backend"] not in ("bubblewrap", *CONTAINERS):
            raise ConfigError(f"'harbor:{target}': backend should be bubblewrap, docker or podman.")
        if self._in_container:
            without = {"packages": packages, "build_network": build_network, "one_user": one_user, "images": images}
            if given := [name for name, value in without.items() if value]:
                raise ConfigError(f"'harbor:{target}': {given[0]} is for bubblewrap; an engine builds what is there.")
            for hosts in (list(kwargs.get("network", ())), list(verifier_network)):
                AllowList.parse(hosts if hosts != ANYTHING else ())
        self.has_own_system = self._in_container or bool(images)
        network = kwargs.pop("network", ()) if self._in_container else ()  # which a box with a user can have
        self.tasks, self.refused = find_tasks(
            target, one_user=one_user, roots=image_roots(images or {}), in_container=self._in_container
        )
        if self.refused:
            self._refuse(target, leave_out=leave_out_refused)
        for task in self.tasks:
            task.dockerfile.writable[:] = dict.fromkeys([*task.dockerfile.writable, *kwargs.get("writable", ())])
        self._carried_bytes = int(max_carried_mb * MIB)
        self.rows = [
            {"question": task.instruction, "answer": "", "info": {"task": task.name, "number": number}}
            for number, task in enumerate(self.tasks)
        ]
        self.split = split = len(self.rows) - num_eval_examples
        if not 0 < split <= len(self.rows):
            had = f"'harbor:{target}' has {len(self.rows)}"
            raise ConfigError(f"num_eval_examples should leave tasks to train on; {had}.")
        super().__init__(
            sandbox_name="harbor",
            dataset=self.rows[:split],
            eval_dataset=self.rows[split:] or None,
            rubric=ExternalScoreRubric(harbor_reward),
            max_turns=max_turns,
            timeout_per_command_seconds=timeout_per_command_seconds,
            max_output_chars=max_output_chars,
            **kwargs,
        )
        if self._in_container:
            self.sandbox_request.network = list(network)
        self._build_network, self._verifier_network = list(build_network), list(verifier_network)
        kind = ContainerImages if self._in_container else TaskImages
        self._images = kind(packages, self.sandbox_client, self._box)
        named = {task.dockerfile.image for task in self.tasks}
        if (unknown := sorted({*(images or {})} - named)) and not self.refused:
            raise ConfigError(f"images: no task has FROM {unknown[0]}. They have: {', '.join(sorted(named))}.")
        if (missing := sorted(named - {*(images or {})})) and not self._in_container:
            warning_once(_log, f"'harbor:{target}': this system's programs stand in for {', '.join(missing)}.")

    def _refuse(self, target: str, *, leave_out: bool) -> None:
        """Say which tasks cannot be played, and why. Raises ConfigError unless others can and are to be."""
        listed = "".join(f"\n  {name}: {why}" for name, why in list(self.refused.items())[:SHOWN_TASKS])
        count = f"{len(self.refused)} of {len(self.refused) + len(self.tasks)}"
        said = f"'harbor:{target}': {count} tasks cannot be played here, such as these:{listed}"
        if not self.tasks or not leave_out:
            others = "\nleave_out_refused = true plays the others." if self.tasks else ""
            raise ConfigError(said + others)
        _log.warning("%s", said)

    def get_sandbox_request(self, state: State) -> CreateSandboxRequest:
        task = self._task(state)
        request = self._request(task)
        self._images.image(task.dockerfile).add_to(request)
        return request

    async def setup_state(self, state: State, **kwargs: Any) -> Any:
        await self._build_image(self._task(state))
        state["working_dir"] = self._task(state).dockerfile.workdir
        return await super().setup_state(state)

    async def post_sandbox_setup(self, state: State) -> None:
        await self.unpack(await self.sandbox_client.sandbox(state["sandbox_id"]))

    async def agent_request(self, task: HarborTask) -> CreateSandboxRequest:
        """A box in which the task is attempted, once its image is there. `unpack` it first."""
        await self._build_image(task)
        request = self._request(task)
        self._images.image(task.dockerfile).add_to(request)
        return await self._complete_request(request)

    async def unpack(self, box: Sandbox) -> None:
        """Put what the Dockerfile made into a fresh box."""
        await self._images.unpack(box)

    async def _build_image(self, task: HarborTask) -> None:
        """Have the task's image. Raises ConfigError with the line of the Dockerfile that fails."""
        request = await self._complete_request(self._request(task))
        request.network = [*request.network, *self._build_network]
        await self._images.prepare(task.dockerfile, request, task.table.environment.build_timeout_sec)

    @stop
    async def agent_timeout_reached(self, state: State) -> bool:
        """`[agent] timeout_sec` of the task has passed: no further turn, and what is there is graded."""
        began = state["timing"].setup.end
        return bool(began) and time.time() - began > self._task(state).table.agent.timeout_sec

    async def post_rollout(self, state: State) -> None:
        if state.get("error") is None and "sandbox_id" in state and self.score_rollouts:
            box = await self.sandbox_client.sandbox(state["sandbox_id"])
            state["harbor_carried"] = await self.carry(box, self._task(state))

    @cleanup(priority=-1)  # when the agent's sandbox has ended, so that a rollout never waits with one for another
    async def grade_rollout(self, state: State) -> None:
        carried = state.pop("harbor_carried", None)
        if carried is not None and state.get("error") is None:
            await self.reward(state, carried)

    async def reward(self, state: State, carried: list[CarriedPath]) -> None:
        """Grade what the agent of a rollout left."""
        with state["timing"].grading():
            graded = await self.grade(self._task(state), carried)
        state["harbor_reward"] = graded.rewards.pop("reward")
        state["external_metrics"] = graded.rewards

    async def attempt(self, task: HarborTask, script: str = "") -> Graded:
        """What the verifier gives after a script of the task, `solution/solve.sh` or one of `cheats/`, or nothing.

        Raises EnvError when the solution fails, or the verifier gives no reward.
        """
        async with self._task_box(task, SOLUTION) as (box, _):
            if script == SOLVE:
                if not (task.folder / SOLVE).is_file():
                    raise EnvError(f"task {task.name} has no {SOLVE}")
                await box.upload((task.folder / SOLVE).parent, SOLUTION)
                command, env = ["bash", f"/{SOLVE}"], task.table.solution.env
            else:
                command, env = ["bash", "-c", (task.folder / script).read_text("utf-8") if script else ""], {}
            result = await box.exec(
                command, cwd=task.dockerfile.workdir, env=env, timeout_s=task.table.agent.timeout_sec
            )
            if script == SOLVE and not result.ok:
                raise EnvError(f"task {task.name}: {SOLVE}: {said(result)}")
            carried = await self.carry(box, task)
        return await self.grade(task, carried)

    async def grade(self, task: HarborTask, carried: list[CarriedPath]) -> Graded:
        """What the verifier gives for what an agent left, in a sandbox of its own.

        Raises EnvError when the verifier cannot be run or gives no reward, SandboxError when the host is at fault.
        """
        verifier, log = task.table.verifier, f"{REWARDS}/test-stdout.txt"
        async with self._task_box(task, TESTS, verifies=True) as (box, variables):
            variables["TASK_PATH"] = variables.pop("PATH")
            for one in carried:
                await _unpack(box, one)
            cleaned = await box.exec(["sh", "-c", HARMLESS, "sh", *(one.path for one in carried)], timeout_s=COMMAND_S)
            if not cleaned.ok:
                raise SandboxFileError(f"what the agent left cannot be shown to the verifier: {said(cleaned)}")
            for path in (REWARDS, TESTS):
                await done(box, ["sh", "-c", _EMPTY, "sh", path])
            try:
                await box.upload(task.folder / "tests", TESTS)
            except SandboxFileError as error:
                raise EnvError(f"task {task.name}: tests cannot be put into the grading box: {error}") from error
            result = await box.exec(
                ["sh", "-c", _TEST, "sh", log],
                cwd=task.dockerfile.workdir,
                env={**variables, **verifier.env},
                timeout_s=verifier.timeout_sec,
            )
            what = f"task {task.name}: tests/test.sh: {result.describe()}"
            if result.limit is not None:
                raise EnvError(what)
            written = await done(box, ["sh", "-c", _REWARD, "sh", REWARDS])
            wrote = (await box.exec(["tail", "-c", str(SHOWN), log])).stdout.strip() or "nothing"
        try:
            return Graded(_rewards(written.stdout), wrote)
        except ValueError as error:
            raise EnvError(f"{what}; {error}. It wrote: {wrote}") from error

    def _task(self, state: State) -> HarborTask:
        return self.tasks[int(state["info"]["number"])]

    def _request(self, task: HarborTask, *writable: str, verifies: bool = False) -> CreateSandboxRequest:
        box, request = task.table.environment, self.sandbox_request.model_copy(deep=True)
        phase = task.table.verifier if verifies else task.table.agent
        seconds = box.build_timeout_sec + task.table.agent.timeout_sec + task.table.verifier.timeout_sec
        request.cpu_cores, request.memory_gb, request.disk_size_gb = (
            box.cpus,
            box.memory_mb / 1024,
            box.storage_mb / 1024,
        )
        request.root = task.dockerfile.root
        request.user = str(phase.user if phase.user is not None else "") if self._in_container else ""
        request.timeout_minutes = max(request.timeout_minutes, seconds / 60 + 60)
        request.environment_vars = {**box.env, **(request.environment_vars or {})}
        hosts = [*dict.fromkeys([*request.network, *(self._verifier_network if verifies else [])])]
        hosts = ANYTHING if ANYTHING[0] in hosts else hosts
        request.network = hosts if box.has_network(phase.network_mode) else []
        request.writable = [*dict.fromkeys([*task.dockerfile.writable, LOGS, *writable])]
        return request

    @asynccontextmanager
    async def _task_box(
        self, task: HarborTask, *writable: str, verifies: bool = False
    ) -> AsyncIterator[tuple[Sandbox, dict[str, str]]]:
        """A box with what the task's Dockerfile made, and its variables, which are not those of one that verifies."""
        await self._build_image(task)
        request = self._request(task, *writable, verifies=verifies)
        image = self._images.image(task.dockerfile)
        image.add_to(request)
        request = await self._complete_request(request)
        variables = dict(request.environment_vars or {})
        request.environment_vars = image.verifying if verifies else variables
        async with self._box(request) as box:
            await self.unpack(box)
            yield box, variables

    @asynccontextmanager
    async def _box(self, request: CreateSandboxRequest) -> AsyncIterator[Sandbox]:
        handle = await self.sandbox_client.create(request)
        try:
            yield await self.sandbox_client.sandbox(handle.id)
        finally:
            await to_the_end(self.sandbox_client.delete(handle.id))

    async def carry(self, box: Sandbox, task: HarborTask) -> list[CarriedPath]:
        """Raises SandboxFileError for what is too large or cannot be read: of the agent's doing, and graded 0."""
        for hook in task.table.verifier.collect:
            result = await box.exec(hook.command, cwd=task.dockerfile.workdir, timeout_s=hook.timeout_sec)
            if not result.ok:  # the agent may have had its hand in it
                _log.warning("task %s: the collect command %.80r: %s", task.name, hook.command, said(result))
        carried = []
        for path in await self._images.carried(box, task):
            packed = await box.exec(
                ["sh", "-c", _PACK, "sh", path], timeout_s=COMMAND_S, output_bytes=self._carried_bytes
            )
            if packed.exit_code == 3 and packed.limit is None:
                continue  # the agent did not make it
            if packed.limit is not None or packed.exit_code not in (0, 1):  # 1: it changed while it was read
                raise SandboxFileError(f"{path} cannot be shown to the verifier: {said(packed, output=False)}")
            carried.append(CarriedPath(path, packed.stdout_bytes[:1] == b"d", packed.stdout_bytes[1:]))
        return carried


def harbor_reward(state: State) -> float:
    """What the verifier of the task gave."""
    return float(state["harbor_reward"])


async def _unpack(box: Sandbox, one: CarriedPath) -> None:
    """Raises SandboxFileError for an archive that is none: the agent's doing."""
    above, _, name = one.path.rpartition("/")
    folder, names = (one.path, ["."]) if one.is_folder else (above or "/", [name])
    await done(box, ["sh", "-c", _EMPTY, "sh", one.path])
    result = await box.exec(["sh", "-c", _UNPACK, "sh", folder, *names], stdin=one.archive, timeout_s=COMMAND_S)
    if not result.ok:
        raise SandboxFileError(f"what the agent left at {one.path} cannot be unpacked: {said(result)}")


def _rewards(text: str) -> dict[str, float]:
    """The rewards in what the verifier left, after the name of its file. Raises ValueError for everything else."""
    name, _, content = text.partition("\n")
    if not name:
        raise ValueError(f"{REWARDS} has neither reward.json nor reward.txt")
    try:
        value = float(content) if name == "reward.txt" else parse_json(content, REWARD_BYTES)
    except ValueError as error:
        raise ValueError(f"{name} cannot be read: {error}") from error
    values = value if isinstance(value, dict) else {"reward": value}
    rewards = {key: number for key, one in values.items() if (number := as_number(one)) is not None}
    if len(rewards) < len(values) or "reward" not in rewards:
        raise ValueError(f"{name} has {content.strip()!r:.200}, neither a number nor numbers of which one is 'reward'")
    return rewards
