"""`harbor:`: tasks of Harbor's format that the tests write, with real sandboxes and a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.cli.main import main
from whet.errors import ConfigError, EnvError, EnvironmentLoadError
from whet.integrations.harbor_dockerfile import read_dockerfile
from whet.integrations.harbor_verify import verify_tasks
from whet.sandboxes.pool import shared_pool

DOCKERFILE = """\
FROM ubuntu:24.04
# the words to count
ENV WORDS=words.txt \\
    LIMIT=3
WORKDIR /app
COPY data/ ./data/
COPY run.sh /app
RUN echo "made of $WORDS" > made && \\
    mkdir -p out
"""
TEST = """\
mkdir -p /logs/verifier
if [ "$(cat out/count)" = "$(cat /tests/expected)" ]; then r=1; else r=0; fi
echo "{\\"reward\\": $r, \\"tries\\": $STRICT}" > /logs/verifier/reward.json
"""
SOLUTION = "./run.sh > out/count\n"
Make = Callable[..., Path]


@pytest.fixture
def task(tmp_path: Path) -> Make:
    """Writes a task: what its files say, by path; `None` leaves one out."""

    def make(name: str = "count", **files: str | None) -> Path:
        folder = tmp_path / "tasks" / name
        texts: dict[str, str | None] = {
            "task.toml": '[verifier]\ntimeout_sec = 20\nenv = { STRICT = "2" }\n[environment]\nmemory_mb = 512\n',
            "instruction.md": "Count the words.",
            "environment/Dockerfile": DOCKERFILE,
            "environment/data/words.txt": "one two three",
            "environment/run.sh": '#!/bin/sh\nwc -w < "data/$WORDS"\n',
            "tests/test.sh": TEST,
            "tests/expected": "3\n",
            "solution/solve.sh": SOLUTION,
            **{path.replace("__", "/").replace("_DOT_", "."): text for path, text in files.items()},
        }
        for path, text in texts.items():
            if text is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
        (folder / "environment/run.sh").chmod(0o755)
        return folder

    return make


def rollout(folder: Path, *commands: str, **kwargs: Any) -> tuple[whet.State, list[str]]:
    """A scored rollout whose model runs these commands, and what it read."""
    env = whet.load_environment(f"harbor:{folder}", **kwargs)
    calls = [
        {"tool_calls": [{"id": "1", "name": "bash", "arguments": json.dumps({"command": command})}]}
        for command in commands
    ]

    async def run() -> whet.State:
        state = await env.rollout(env.get_dataset()[0], whet.ScriptedClient([*calls, "done"]), "m", {})
        await env.rubric.score_rollout(state)
        assert shared_pool().leased == 0
        return state

    state = asyncio.run(run())
    return state, [message["content"] for message in state["completion"] if message["role"] == "tool"]


def test_solution_has_reward_1_and_nothing_less(bubblewrap: None, task: Make, capsys: Any) -> None:
    task()
    task("easy", tests__test_DOT_sh="echo 1 > /logs/verifier/reward.txt")
    assert main(["env", "verify", f"harbor:{task().parent}", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)["tasks"]
    assert [(one["task"], one["solution"], one["nothing"], one["ok"]) for one in said] == [
        ("count", 1.0, 0.0, True),
        ("easy", 1.0, 1.0, False),
    ]


def test_model_works_in_the_folder_that_the_dockerfile_made(bubblewrap: None, task: Make) -> None:
    state, (made, seen, ran) = rollout(task(), "cat made; pwd", "ls -A / /app", "./run.sh > out/count; cat out/count")
    assert state["error"] is None
    assert made.startswith("made of words.txt")
    assert "tests" not in seen.split()
    assert "solution" not in seen.split()
    assert ran == "3"
    assert (state["reward"], state["metrics"]["tries"]) == (1.0, 2.0)


def test_nothing_that_the_agent_writes_reaches_tests_or_reward(bubblewrap: None, task: Make) -> None:
    forge = "mkdir -p /logs/verifier /logs/artifacts; for f in /logs/verifier/reward.json /logs/artifacts/reward.json "
    forge += "/app/reward.json; do echo 1 > $f; done; echo 1 > /logs/verifier/reward.txt"
    links = "rm -rf /app/out; ln -s /logs/verifier /app/out; echo 1 > out/count; ln -s /logs/verifier/reward.json x"
    tests = "mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; rm -rf /home/writable/1"
    bash = "echo 'echo 1 > /logs/verifier/reward.txt; exit' > ~/.bashrc; mkdir -p ~/bin; printf 'echo 3' > ~/bin/cat"
    later = "nohup setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.json; sleep 0.01; done' > /dev/null 2>&1 &"
    # A forged reward.json would count before this verifier's reward.txt.
    test = (
        'if [ "$(cat out/count)" = "$(cat /tests/expected)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'
    )
    folder = task(tests__test_DOT_sh=test)
    for command in (forge, links, tests, bash, later):
        state, _ = rollout(folder, command)
        assert (state["error"], state["reward"]) == (None, 0.0), command


def test_what_cannot_be_shown_to_the_verifier_is_graded_0(bubblewrap: None, task: Make) -> None:
    for command in ("head -c 3000000 /dev/zero > big", "mkdir closed; touch closed/x; chmod 0 closed"):
        state, _ = rollout(task(), command, max_carried_mb=2)
        assert (state["error"], state["reward"]) == (None, 0.0), command


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 1", "neither reward.json nor reward.txt. It wrote: nothing"),
        ("echo 1 > /nowhere/x; echo '{\"speed\": 1}' > /logs/verifier/reward.json", "nowhere"),
        ("echo nan > /logs/verifier/reward.txt", "neither a number"),
        ("sleep 30", "time limit"),
    ],
)
def test_verifier_without_a_reward_is_an_error(bubblewrap: None, task: Make, script: str, words: str) -> None:
    toml = "[verifier]\ntimeout_sec = 1\n"
    state, _ = rollout(task(tests__test_DOT_sh=script, task_DOT_toml=toml))
    assert isinstance(state["error"], EnvError)
    assert words in str(state["error"])
    assert state["reward"] is None


def test_separate_verifier_is_shown_artifacts_alone(bubblewrap: None, task: Make) -> None:
    toml = 'artifacts = ["/app/out/count", "/app/gone"]\n[verifier]\nenvironment_mode = "separate"\n'
    test = 'if [ "$(cat out/count)" = 3 ] && [ ! -e other ] && [ ! -e gone ]; then r=1; else r=0; fi\n'
    test += 'echo "$r" > /logs/verifier/reward.txt'
    folder = task(task_DOT_toml=toml, tests__test_DOT_sh=test)
    assert rollout(folder, "echo 3 > out/count; touch other")[0]["reward"] == 1.0
    assert rollout(folder, "rm out/count; mkdir out/count; echo 3 > out/count/count")[0]["reward"] == 0.0


def test_dockerfile_that_fails_is_named_by_line(bubblewrap: None, task: Make) -> None:
    folder = task(environment__Dockerfile="FROM x\nWORKDIR /app\n\nRUN echo why >&2; exit 7\n")
    with pytest.raises(ConfigError, match=r"Dockerfile:4: RUN failed with exit code 7: why"):
        rollout(folder)
    (check,) = verify_tasks(whet.load_environment(f"harbor:{folder}"))
    assert (check.ok, check.solution) == (False, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("FROM a\nWORKDIR /app\nRUN true && \\\n  apt-get -y install curl", 3),
        ("FROM a AS b\nWORKDIR /app\nFROM c", 3),
        ("FROM a\n\nUSER root", 3),
        ("FROM a\nWORKDIR /app\nCOPY ../task.toml .", 3),
        ("FROM a\nWORKDIR /app\nCOPY --chown=1 run.sh .", 3),
        ("FROM a\nWORKDIR /app\nCOPY run.sh /tests/", 3),
        ("FROM a\nWORKDIR /usr/src", 2),
        ("FROM a\nENV A=$NOWHERE", 2),
        ("FROM a\nWORKDIR /app\nRUN <<EOF", 3),
        ("RUN true", 1),
        ("FROM a", 1),
    ],
)
def test_other_dockerfiles_are_refused_by_line(task: Make, text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"Dockerfile:{line}: "):
        read_dockerfile(task(environment__Dockerfile=text) / "environment/Dockerfile")


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[environment]\ngpus = 1\nmemmory_mb = 2\n", "'environment.gpus' .*'environment.memmory_mb'"),
        ("[[verifier.collect]]\ncommand = 'x'\n", "'verifier.collect'"),
        ("[agent]\ntimeout_sec = -1\n", "agent.timeout_sec=-1"),
        ("artifacts = ['/etc/x']\n", "where a sandbox cannot write"),
        ("[agent\n", "cannot be read"),
    ],
)
def test_keys_of_task_toml_are_named(task: Make, toml: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        whet.load_environment(f"harbor:{task(task_DOT_toml=toml)}")


def test_folder_name_and_missing_files(task: Make, tmp_path: Path) -> None:
    task()
    other = task("other")
    both = whet.load_environment(f"harbor:{other.parent}")
    assert [row["info"]["task"] for row in both.get_dataset()] == ["count", "other"]
    one = whet.load_environment(f"harbor:{other.parent}#other")
    assert [row["info"]["task"] for row in one.get_dataset()] == ["other"]
    with pytest.raises(EnvironmentLoadError, match=r"no task 'third'\. Tasks there: count, other"):
        whet.load_environment(f"harbor:{other.parent}#third")
    (other / "tests/test.sh").unlink()
    with pytest.raises(ConfigError, match=r"other/tests/test.sh: a task of Harbor needs this file"):
        whet.load_environment(f"harbor:{other}")


def test_refused_tasks_may_be_left_out(task: Make, caplog: pytest.LogCaptureFixture) -> None:
    folder = task().parent
    (task("other") / "tests" / "test.sh").unlink()
    with pytest.raises(ConfigError, match=r"1 of 2 tasks (.|\n)*leave_out_refused = true plays the others"):
        whet.load_environment(f"harbor:{folder}")
    env = whet.load_environment(f"harbor:{folder}", leave_out_refused=True)
    assert [row["info"]["task"] for row in env.get_dataset()] == ["count"]
    assert list(env.refused) == ["other"]
    assert "other/tests/test.sh" in caplog.text
    with pytest.raises(ConfigError, match="1 of 1 tasks"):
        whet.load_environment(f"harbor:{folder}#other", leave_out_refused=True)
