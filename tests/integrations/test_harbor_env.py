"""`harbor:`: tasks of Harbor's format that the tests write, with real sandboxes and a scripted model."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.cli.main import main
from whet.errors import ConfigError, EnvError, EnvironmentLoadError
from whet.integrations.harbor_dockerfile import read_dockerfile
from whet.integrations.harbor_env import HarborEnv
from whet.integrations.harbor_verify import verify_tasks

Make = Callable[..., Path]
Play = Callable[..., tuple[whet.State, list[str]]]


def test_solution_has_reward_1_and_nothing_less(bubblewrap: None, task: Make, capsys: Any) -> None:
    task()
    task("easy", tests__test_DOT_sh="echo 1 > /logs/verifier/reward.txt")
    assert main(["env", "verify", f"harbor:{task().parent}", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)["tasks"]
    assert [(one["task"], one["solution"], one["nothing"], one["ok"]) for one in said] == [
        ("count", 1.0, 0.0, True),
        ("easy", 1.0, 1.0, False),
    ]


def test_model_works_in_the_folder_that_the_dockerfile_made(bubblewrap: None, task: Make, rollout: Play) -> None:
    state, (made, seen, ran) = rollout(task(), "cat made; pwd", "ls -A / /app", "./run.sh > out/count; cat out/count")
    assert state["error"] is None
    assert made.startswith("made of words.txt")
    assert "tests" not in seen.split()
    assert "solution" not in seen.split()
    assert ran == "3"
    assert (state["reward"], state["metrics"]["tries"]) == (1.0, 2.0)


def test_grading_is_scoring_in_a_rollouts_timing(
    bubblewrap: None, task: Make, rollout: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    grade, took = HarborEnv.grade, list[float]()

    async def timed(*args: Any) -> Any:
        began = time.time()
        graded = await grade(*args)
        took.append(time.time() - began)
        return graded

    monkeypatch.setattr(HarborEnv, "grade", timed)
    timing = rollout(task(), "true")[0]["timing"]
    assert timing.scoring.duration >= took[0] > 0


def test_nothing_that_the_agent_writes_reaches_tests_or_reward(bubblewrap: None, task: Make, rollout: Play) -> None:
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


def test_what_cannot_be_shown_to_the_verifier_is_graded_0(bubblewrap: None, task: Make, rollout: Play) -> None:
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
def test_verifier_without_a_reward_is_an_error(
    bubblewrap: None, task: Make, rollout: Play, script: str, words: str
) -> None:
    toml = "[verifier]\ntimeout_sec = 1\n"
    state, _ = rollout(task(tests__test_DOT_sh=script, task_DOT_toml=toml))
    assert isinstance(state["error"], EnvError)
    assert words in str(state["error"])
    assert state["reward"] is None


def test_separate_verifier_is_shown_artifacts_alone(bubblewrap: None, task: Make, rollout: Play) -> None:
    toml = 'artifacts = ["/app/out/count", "/app/gone"]\n[verifier]\nenvironment_mode = "separate"\n'
    test = 'if [ "$(cat out/count)" = 3 ] && [ ! -e other ] && [ ! -e gone ]; then r=1; else r=0; fi\n'
    test += 'echo "$r" > /logs/verifier/reward.txt'
    folder = task(task_DOT_toml=toml, tests__test_DOT_sh=test)
    assert rollout(folder, "echo 3 > out/count; touch other")[0]["reward"] == 1.0
    assert rollout(folder, "rm out/count; mkdir out/count; echo 3 > out/count/count")[0]["reward"] == 0.0


def test_dockerfile_is_carried_out_once(bubblewrap: None, task: Make, rollout: Play, harbor_cache: Path) -> None:
    random = "FROM x\nWORKDIR /app\nRUN head -c 9 /dev/urandom | base64 > /srv/key; mkdir out\nRUN python --version\n"
    test = 'if [ "$(cat out/key)" = "$(cat /srv/key)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt'
    folder = task(environment__Dockerfile=random, tests__test_DOT_sh=test)
    copy = "cp /srv/key out/key; cat out/key; rm -r /srv/key; mkdir /srv/key"
    first, (key,) = rollout(folder, copy, writable=["/extra"])
    (image,) = (harbor_cache / "cache/harbor").iterdir()
    assert [(file.name, oct(file.stat().st_mode & 0o777)) for file in image.iterdir()] == [("files.tar", "0o644")]
    second, (again,) = rollout(folder, "cp /srv/key out/key; cat out/key", writable=["/extra"])
    assert again == key
    assert (first["reward"], second["reward"]) == (0.0, 1.0)
    (folder / "environment/Dockerfile").write_text(random.replace("9", "10"))
    assert rollout(folder, copy, writable=["/extra"])[1] != [key]


def test_single_file_is_copied_to_a_path_of_its_own(bubblewrap: None, task: Make, rollout: Play) -> None:
    text = "FROM x\nWORKDIR /app\nCOPY data/words.txt /words.txt\nCOPY run.sh /opt/run.sh\nCOPY run.sh /app\n"
    test = 'if [ "$(cat /words.txt)" = "one two three" ] && [ "$(cat out)" = x ]; then r=1; else r=0; fi\n'
    folder = task(environment__Dockerfile=text, tests__test_DOT_sh=test + "echo $r > /logs/verifier/reward.txt")
    state, (ls,) = rollout(
        folder, "cat /words.txt; ls /app; test -x /opt/run.sh; echo $?; echo x > /words.txt; echo x > out"
    )
    assert (ls.split(), state["reward"]) == (["one", "two", "threerun.sh", "0"], 1.0)


def test_two_processes_make_one_image(bubblewrap: None, task: Make, harbor_cache: Path) -> None:
    random = "FROM x\nWORKDIR /app\nRUN head -c 9 /dev/urandom | base64 > key\n"
    folder = task(environment__Dockerfile=random)

    async def images() -> None:
        envs = [whet.load_environment(f"harbor:{folder}") for _ in range(2)]  # as little in common as two processes
        await asyncio.gather(*[env._build_image(env.tasks[0]) for env in envs])
        shown = [env._images.image(env.tasks[0].dockerfile).read_only["/opt/whet-image"] for env in envs]
        assert shown[0] == shown[1]
        assert [str(path) for path in (harbor_cache / "cache/harbor").iterdir()] == shown[:1]
        for env in envs:
            await env.close()

    asyncio.run(images())


def test_packages_of_python_are_installed_outside(
    bubblewrap: None, task: Make, rollout: Play, harbor_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = "whetpet-1.0.dist-info"
    with zipfile.ZipFile(harbor_cache / "whetpet-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("whetpet.py", "def main():\n    print('called')\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: whetpet\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nwhetpet = whetpet:main\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(harbor_cache))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    text = "FROM x\nENV PYTHONPATH=/app PATH=/app:$PATH\nWORKDIR /app\nRUN pip install whetpet==1.0\n"
    test = "if [ $(whetpet) = called ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
    folder = task(environment__Dockerfile=text, tests__test_DOT_sh=test)
    commands = ("whetpet", "echo $PYTHONPATH; touch /opt/whet-packages/x")
    state, (called, path) = rollout(folder, *commands, packages="WhetPet==3.0")  # the Dockerfile's counts
    assert (called, state["reward"]) == ("called", 1.0)
    assert path.startswith("/app:/opt/whet-packages")
    assert "Read-only" in path
    with pytest.raises(ConfigError, match=r"Dockerfile:4: pip could not install whetpet==2\.0"):
        rollout(task(environment__Dockerfile=text.replace("1.0", "2.0")), "true")


def test_only_the_dockerfile_reaches_the_hosts_of_its_build(bubblewrap: None, task: Make, rollout: Play) -> None:
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)  # answers 501
    threading.Thread(target=served.serve_forever, daemon=True).start()
    url = f"http://mirror.test:{served.server_port}/"
    fetch = f"python3 -c 'import urllib.request as r; r.urlopen(\"{url}\")' 2>&1 | tail -1"
    folder = task(
        environment__Dockerfile=f"FROM x\nWORKDIR /app\nRUN {fetch} > fetched; mkdir out\n",
        task_DOT_toml="[environment]\nallow_internet = false\n",
        tests__test_DOT_sh=f"{fetch} > fetched; grep -c 501 fetched > /logs/verifier/reward.txt",
    )
    hosts = [f"mirror.test=127.0.0.1:{served.server_port}"]
    state, (built, tried) = rollout(folder, "cat fetched", fetch, build_network=hosts, verifier_network=hosts)
    served.shutdown()
    served.server_close()
    assert "501" in built
    assert "501" not in tried
    assert (state["error"], state["reward"]) == (None, 0.0)  # a task without a network has none for its tests


def test_collect_commands_run_before_artifacts_are_carried(bubblewrap: None, task: Make, rollout: Play) -> None:
    toml = '[verifier]\nenvironment_mode = "separate"\n[[verifier.collect]]\ncommand = "cp seen /logs/artifacts/seen"\n'
    test = 'if [ "$(cat /logs/artifacts/seen)" = 5 ]; then r=1; else r=0; fi; echo $r > /logs/verifier/reward.txt'
    folder = task(task_DOT_toml=toml, tests__test_DOT_sh=test)
    assert rollout(folder, "echo 5 > seen")[0]["reward"] == 1.0
    assert rollout(folder, "true")[0]["reward"] == 0.0  # the command fails


def test_other_user_is_refused_unless_all_files_may_be_the_agents(bubblewrap: None, task: Make, rollout: Play) -> None:
    folder = task(environment__Dockerfile="FROM x\nWORKDIR /home/dev\nRUN touch roots; mkdir /solution/x\nUSER dev\n")
    with pytest.raises(ConfigError, match=r"Dockerfile:4: USER dev is not possible .* one_user = true plays the task"):
        rollout(folder, "true")
    assert rollout(folder, "pwd; ls; rm roots", one_user=True)[1] == ["/home/dev\nroots"]


def test_dockerfile_that_fails_is_named_by_line(bubblewrap: None, task: Make, rollout: Play) -> None:
    folder = task(environment__Dockerfile="FROM x\nWORKDIR /app\n\nRUN echo why >&2; exit 7\n")
    with pytest.raises(ConfigError, match=r"Dockerfile:4: RUN failed with exit code 7: why"):
        rollout(folder)
    (check,) = verify_tasks(whet.load_environment(f"harbor:{folder}"))
    assert (check.ok, check.solution) == (False, None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("FROM a\nWORKDIR /app\nRUN true && \\\n  apt-get -y install no-such-package", 3),
        ("FROM a\nWORKDIR /app\nRUN apt-get update && apt-get install -y python3-redis", 3),
        ("FROM a\nRUN for p in jq; do apt-get install $p; done", 2),
        ("FROM a\nRUN pip install -e .", 2),
        ("FROM a\nRUN pip install --index-url https://x y", 2),
        ("FROM a\nRUN pip install -r nowhere.txt", 2),
        ("FROM golang-is-elsewhere/dotnet/sdk:9", 1),
        ("FROM a\nENTRYPOINT x", 2),
        ("FROM a AS b\nWORKDIR /app\nFROM c", 3),
        ("FROM a\nWORKDIR /app\nCOPY ../task.toml .", 3),
        ("FROM a\nWORKDIR /app\nCOPY --from=b run.sh .", 3),
        ("FROM a\nWORKDIR /app\nADD https://x/y .", 3),
        ("FROM a\nWORKDIR /app\nCOPY run.sh /tests/", 3),
        ("FROM a\nWORKDIR /usr/src", 2),
        ("FROM a\nENV A=$NOWHERE", 2),
        ("FROM a\nWORKDIR /app\nRUN <<EOF\ntrue", 3),
        ("FROM a\nRUN <<EOF\n#!/usr/bin/perl\nEOF", 2),
        ("RUN true", 1),
        ("", 1),
    ],
)
def test_other_dockerfiles_are_refused_by_line(task: Make, text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=rf"Dockerfile:{line}: "):
        read_dockerfile(task(environment__Dockerfile=text) / "environment/Dockerfile")


def test_instructions_of_common_dockerfiles_are_read(task: Make) -> None:
    text = """ARG V=3.12
FROM --platform=linux/amd64 python:${V}-slim AS base
LABEL by=x
ENV PATH="/root/.local/bin:${PATH}" DEBIAN_FRONTEND=noninteractive
SHELL ["/bin/bash", "-c"]
RUN DEBIAN_FRONTEND=noninteractive apt-get update && apt-get install -y --no-install-recommends \\
    # the shell
    bash python3-pip ca-certificates coreutils=9.1 && rm -rf /var/lib/apt/lists/*
RUN mkdir -p /data && pip3 install --no-cache-dir pytest==8.4.1 'numpy>=1,<3' > /dev/null 2>&1
COPY --chown=root:root *.txt requirements.txt* /root/
RUN python -m pip install -r /root/requirements.txt
RUN cat > /srv/app.py <<'PY' && echo done
# kept
print("a  b")
PY
USER root
CMD ["sleep", "infinity"]
"""
    lines = "six  # for python 2\n\n# none\nattrs==24.1.0\n"
    files = {"environment__requirements_DOT_txt": lines}
    made = read_dockerfile(task(environment__Dockerfile=text, **files) / "environment/Dockerfile")
    assert list(made.requirements) == ["pytest==8.4.1", "numpy>=1,<3", "six", "attrs==24.1.0"]
    assert list(made.requirements.values()) == [9, 9, 11, 11]
    assert made.env == {"PATH": "/root/.local/bin:$PATH", "DEBIAN_FRONTEND": "noninteractive"}
    assert (made.workdir, made.user, made.writable) == ("/root", None, ["/data", "/root", "/srv"])
    run = [step.command for step in made.steps if step.command[:2] == ("/bin/bash", "-c")]
    assert len(run) == 2  # the packages alone are none
    script = "cat > /srv/app.py <<'PY' && echo done\n# kept\nprint(\"a  b\")\nPY"
    assert run[1][-1] == script


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[environment]\nmemmory_mb = 2\n", "'environment.memmory_mb'"),
        ("[environment]\ngpus = 1\n", "environment.gpus=1: .* only none or 0 is possible"),
        ("[environment]\nenv = { A = '${HOME}' }\n", "variables of this machine are not passed"),
        ("[agent]\nuser = 'dev'\n", "agent.user='dev'"),
        ("[[verifier.collect]]\ncommand = 'x'\nservice = 'db'\n", "verifier.collect.0.service='db'"),
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


def test_last_tasks_are_held_out(task: Make) -> None:
    folder = next(iter([task(name) for name in "abc"])).parent
    env = whet.load_environment(f"harbor:{folder}", num_eval_examples=1)
    assert [row["info"]["task"] for row in env.get_dataset()] == ["a", "b"]
    assert [row["info"]["task"] for row in env.get_eval_dataset()] == ["c"]
    for number in (3, -1):
        with pytest.raises(ConfigError, match="num_eval_examples should leave tasks"):
            whet.load_environment(f"harbor:{folder}", num_eval_examples=number)


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
