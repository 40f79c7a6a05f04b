"""Harbor tasks in containers: with a real engine where WHET_TEST_IMAGE names an image, as `sandboxes/test_docker.py`.

The image needs Debian's `useradd`, and WHET_TEST_ENGINE be docker or podman.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.errors import ConfigError
from whet.integrations.harbor_container import _own_folder
from whet.integrations.harbor_env import SOLVE, HarborEnv
from whet.sandboxes import docker
from whet.sandboxes.docker import DockerBackend
from whet.types import State

Play = Callable[[whet.Environment, list[Any]], State]
Make = Callable[..., Path]
Rollout = Callable[..., tuple[State, list[str]]]
IMAGE = os.environ.get("WHET_TEST_IMAGE")
ENGINE = os.path.basename(os.environ.get("WHET_TEST_ENGINE", "docker"))
needs_engine = pytest.mark.skipif(IMAGE is None, reason="WHET_TEST_IMAGE names no image")
DOCKERFILE = f"""\
FROM {IMAGE} AS tools
RUN useradd --create-home player && mkdir -p /srv/site && echo old > /srv/site/page
FROM tools
ENV WORDS=words.txt
WORKDIR /app
COPY data/ ./data/
COPY --chmod=755 run.sh /usr/local/bin/count-words
RUN mkdir out && chown -R player /app /srv/site
USER player
"""
TEST = """\
[ "$(cat out/count)" = "$(cat /tests/expected)" ] && r=1 || r=0
echo $r > /logs/verifier/reward.txt
"""


@pytest.fixture
def container_task(task: Make) -> Make:
    """A task whose Dockerfile has two stages, another user and files in system folders: what bubblewrap refuses."""

    def make(**files: str) -> Path:
        solution = {"solution__solve_DOT_sh": "count-words > out/count\n"}
        return task(**{"environment__Dockerfile": DOCKERFILE, "tests__test_DOT_sh": TEST, **solution, **files})

    return make


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/app/src/x", "/app"),
        ("/result.json", "/result.json"),
        ("/opt/tool/bin", "/opt/tool"),
        ("/srv/site", "/srv/site"),
        *(
            (path, None)
            for path in ("/", "/opt", "/usr/bin", "/lib64", "/etc/passwd", "/root/.cache", "/home/a", "/tmp/x")
        ),
        *((path, None) for path in ("/tests/test.sh", "/logs/verifier", "/solution", "/var/lib", "/proc/1", "")),
    ],
)
def test_what_changed_in_folders_of_a_system_is_not_carried(path: str, folder: str | None) -> None:
    assert _own_folder(path) == folder


def test_users_are_those_of_the_image_in_a_container_alone(task: Make) -> None:
    folder = task(task_DOT_toml='[agent]\nuser = "player"\n[verifier]\nuser = 0\n')
    env = whet.load_environment(f"harbor:{folder}", backend="docker")
    assert isinstance(env, HarborEnv)
    assert (env.tasks[0].table.agent.user, env.tasks[0].table.verifier.user) == ("player", 0)
    with pytest.raises(ConfigError, match=r"agent\.user='player'.*without docker"):
        whet.load_environment(f"harbor:{folder}")


@pytest.mark.parametrize("argument", [{"packages": "uv"}, {"one_user": True}, {"build_network": ["pypi.org"]}])
def test_arguments_of_bubblewrap_are_refused_for_containers(task: Make, argument: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(argument))} is for bubblewrap"):
        whet.load_environment(f"harbor:{task()}", backend="podman", **argument)


@pytest.mark.parametrize("argument", ["network", "verifier_network"])
def test_hosts_that_are_none_are_refused(task: Make, argument: str) -> None:
    with pytest.raises(ConfigError, match="without a scheme"):
        whet.load_environment(f"harbor:{task()}", backend="podman", **{argument: ["https://pypi.org"]})
    for hosts in (["*"], ["pypi.org"]):
        whet.load_environment(f"harbor:{task()}", backend="podman", **{argument: hosts})


def test_a_build_that_fails_names_the_file_and_says_why(
    task: Make, rollout: Rollout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "docker"
    engine.write_text('#!/bin/sh\ncase "$1" in build) echo "unknown: RUM" >&2; exit 3;; image) exit 1;; esac\n')
    engine.chmod(0o755)
    monkeypatch.setattr(DockerBackend, "program", lambda self: str(engine))
    with pytest.raises(ConfigError, match=r"Dockerfile:1: .*build ended with exit code 3: unknown: RUM"):
        rollout(task(), "true", backend="docker")


@needs_engine
def test_a_solution_has_the_reward_and_doing_nothing_has_none(container_task: Make) -> None:
    env = whet.load_environment(f"harbor:{container_task()}", backend=ENGINE)
    assert isinstance(env, HarborEnv)

    async def rewards() -> list[float]:
        try:
            return [(await env.attempt(env.tasks[0], script)).rewards["reward"] for script in (SOLVE, "")]
        finally:
            await env.close()

    assert asyncio.run(rewards()) == [1.0, 0.0]


@needs_engine
def test_the_model_is_the_user_of_the_image_in_its_workdir(container_task: Make, rollout: Rollout) -> None:
    state, outputs = rollout(
        container_task(),
        "whoami; pwd; echo $WORDS; ls /tests /solution; grep -c : /proc/net/dev",
        "touch /usr/bin/intruder",
        "count-words > out/count",
        backend=ENGINE,
    )
    assert outputs[0].split("\n")[:3] == ["player", "/app", "words.txt"]
    assert outputs[0].split("\nstderr")[0].endswith("\n1")
    assert "Permission denied" in outputs[1]
    assert (state["reward"], state["error"]) == (1.0, None)


@needs_engine
def test_another_folder_of_the_task_is_carried(container_task: Make, rollout: Rollout) -> None:
    folder = container_task(tests__test_DOT_sh="grep -c new /srv/site/page > /logs/verifier/reward.txt\n")
    assert rollout(folder, "echo new > /srv/site/page", backend=ENGINE)[0]["reward"] == 1.0


@needs_engine
def test_programs_of_the_system_that_root_has_replaced_do_not_grade(container_task: Make, rollout: Rollout) -> None:
    folder = container_task(task_DOT_toml='[agent]\nuser = "root"\n')
    forged = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
    state, _ = rollout(
        folder,
        f"for name in cat bash tar; do printf '{forged}' > /usr/bin/$name; done; echo done",
        "ln -s /logs/verifier/reward.txt out/count; ln -s /tests out/tests; mkfifo out/pipe",
        backend=ENGINE,
        timeout_per_command_seconds=20,
    )
    assert (state["reward"], state["error"]) == (0.0, None)


@needs_engine
def test_a_container_that_writes_more_than_its_disk_is_ended(container_task: Make, rollout: Rollout) -> None:
    folder = container_task(task_DOT_toml="[environment]\nstorage_mb = 64\n")
    state, outputs = rollout(
        folder, "for n in 1 2 3; do head -c 60M /dev/zero > /app/$n; done; sleep 15; echo on", backend=ENGINE
    )
    assert "on" not in outputs[0].split()
    assert state["reward"] == 0.0


@needs_engine
def test_a_container_whose_disk_cannot_be_measured_is_ended(container_task: Make, rollout: Rollout) -> None:
    deep = "import os\nos.chdir('/app')\nfor n in range(60): os.mkdir('d' * 99); os.chdir('d' * 99)"
    command = f"python3 <<'E'\n{deep}\nE\nsleep 15; echo on"
    state, outputs = rollout(container_task(), command, backend=ENGINE)
    assert "on" not in outputs[0].split()
    assert (state["reward"], state["error"]) == (0.0, None)


def call(command: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": "call", "name": "bash", "arguments": json.dumps({"command": command})}]}


@pytest.fixture
def listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image with the Python that opens the socket of a container, which is downloaded otherwise."""
    monkeypatch.setattr(docker, "IMAGE", IMAGE)


@needs_engine
def test_an_agent_of_others_reaches_its_model_and_nothing_else(container_task: Make, listens: None, play: Play) -> None:
    env = whet.load_environment(f"harbor:{container_task()}", backend=ENGINE, agent="bash")
    ask = "python3 -c 'import urllib.request as u; u.urlopen(\"http://pypi.org\")' 2>&1 | tail -1"
    script = [call(f"whoami; pwd; ls /tests; grep -c : /proc/net/dev; {ask}"), call("count-words > out/count"), "Done."]
    state = play(env, script)
    assert (state["error"], state["reward"]) == (None, 1.0)
    words = state["trajectory"][1]["prompt"][-1]["content"].split()
    assert words[:2] == ["player", "/app"]
    assert words[-6:] == ["1", "urllib.error.HTTPError:", "HTTP", "Error", "403:", "Forbidden"]


COUNT = {"command": "count-words > out/count"}
SHELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "mini-swe-agent": ("bash", COUNT),
    "codex": ("exec_command", {"cmd": COUNT["command"]}),
    "opencode": ("bash", COUNT | {"description": "Counts"}),
    "claude-code": ("Bash", COUNT | {"description": "Counts"}),
    "pi": ("bash", COUNT),
    "qwen-code": ("run_shell_command", COUNT | {"is_background": False}),
}


@needs_engine
@pytest.mark.parts
@pytest.mark.parametrize("name", SHELLS)
def test_agents_of_others_attempt_a_task(container_task: Make, listens: None, play: Play, name: str) -> None:
    folder = container_task(task_DOT_toml="[environment]\nmemory_mb = 2048\n")  # Node.js takes half of it at most
    env = whet.load_environment(f"harbor:{folder}", backend=ENGINE, agent=name)
    tool, arguments = SHELLS[name]
    asked = {"tool_calls": [{"id": "call", "name": tool, "arguments": json.dumps(arguments)}]}
    end = "Done." if name != "mini-swe-agent" else call("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    state = play(env, [asked, end])
    assert (state["error"], state["stop_condition"]) == (None, "program_completed"), state["program"]
    assert (state["reward"], len(state["trajectory"])) == (1.0, 2)


@needs_engine
def test_an_agent_whose_program_the_image_lacks_is_refused(container_task: Make, listens: None, play: Play) -> None:
    without = f"{DOCKERFILE}USER root\nRUN rm -f $(command -v python3) /usr/bin/python3\nUSER player\n"
    env = whet.load_environment(
        f"harbor:{container_task(environment__Dockerfile=without)}", backend=ENGINE, agent="bash"
    )
    with pytest.raises(ConfigError, match=r"agent 'bash' is run by python3, which the image of task .* lacks"):
        play(env, ["Done."])
