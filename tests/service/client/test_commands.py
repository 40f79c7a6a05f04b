"""The commands that speak to a service, against one that answers over HTTP: submit, and what is done with runs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from whet.rl.config import load_run_config

CANARY = "canary-5f2b9c1e7a"
RUN = """\
model = "whet/tiny"
max_steps = 2
batch_size = 8
rollouts_per_example = 4

[sampling]
max_tokens = 16

[[env]]
id = "reverse-text"
"""


def submitted(commands: Any, text: str = RUN, *words: str) -> Any:
    Path("first.toml").write_text(text)
    return commands.answer("train", "submit", "first.toml", "-y", *words)


def test_config_arrives_with_its_files_and_secrets_that_are_found_nowhere(
    commands: Any, home: Path, tmp_path: Path
) -> None:
    (home / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    (home / "secrets.env").write_text(f"MY_KEY={CANARY}\n")
    config = 'model = "whet/tiny"\nbatch_size = 2\nnum_epochs = 1\n[data]\npath = "rows.jsonl"\n'
    Path("first.toml").write_text(config)
    text = commands.say("train", "submit", "first.toml", "-y", "--env-file", "secrets.env", "--cap-hours", "1")
    assert "secrets       MY_KEY (encrypted there, shown nowhere)" in text
    [run] = commands.answer("train", "list", "--service")["runs"]
    assert commands.answer("train", "list")["runs"] == [run]  # there is no runs/ here
    assert (run["owner"], run["name"], run["kind"], run["state"]) == (commands.user, "first", "sft", "queued")
    assert f"submitted {run['id']} ({commands.user}/first): place " in text
    assert f"{commands.address}/runs/{run['id']}\n" in text
    assert run["caps"]["seconds"] == 3600
    assert run["needs"]["memory"] > 1 << 30

    ask = commands.service
    there = ask.ok("GET", f"/runs/{run['id']}/config", commands.user).text
    assert 'path = "files/rows.jsonl"' in there
    (home / "secrets.env").unlink()
    seen = [text, there, json.dumps(run), json.dumps(ask.ok("GET", f"/audit?owner={commands.user}", "hub-admin"))]
    assert not [one for one in seen if CANARY in one]
    files = [path for folder in (tmp_path, ask.service.data) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]


def test_submission_has_what_train_run_would_train(commands: Any, home: Path) -> None:
    run = submitted(commands, RUN, "--max_steps", "3", "--name", "other")
    assert (run["new"], run["name"], run["max_steps"], run["model"]) == (True, "other", 3, "whet/tiny")
    (home / "there").mkdir()
    there = home / "there" / "config.toml"
    there.write_text(commands.service.ok("GET", f"/runs/{run['id']}/config", commands.user).text)
    assert load_run_config(there) == load_run_config(Path("first.toml"), ["--max_steps", "3", "--name", "other"])


def test_command_that_is_repeated_after_a_lost_answer_submits_nothing_twice(commands: Any, tmp_path: Path) -> None:
    Path("first.toml").write_text(RUN)
    kept = tmp_path / "config" / "whet" / "submissions"
    commands.app.left = 1
    commands.say("train", "submit", "first.toml", "-y", code=2)
    assert len(list(kept.iterdir())) == 1
    again = submitted(commands)
    assert again["new"] is False
    assert not list(kept.iterdir())
    assert [run["id"] for run in commands.answer("train", "list", "--service")["runs"]] == [again["id"]]
    assert submitted(commands)["id"] != again["id"]  # another one: the first was answered


def test_environment_of_the_hub_is_pinned_and_refused_if_its_action_failed(commands: Any, packages: Any) -> None:
    service = commands.service
    wheel = packages.Wheel(version="0.1.0")
    assert service.push(commands.user, commands.user, wheel).status_code == 201
    config = RUN.replace('"reverse-text"', f'"{commands.user}/{wheel.name}"')
    run = submitted(commands, config)
    text = service.ok("GET", f"/runs/{run['id']}/config", commands.user).text
    assert f'id = "{commands.user}/{wheel.name}@0.1.0"' in text
    with service.service.hub.database.write() as session:
        from whet.hub.storage.tables import ActionRow as Action

        session.query(Action).update({Action.state: "failed"})
    text = commands.say("train", "submit", "first.toml", "-y", code=2)
    assert "the hub tried it out, and that failed" in text
    assert "--skip-action-check" in text
    submitted(commands, config, "--skip-action-check")


def test_what_the_service_refuses_is_said_line_by_line(commands: Any) -> None:
    Path("first.toml").write_text(RUN)
    text = commands.say("train", "submit", "first.toml", "-y", "--owner", "bob", code=2)
    assert len(text.strip().splitlines()[-1]) > 10
    assert "Traceback" not in text
    text = commands.say("train", "submit", "first.toml", "-y", "-e", f"{'A' * 70}=value", code=2)
    lines = text.partition("error: ")[2].splitlines()
    assert lines[0] == "the service refuses this:"
    assert lines[1].strip().startswith("secrets: ")
    assert len(lines) == 2
    assert "CONFIG comes before --key value" in commands.say(
        "train", "submit", "--max_steps", "3", "first.toml", code=2
    )
    commands.service.ok("PUT", f"/quotas/{commands.user}", "hub-admin", json={"queued": 0})
    assert "queue" in commands.say("train", "submit", "first.toml", "-y", code=2)


def test_run_is_found_by_id_name_and_owner_and_changed(commands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = submitted(commands)["id"]
    second = submitted(commands)["id"]
    assert commands.answer("train", "get", first)["id"] == first
    assert commands.answer("train", "get", "first")["id"] == second  # the newest of the name
    assert commands.answer("train", "get", f"{commands.user}/first")["id"] == second
    assert "there is no run 'nothing': neither here" in commands.say("train", "get", "nothing", code=2)
    stopped = commands.answer("train", "stop", first)
    assert stopped["state"] == "stopped"
    assert [run["id"] for run in commands.answer("train", "list", "--service", "--state", "queued")["runs"]] == [second]
    assert stopped["id"] in commands.say("train", "restart", first, "-y")
    assert "stopped" in commands.say("train", "stop", first, "-y")
    restarted = commands.answer("train", "restart", first, "--cap-hours", "0.5", "--cap-tokens", "7000")
    assert (restarted["state"], restarted["caps"]) == ("queued", {"seconds": 1800.0, "tokens": 7000, "cost": None})
    commands.say("train", "stop", first)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert "with all its files?" in commands.say("train", "delete", first, code=1)
    assert commands.answer("train", "get", first)["state"] == "stopped"
    assert f"{first} is deleted" in commands.say("train", "delete", first, "-y")
    assert "there is no run" in commands.say("train", "get", first, code=2)
    said = commands.say("train", "list", "--service", "--state", "runing", code=2)
    assert "'runing' is not one of 'queued', 'starting', 'running', 'finished', 'failed', 'stopped'." in said
    assert len(said.splitlines()) == 1
    text = commands.say("train", "list")  # there is no runs/ here
    assert second in text
    assert commands.user in text


def test_run_of_others_does_not_exist(commands: Any) -> None:
    mine = submitted(commands)["id"]
    commands.log_in(commands.service.user("eve"))
    for words in (("get",), ("logs",), ("metrics",), ("stop",), ("delete", "-y"), ("checkpoints",), ("restart",)):
        assert f"there is no run '{mine}'" in commands.say("train", words[0], mine, *words[1:], code=2)
    assert commands.answer("train", "list", "--service")["runs"] == []


def test_secrets_of_an_owner_are_set_listed_and_deleted(commands: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", CANARY)
    text = commands.say("secret", "set", "MY_KEY", "--from-env", "SOURCE")
    assert f"MY_KEY of {commands.user} is set" in text
    listed = commands.say("secret", "list")
    assert "MY_KEY" in listed
    assert CANARY not in text + listed
    assert [one["name"] for one in commands.answer("secret", "list")["secrets"]] == ["MY_KEY"]
    assert f"MY_KEY of {commands.user} is deleted" in commands.say("secret", "delete", "MY_KEY")
    assert commands.answer("secret", "list")["secrets"] == []
    assert "NOT_SET: the variable is not set here" in commands.say(
        "secret", "set", "A", "--from-env", "NOT_SET", code=2
    )


def test_usage_and_models_of_the_service(commands: Any) -> None:
    assert commands.answer("train", "usage")["owner"] == commands.user
    assert {"model": "whet/tiny", "where": commands.address} in commands.answer("train", "models")["models"]


def test_evaluations_and_searches_are_submitted_too(commands: Any) -> None:
    found = commands.answer("eval", "submit", "reverse-text", "-n", "4", "-y")
    assert (found["kind"], found["name"]) == ("evaluation", "reverse-text-whet-tiny")
    assert "num_examples = 4" in commands.service.ok("GET", f"/runs/{found['id']}/config", commands.user).text
    search = commands.answer("gepa", "submit", "reverse-text", "-B", "200", "--seed-prompt", "Reverse it.", "-y")
    assert search["kind"] == "search"
    kinds = [run["kind"] for run in commands.answer("train", "list", "--kind", "search")["runs"]]
    assert kinds == ["search"]


LOG = """\
2026-11-23T02:49:14+0000 INFO step 1/2  reward 0.435
2026-11-23T02:49:15+0000 WARNING torch: the disk is slow
2026-11-23T02:49:16+0000 INFO finished after 2 steps
"""


@pytest.fixture
def finished(commands: Any) -> str:
    """The id of a run that has ended, with the files that a run leaves."""
    from whet.service.storage.tables import RunRow

    run = submitted(commands)["id"]
    with commands.service.service.hub.database.write() as session:
        row = session.get_one(RunRow, run)
        row.state, row.step, row.attempt = "finished", 2, 1
    folder = commands.service.service.data / "runs" / run / "run"
    for name in ("logs", "rollouts"):
        (folder / name).mkdir(parents=True)
    (folder / "config.toml").write_text(RUN)
    (folder / "status.json").write_text(json.dumps({"state": "finished", "step": 2, "max_steps": 2}))
    (folder / "logs" / "run.log").write_text(LOG)
    steps = [{"step": step, "reward/mean": 0.25 * step, "optim/loss": -0.1 / step} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    for step in (1, 2):
        rows = [
            {
                "environment": "reverse-text",
                "example_id": 7,
                "group": step,
                "prompt": [{"role": "user", "content": "Reverse abc."}],
                "completion": [{"role": "assistant", "content": f"answer {place} of step {step}"}],
                "reward": reward,
                "advantage": reward - 0.5,
                "answer": "cba",
            }
            for place, reward in enumerate((0.2, 1.0))
        ]
        (folder / "rollouts" / f"step_{step:06}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def test_data_of_a_run_is_printed_as_that_of_a_run_of_this_machine(commands: Any, finished: str) -> None:
    csv = commands.say("train", "metrics", finished, "reward/", "--csv")
    assert csv == "step,reward/mean\n1,0.25\n2,0.5\n"
    rows = commands.answer("train", "metrics", "first")["metrics"]
    assert rows[1] == {"step": 2, "optim/loss": -0.05, "reward/mean": 0.5}

    assert commands.say("train", "logs", finished, "-f") == LOG
    assert commands.answer("train", "logs", finished, "-n", "2") == {"lines": LOG.splitlines()[1:]}
    assert commands.say("train", "logs", finished, "-n", "1") == LOG.splitlines(keepends=True)[-1]
    assert commands.say("train", "logs", finished, "--level", "warning") == LOG.splitlines(keepends=True)[1]
    assert commands.say("train", "logs", finished, "--search", "FINISHED") == LOG.splitlines(keepends=True)[2]
    assert commands.say("train", "logs", finished, "--since", "2026-11-23T02:49:16+00:00").count("\n") == 1

    best = commands.say("train", "rollouts", finished, "--best", "-n", "1")
    assert best.startswith("step 2\n")
    assert "reverse-text, task 7" in best
    assert "reward 1.000, advantage +0.500" in best
    assert "answer 1 of step 2" in best
    assert "expected   cba" in best
    first = commands.answer("train", "rollouts", finished, "-s", "1", "--worst", "-n", "1")
    assert (first["step"], first["rollouts"][0]["reward"]) == (1, 0.2)

    shown = commands.say("train", "distributions", finished)
    assert "reward  0.2 to 1" in shown
    assert "mean 0.6, of 2" in shown
    assert commands.answer("train", "progress", finished)["state"] == "finished"
    progress = commands.say("train", "progress", finished)
    assert "step       2 of 2\n" in progress
    assert "{" not in progress
    assert commands.answer("train", "checkpoints", finished)["checkpoints"] == []
    assert "has no whole checkpoint" in commands.say("train", "checkpoints", finished, "--download", "model", code=2)


def test_progress_of_processes_fits_into_the_terminal(
    commands: Any, finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.cli.service import runs

    monkeypatch.setenv("COLUMNS", "80")
    processes = [{"pid": n, "name": f"python\x1b[2J{'x' * 200}", "cores": 0.5, "memory": n << 20} for n in (1, 2)]
    status = {"heartbeat": "2026-11-23T02:49:16+00:00", "last_error": "e" * 900, "nested": {"a": [1] * 100}}
    answer = {"state": "running", "reason": "", "step": 3, "max_steps": None, "status": status, "waits_for": ["gpu"]}
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    runs._print_progress({**answer, "processes": {"processes": processes}}, False)
    printed = commands._capsys.readouterr().out
    assert "2.0 MiB   0.50  python" in printed
    assert "\x1b[2J" not in printed
    assert max(len(line) for line in printed.splitlines() if "e" * 900 not in line) <= 80
    assert "waits for" in printed


def test_ends_of_logs_name_the_run_and_not_folders_of_the_service(commands: Any, finished: str) -> None:
    folder = commands.service.service.data / "runs" / finished / "run"
    ends = [f"continue: whet train resume {folder}", f"browse: whet view '{folder}'", f"{folder}/metrics.jsonl", LOG]
    (folder / "logs" / "run.log").write_text("\n".join(ends))
    lines = commands.say("train", "logs", finished).splitlines()
    assert lines[:2] == [f"continue: whet train restart {finished}", f"browse: whet view '{finished}'"]


def test_findings_of_a_package_that_is_refused_are_shown(commands: Any, home: Path) -> None:
    package = home / "environments" / "bad_env"
    package.mkdir(parents=True)
    text = '[project]\nname = "bad-env"\nversion = "0.1.0"\ndependencies = ["whet"]\n[build-system]\n'
    (package / "pyproject.toml").write_text(f'{text}requires = ["hatchling"]\nbuild-backend = "hatchling.build"\n')
    (package / "bad_env.py").write_text(
        "import whet as vf\n\n\ndef load_environment():\n"
        "    def wrong(completion, **_):\n        raise ValueError('bad luck')\n\n"
        "    return vf.SingleTurnEnv(dataset=[{'question': 'q', 'answer': 'a'}] * 8, rubric=vf.Rubric(funcs=[wrong]))\n"
    )
    Path("first.toml").write_text(RUN.replace('"reverse-text"', '"./environments/bad_env"'))
    said = commands.say("train", "submit", "first.toml", "-y", "--allow-dirty", code=2)
    assert "`whet env check` finds errors" in said
    assert "bad luck" in said


@pytest.mark.parametrize(
    ("words", "said"), [(("rollouts", "-s", "2", "-n", "1"), "of step 2"), (("distributions",), "reward  0.2 to 1")]
)
def test_rollouts_that_are_not_indexed_yet_are_waited_for(
    commands: Any, finished: str, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.records.store import Store
    from whet.service.client import following

    left, index = [3], Store._index_here  # it is opened, started and asked once before anything is indexed

    def slowly(store: Store, seconds: float) -> None:
        left[0] -= 1
        if left[0] < 0:
            index(store, seconds)
        else:
            store._indexer.check()

    monkeypatch.setattr(Store, "_index_here", slowly)
    monkeypatch.setattr(following, "INDEX_S", 0.0)
    assert said in commands.say("train", words[0], finished, *words[1:])
    assert left[0] < 0


def test_archive_that_leads_outside_of_its_folder_is_refused(
    commands: Any, finished: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tarfile

    from whet.hub.client.connection import HubClient, HubRequestError
    from whet.service.answers import SubmittedRun
    from whet.service.client.following import download

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("../../outside")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    monkeypatch.setattr(HubClient, "download", lambda self, path: iter([packed.getvalue()]))
    run = SubmittedRun(id=finished, owner="ann", name="first", kind="training", state="finished")
    with HubClient(commands.address) as service, pytest.raises(HubRequestError, match="no whole archive"):
        download(service, run, 1, "adapter", home / "to")
    assert sorted(path.name for path in home.iterdir()) == ["first.toml"]
    assert not list(home.parent.rglob("outside"))
