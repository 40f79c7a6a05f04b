"""`whet train list`, `show`, `metrics`, `rollouts`, `logs`, `compare`: what they say of runs that really happened."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from whet.rl.doctor import line

Whet = Callable[..., tuple[int, str, str]]


def copied(run: Path, to: Path, state: str = "finished") -> Path:
    """A copy whose status.json says `state`; nobody holds its lock."""
    shutil.copytree(run, to)
    status = json.loads((to / "status.json").read_text())
    (to / "status.json").write_text(json.dumps({**status, "state": state}))
    return to


def test_the_list_says_how_each_run_stands(whole: Path, whet: Whet) -> None:
    code, out, _ = whet("train", "list", whole.parent, "--json")
    assert code == 0
    (run,) = json.loads(out)["runs"]
    assert (run["name"], run["state"], run["step"], run["max_steps"]) == ("whole", "finished", 3, 3)
    assert run["environments"] == ["reverse-text", "calculator"]
    assert run["resume"] is None
    last = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])
    assert run["reward"] == last["reward/mean"]
    assert "reverse-text, calculator" in whet("train", "list", whole.parent)[1]


def test_a_run_that_says_running_while_nobody_is_at_it_died_and_can_be_resumed(
    whole: Path, tmp_path: Path, whet: Whet
) -> None:
    died = copied(whole, tmp_path / "runs" / "gone", "running")
    run = json.loads(whet("train", "list", tmp_path / "runs", "--json")[1])["runs"][0]
    assert (run["state"], run["resume"]) == ("died", f"whet train resume {died}")
    assert f"whet train resume {died}" in whet("train", "list", tmp_path / "runs")[1]


def test_a_run_is_found_by_its_name_below_runs_and_a_misspelt_one_is_suggested(
    whole: Path, whet: Whet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole.parent.parent)
    assert whet("train", "show", "whole")[0] == 0
    code, out, err = whet("train", "show", "whol")
    assert (code, out) == (2, "")
    assert "Did you mean 'whole'?" in err
    assert err.count("\n") == 1


def test_show_has_what_the_config_changes_the_curves_the_scores_and_which_checkpoints_are_whole(
    whole: Path, tmp_path: Path, whet: Whet
) -> None:
    run = copied(whole, tmp_path / "run")
    weights = run / "checkpoints" / "step_2" / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    said = json.loads(whet("train", "show", run, "--json")[1])
    assert said["config"]["learning_rate"] == 1e-3
    assert "seed" not in said["config"]
    assert said["curves"]["reward/mean"]["steps"] == 3
    faults = {check["step"]: check["fault"] for check in said["checkpoints"]}
    assert faults[1] is faults[3] is None
    assert "weights.safetensors" in faults[2]
    assert [report["moment"] for report in said["evaluations"]] == ["before", "during", "after"]
    assert said["doctor"] == line(run)
    text = whet("train", "show", run)[1]
    assert "checkpoints of step 1, 3, verified" in text
    assert "weights.safetensors is damaged" in text


def test_metrics_are_those_of_metrics_jsonl_with_the_evaluations_in_their_steps(whole: Path, whet: Whet) -> None:
    rows = json.loads(whet("train", "metrics", whole, "--json")[1])["metrics"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    steps = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert all(row[name] == value for row, step in zip(rows[1:], steps, strict=True) for name, value in step.items())
    assert [row.get("eval/version") for row in rows] == [0, None, 2, 3]


def test_metrics_are_chosen_by_name_or_beginning_and_thinned(whole: Path, whet: Whet) -> None:
    out = whet("train", "metrics", whole, "reward/mean", "policy/", "--every", "2", "--csv")[1]
    header, *rows = csv.reader(io.StringIO(out))
    engine = ["fresh_frac", "kl", "kl_engine", "logprob_diff_max", "logprob_diff_mean"]
    assert header == ["step", "reward/mean", "policy/clip_frac", "policy/entropy", *(f"policy/{n}" for n in engine)]
    assert [row[0] for row in rows] == ["1", "3"]
    code, _, err = whet("train", "metrics", whole, "reward/men")
    assert code == 2
    assert "Did you mean 'reward/mean'?" in err


def test_rollouts_come_worst_first_and_of_one_environment(whole: Path, whet: Whet) -> None:
    told = ["train", "rollouts", whole, "--step", "2", "--env", "calculator", "-n", "4"]
    worst, best = (json.loads(whet(*told, way, "--json")[1])["rollouts"] for way in ("--worst", "--best"))
    rewards = [row["reward"] for row in worst]
    assert rewards == sorted(rewards)
    assert [row["reward"] for row in best] == rewards[::-1]
    assert {row["environment"] for row in worst} == {"calculator"}
    text = whet(*told)[1]
    assert f"whet view {whole}" in text
    assert text.count("  assistant ") >= 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--step", "9"), "the newest are of step 3"),
        (("--env", "chess"), "it has: calculator, reverse-text"),
        (("--best", "--worst"), "give one of them"),
    ],
)
def test_rollouts_that_are_not_there_are_named_in_a_line(
    arguments: tuple[str, ...], named: str, whole: Path, whet: Whet
) -> None:
    code, out, err = whet("train", "rollouts", whole, *arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert err.count("\n") == 1


def test_hostile_text_of_a_model_cannot_move_the_terminal(whole: Path, tmp_path: Path, whet: Whet) -> None:
    run = copied(whole, tmp_path / "run")
    path = run / "rollouts" / "step_000003.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["completion"] = [{"role": "assistant", "content": "\x1b[2Jgone\x1b]0;title\x07"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = whet("train", "rollouts", run)[1]
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "gone" in out


def test_the_log_has_the_plain_lines_of_the_run(whole: Path, whet: Whet) -> None:
    lines = whet("train", "logs", whole)[1].splitlines()
    assert sum(" INFO step " in line for line in lines) == 3
    assert any("held-out, after training" in line for line in lines)
    assert any("finished after 3 steps" in line for line in lines)
    assert lines == whet("train", "logs", whole, "-f")[1].splitlines()  # nobody is at it: following ends


def test_two_runs_are_compared_by_config_curves_and_scores(whole: Path, adapted: Path, whet: Whet) -> None:
    said = json.loads(whet("train", "compare", whole, adapted, "--json")[1])
    assert said["config"]["lora.rank"] == ["absent", 4]
    assert said["config"]["max_steps"] == [3, 1]
    assert "learning_rate" not in said["config"]
    assert said["common_steps"] == 1
    rewards = next(curve for curve in said["curves"] if curve["name"] == "reward/mean")
    assert (len(rewards["a"]), len(rewards["b"])) == (3, 1)
    assert rewards["recent_a"] == rewards["a"][0]  # up to the last step that both have
    assert all(score["step_a"] == 3 and score["b"] is None for score in said["held_out"])
    assert "lora.rank" in whet("train", "compare", whole, adapted)[1]


def test_an_evaluation_says_which_version_it_is_of_and_how_often_one_of_k_attempts_passes(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "evals.jsonl").read_text().splitlines()]
    assert {row["step"]: row["version"] for row in rows} == {0: 0, 2: 2, 3: 3}
    assert all(set(row["pass@k"]) == {"1", "2"} for row in rows if row["sampling"] != "greedy")
    assert all("pass@k" not in row for row in rows if row["sampling"] == "greedy")


def test_a_run_that_cannot_be_read_is_listed_as_such_beside_the_others(whole: Path, tmp_path: Path, whet: Whet) -> None:
    for name, file, text in (
        ("config", "config.toml", "model ="),
        ("status", "status.json", "{"),
        ("metrics", "metrics.jsonl", "{}}\n"),
    ):
        (copied(whole, tmp_path / "runs" / name) / file).write_text(text)
    copied(whole, tmp_path / "runs" / "good")
    code, out, _ = whet("train", "list", tmp_path / "runs", "--json")
    runs = {Path(run["directory"]).name: run for run in json.loads(out)["runs"]}
    assert (code, runs["good"]["fault"]) == (0, None)
    assert all(file in runs[name]["fault"] for name, file in (("config", "toml"), ("status", "json"), ("metrics", "1")))
    assert whet("train", "list", tmp_path / "runs")[1].count("damaged") == 3
    code, out, err = whet("train", "show", tmp_path / "runs" / "status")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_run_that_imitates_conversations_is_shown_by_its_losses(
    tmp_path: Path, whet: Whet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = [{"role": "user", "content": "Say a."}, {"role": "assistant", "content": "a"}]
    Path("rows.jsonl").write_text((json.dumps({"messages": said}) + "\n") * 4)
    Path("imitate.toml").write_text(
        'num_epochs = 2\nbatch_size = 2\n[data]\npath = "rows.jsonl"\n[deployment]\nthreads = 1\n'
    )
    assert whet("train", "sft", "imitate.toml")[0] == 0
    shown = json.loads(whet("train", "show", "imitate", "--json")[1])
    assert (shown["imitates"], shown["environments"]) == ("rows.jsonl", [])
    settled = {"learner.micro_batch_tokens"}  # by the device
    assert shown["config"].keys() == {"batch_size", "data.path", "deployment.threads", "num_epochs"} | settled
    assert shown["curves"]["optim/loss"]["steps"] == 4
    assert "rows.jsonl" in whet("train", "list")[1]
    assert "`whet train sft` has none" in whet("train", "rollouts", "imitate")[2]
    assert whet("train", "export", "imitate")[0] == 0
