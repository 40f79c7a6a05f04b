"""Evaluations on disk: listed, opened, summed up and compared again."""

import json
import shlex
from pathlib import Path

import pytest

import whet
from whet.cli.main import main
from whet.errors import RunError
from whet.evals.config import EvalConfig
from whet.evals.stored.stored import list_stored, open_stored, resume_command
from whet.records.lock import DirectoryLock


@pytest.fixture
def saved(tmp_path):
    """Saves an evaluation in which a scripted model says `answer` to each of four tasks."""

    def save(name, answer):
        rows = [{"question": f"say {number}", "answer": str(number)} for number in range(4)]
        rubric = whet.Rubric([lambda completion, answer: float(completion[-1]["content"] == answer)])
        env = whet.SingleTurnEnv(dataset=rows, rubric=rubric, env_id="echo")
        directory = tmp_path / name
        env.evaluate_sync(
            whet.ScriptedClient(answer), "scripted", rollouts_per_example=2, results_path=directory, save_results=True
        )
        return directory

    return save


def right(prompt):
    return prompt[-1]["content"].split()[-1]


def test_the_summary_is_computed_again_from_the_rows(saved):
    summary = open_stored(saved("a", right)).summary()
    assert (summary.environment, summary.model, summary.examples) == ("echo", "scripted", 4)
    assert (summary.reward.mean, summary.pass_at_k["1"]) == (1.0, 1.0)


def test_the_results_file_names_the_evaluation_too(saved):
    directory = saved("a", right)
    assert open_stored(directory / "results.jsonl").directory == directory


def test_a_folder_stands_for_the_only_evaluation_below_it(saved, tmp_path):
    directory = saved("a/b", right)
    assert open_stored(tmp_path / "a").directory == directory
    saved("c", right)
    with pytest.raises(RunError, match="there are 2 evaluations below it; name one of them"):
        open_stored(tmp_path)


def test_the_list_has_the_newest_first(saved, tmp_path):
    saved("a", right)
    saved("b", lambda prompt: "no")
    heads = list_stored(tmp_path)
    assert [head.directory.name for head in heads] == ["b", "a"]
    assert [(head.environment, head.reward, head.rollouts, head.errors) for head in heads] == [
        ("echo", 0.0, 8, 0),
        ("echo", 1.0, 8, 0),
    ]


@pytest.mark.parametrize("missing", ["results.jsonl", "metadata.json"])
def test_half_an_evaluation_is_named(saved, missing):
    directory = saved("a", right)
    (directory / missing).unlink()
    with pytest.raises(RunError, match=missing):
        open_stored(directory)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RunError, match="no such folder"):
        list_stored(tmp_path / "none")


def test_the_commands_list_show_and_compare(saved, tmp_path, capsys):
    a, b = saved("a", right), saved("b", lambda prompt: "1")
    assert main(["eval", "list", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(str(b))
    assert main(["eval", "show", str(a)]) == 0
    assert "reward     1.000" in capsys.readouterr().out
    assert main(["eval", "compare", str(a), str(b), "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "difference -0.750" in out
    assert "3 worse, 0 better, 1 equal" in out
    assert "1.00 -> 0.00  task 0: say 0" in out
    assert main(["eval", "compare", str(a), str(b), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["worse"] == 3


def test_compare_says_in_what_the_environments_differ(saved, capsys):
    a, b = saved("a", right), saved("b", right)
    for directory, version in ((a, "1.0"), (b, "1.1")):
        metadata = json.loads((directory / "metadata.json").read_text())
        identity = {"id": "echo", "name": "echo", "owner": "alice", "version": version, "content": "ab12"}
        (directory / "metadata.json").write_text(json.dumps({**metadata, "environment": identity}))
    assert main(["eval", "compare", str(a), str(b)]) == 0
    assert "differs    the environment, A to B: version: was '1.0', is '1.1'" in capsys.readouterr().out
    assert main(["eval", "compare", str(a), str(b), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["environment_differences"] == ["version: was '1.0', is '1.1'"]
    assert main(["eval", "compare", str(a), str(a), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["environment_differences"] == []


def test_the_commands_report_and_export_write_beside_the_results(saved, capsys):
    directory = saved("a", right)
    assert main(["eval", "report", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(directory / "report.html")}
    assert (directory / "report.html").read_text().startswith("<!doctype html>")
    assert main(["eval", "show", str(directory)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report     {directory / 'report.html'}"
    assert main(["eval", "export", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rollouts": 8, "saved": str(directory / "results.csv")}
    assert main(["eval", "export", str(directory), "--format", "xls"]) == 2
    assert "is not known; it is one of csv, parquet, hf" in capsys.readouterr().err


def test_a_directory_without_an_evaluation_is_one_line(tmp_path, capsys):
    assert main(["eval", "show", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# Evaluations that did not end


@pytest.fixture
def interrupted(saved, tmp_path):
    """Half an evaluation, as it is after a kill: five of eight rows, and metadata that says it runs."""
    directory = saved("a", right)
    results, metadata = directory / "results.jsonl", directory / "metadata.json"
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:5]))
    config = EvalConfig(
        environment="echo",
        model="big",
        base_url="http://localhost:1/v1",
        num_examples=4,
        rollouts_per_example=2,
        temperature=0.5,
        env_args={"say": "it's"},
        state_columns=("a", "b"),
        independent_scoring=True,
        varied={"temperature": 0.5},
    )
    changed = {"state": "running", "config": config.model_dump(mode="json"), "avg_reward": None}
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **changed}))
    return directory


def test_the_list_says_how_far_they_came_and_how_to_go_on(interrupted, tmp_path):
    (head,) = list_stored(tmp_path)
    assert (head.state, head.done, head.rollouts, head.varied) == ("unfinished", 5, 8, {"temperature": 0.5})
    assert shlex.split(head.resume) == [
        *["whet", "eval", "run", "echo", "-m", "big", "-b", "http://localhost:1/v1", "--num-examples=4"],
        *["--rollouts-per-example=2", "--temperature=0.5", "--env-args", '{"say": "it\'s"}'],
        *["--state-columns", "a,b", "--independent-scoring", f"--resume={interrupted}"],
    ]


def test_a_short_name_stands_for_the_model_in_the_command_too(interrupted, tmp_path):
    config = EvalConfig(environment="echo", model="big", base_url="http://h/v1", short_name="mini")
    command = resume_command({"config": config.model_dump(mode="json")}, Path("x"))
    assert command == "whet eval run echo -m mini --resume=x"


def test_what_the_command_says_is_what_was_asked_for(interrupted, tmp_path, monkeypatch):
    asked = []
    plan = "whet.evals.planning.plan.plan_evals"
    monkeypatch.setattr(plan, lambda targets, given, note: asked.append((targets, given)) or [])
    assert main(shlex.split(list_stored(tmp_path)[0].resume)[1:]) == 0
    ((targets, given),) = asked
    before = EvalConfig.model_validate(json.loads((interrupted / "metadata.json").read_text())["config"])
    now = EvalConfig(environment=targets[0], **{**given, "resume": None, "varied": before.varied})
    assert now == before
    assert given["resume"] == str(interrupted)


def test_an_evaluation_that_somebody_is_at_is_running(interrupted, tmp_path):
    lock = DirectoryLock(interrupted)
    try:
        (head,) = list_stored(tmp_path)
    finally:
        lock.release()
    assert (head.state, head.resume) == ("running", None)


def test_the_list_prints_both_kinds(interrupted, saved, tmp_path, capsys):
    saved("b", right)
    assert main(["eval", "list", str(tmp_path)]) == 0
    header, *lines, command = capsys.readouterr().out.splitlines()
    assert "state" in header
    assert [("unfinished" in line, "5/8" in line) for line in lines] == [(False, False), (True, True)]
    assert command.startswith("continue   whet eval run echo -m big")
    assert main(["eval", "list", str(tmp_path), "--json"]) == 0
    states = [head["state"] for head in json.loads(capsys.readouterr().out)["evaluations"]]
    assert states == ["finished", "unfinished"]


def test_an_evaluation_that_did_not_end_can_be_shown(interrupted):
    assert open_stored(interrupted).summary().rollouts == 5
