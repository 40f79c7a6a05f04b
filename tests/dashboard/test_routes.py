"""The routes of the runs' data."""

from __future__ import annotations

import io
import json
import math
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from whet.rl.storage.checkpoints import save_checkpoint

from .conftest import Browser, Runs, rollout, trained


def steps(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"step": step, "reward/mean": step / count, "policy/kl": 0.01, **more} for step in range(1, count + 1)]


@pytest.fixture
def id(runs: Runs, browser: Browser) -> str:
    """A run of two steps with rollouts."""
    groups = [[trained("1", 1.0, 0.5), trained("1", 0.0, -0.5, "no"), trained("2", 0.5, 0.0)] for _ in range(2)]
    runs.training(steps=groups, metrics=steps(2))
    return browser.id("mine")


# Curves.


def test_metrics_keep_least_and_most_of_every_bucket(runs: Runs, browser: Browser) -> None:
    rows = [{"step": step, "a": 0.0, "b/x": step} for step in range(1, 5001)]
    rows[1234]["a"], rows[4321]["a"] = -7.0, 9.0
    rows[10]["b/x"], rows[1]["b/x"] = math.nan, -3.0
    run = runs.training(metrics=rows)
    answer = browser.get(f"/runs/{browser.id('mine')}/metrics", points=100)
    assert len(answer["steps"]) <= 100
    assert answer["steps"] == sorted(set(answer["steps"]))
    assert {len(values) for values in answer["series"].values()} == {len(answer["steps"])}
    assert (min(answer["series"]["a"]), max(answer["series"]["a"])) == (-7.0, 9.0)
    assert (answer["steps"][-1], answer["series"]["b/x"][-1], answer["last_step"]) == (5000, 5000, 5000)
    assert (answer["steps"][0], answer["series"]["b/x"][0]) == (1, 1)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5001, "a": 1, "b/x": null}\n{"step": 5002, "a"')
    more = browser.get(f"/runs/{browser.id('mine')}/metrics", after=5000, names="b/")
    assert (more["steps"], more["series"], more["generation"]) == ([5001], {"b/x": [None]}, answer["generation"])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(": 2}\nno row\n")
    more = browser.get(f"/runs/{browser.id('mine')}/metrics", after=5001, names="a")
    assert (more["steps"], more["series"], more["damaged"]) == ([5002], {"a": [2.0]}, 1)


def test_metrics_of_a_run_that_went_back_keep_least_and_most_of_what_is_left(runs: Runs, browser: Browser) -> None:
    draw = random.Random(7)
    rows = [{"step": step, "a": draw.choice([draw.random(), None])} for step in range(1, 3001)]
    run = runs.training(metrics=rows)
    path = f"/runs/{browser.id('mine')}/metrics"
    browser.get(path, points=20)
    rows[1500:] = [{"step": step, "a": draw.random()} for step in range(1501, 2501)]
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows[1500:])
    answer = browser.get(path, points=20)
    assert (len(answer["steps"]), answer["last_step"]) == (20, 2500)
    for at in range(1, 19, 2):
        first, last = answer["steps"][at : at + 2]
        values = [row["a"] for row in rows[first - 1 : last] if row["a"] is not None]
        assert sorted(answer["series"]["a"][at : at + 2]) == [min(values), max(values)]


def test_metrics_of_a_resumed_run_have_another_generation(runs: Runs, browser: Browser) -> None:
    run = runs.training(metrics=steps(8))
    path = f"/runs/{browser.id('mine')}/metrics"
    first = browser.get(path)
    (run / "new").write_text("".join(json.dumps(row) + "\n" for row in steps(3)))
    os.replace(run / "new", run / "metrics.jsonl")
    second = browser.get(path)
    assert second["generation"] != first["generation"]
    assert second["steps"] == [1, 2, 3]


# Rollouts.


def test_rollouts_are_filtered_sorted_and_paged(browser: Browser, id: str) -> None:
    path = f"/runs/{id}/rollouts"
    first = browser.get(path, limit=4)
    assert (len(first["items"]), first["totals"]["rollouts"], first["progress"]["complete"]) == (4, 6, True)
    second = browser.get(path, limit=4, cursor=first["next"])
    numbers = [item["number"] for item in first["items"] + second["items"]]
    assert (numbers, second["next"], second["totals"]) == ([0, 1, 2, 3, 4, 5], None, None)
    best = browser.get(path, sort="reward", descending=True, step=2)
    assert [item["reward"] for item in best["items"]] == [1.0, 0.5, 0.0]
    assert [item["number"] for item in browser.get(path, reward_to=0.4)["items"]] == [1, 4]
    group = first["items"][0]["group"]
    assert isinstance(group, str)
    assert [item["number"] for item in browser.get(path, group=group)["items"]] == [0, 1]
    found = browser.get(path, search="NO")
    assert ([item["number"] for item in found["items"]], found["search"]["complete"]) == ([1, 4], True)
    assert browser.get(f"{path}/values")["part"] == {"step_000001": 3, "step_000002": 3}


def test_a_list_that_grew_keeps_its_pages_and_one_that_was_rewritten_ends(runs: Runs, browser: Browser) -> None:
    directory = runs.evaluation([rollout(example, example / 10) for example in range(5)])
    path = f"/runs/{browser.id('one')}/rollouts"
    first = browser.get(path, limit=2, sort="reward", descending=True)
    with (directory / "results.jsonl").open("a") as file:
        file.write(json.dumps(rollout(9, 1.0)) + "\n")
    second = browser.get(path, limit=9, sort="reward", descending=True, cursor=first["next"])
    assert [item["example_id"] for item in second["items"]] == [2, 1, 0]
    assert browser.get(path)["totals"]["rollouts"] == 6
    rows = [json.dumps(rollout(example, 0.0)) + "\n" for example in range(3)]
    (directory / "results.jsonl").write_text("".join(rows))
    for query in ({"cursor": first["next"]}, {"generation": first["generation"]}):
        where = path if "cursor" in query else f"{path}/0"
        assert browser.error(where, 409, **query) == "the list changed; begin again."


def test_rollout_has_messages_scores_and_tokens(browser: Browser, id: str) -> None:
    found = browser.get(f"/runs/{id}/rollouts/1")
    assert found["completion"] == [{"role": "assistant", "content": "no"}]
    assert found["scores"] == {"reward": 0.0, "advantage": -0.5, "metrics": {"exact_match": 0.0}}
    (turn,) = found["tokens"]["turns"]
    assert turn["ids"] == [257, 266, 101, 102, 103]
    assert turn["sampled"] == [False, False, True, True, True]
    assert turn["logprobs"] == [None, None, -0.01, -3.5, -0.7]
    assert turn["versions"] == [None, None, 4, 4, 4]
    assert len(turn["texts"]) == 5
    assert found["tokens"]["note"] is None
    assert found["group"] == [0, 1]
    group = browser.get(f"/runs/{id}/rollouts/1/group")["items"]
    assert [one["head"]["number"] for one in group] == [0, 1]
    assert json.loads(browser.http.get(f"/api/v1/runs/{id}/rollouts/1/raw").text)["reward"] == 0.0
    assert "there is no rollout 77" in browser.error(f"/runs/{id}/rollouts/77", 404)


def test_long_texts_are_cut_with_a_mark_and_the_raw_line_has_the_rest(runs: Runs, browser: Browser) -> None:
    said = "x" * 300_000
    runs.training(steps=[[trained("1", 1.0, 0.5, said), *[trained("1", 0.0, 0.0, said) for _ in range(30)]]])
    path = f"/runs/{browser.id('mine')}/rollouts/0"
    found = browser.get(path)
    text = found["completion"][0]["content"]
    assert text.endswith("… [234,464 characters more]")
    assert found["cut"] is True
    assert json.loads(browser.http.get(f"/api/v1{path}/raw").text)["completion"][0]["content"] == said
    assert len(browser.http.get(f"/api/v1{path}/group").content) < 4_000_000


def test_lines_that_are_no_rollouts_are_said(runs: Runs, browser: Browser) -> None:
    directory = runs.evaluation([rollout(0, 1.0)])
    with (directory / "results.jsonl").open("a") as file:
        file.write("nothing\n" + "[" * 100_000 + "\n")
    path = f"/runs/{browser.id('one')}/rollouts"
    assert [item["problem"] is None for item in browser.get(path)["items"]] == [True, False, False]
    assert "not JSON" in browser.error(f"{path}/1", 422)
    assert "nested too deeply" in browser.error(f"{path}/2", 422)


def test_rollouts_that_are_links_are_not_read(runs: Runs, browser: Browser) -> None:
    secret = Runs(runs.folder / "private").training(steps=[[trained("1", 1.0, 0.5, "secret")]])
    run = runs.training(steps=[[trained("1", 0.0, 0.0)]])
    (run / "rollouts" / "step_000002.jsonl").symlink_to(secret / "rollouts" / "step_000001.jsonl")
    path = f"/runs/{browser.id('mine')}/rollouts"
    assert browser.get(path)["totals"]["rollouts"] == 1
    (run / "rollouts").rename(run / "before")
    (run / "rollouts").symlink_to(secret / "rollouts")
    assert browser.http.get(f"/api/v1{path}").status_code in (404, 422)


def test_groups_and_distributions_of_a_step(browser: Browser, id: str) -> None:
    found = browser.get(f"/runs/{id}/groups", step=2)
    assert [(item["rollouts"], item["mean_reward"]) for item in found["items"]] == [(2, 0.5), (1, 0.5)]
    newest = browser.get(f"/runs/{id}/distributions")
    assert newest["step"] == 2
    reward = newest["histograms"]["reward"]
    assert (reward["edges"][0], reward["edges"][-1]) == (0.0, 1.0)
    assert sum(reward["counts"]["reverse-text"]) == 3
    assert reward["counts"]["reverse-text"][-1] == 1
    assert browser.get(f"/runs/{id}/distributions", step=1)["totals"]["rollouts"] == 3


# Logs.


def log(run: Path, *files: str) -> None:
    (run / "logs").mkdir(exist_ok=True)
    for number, text in enumerate(reversed(files)):
        (run / "logs" / ("run.log" if number == 0 else f"run.log.{number}")).write_text(text)


def line(second: int, text: str, level: str = "INFO") -> str:
    return f"2026-11-21T17:40:{second:02}+0000 {level} {text}\n"


def test_log_is_read_over_its_files_and_followed_into_a_new_one(runs: Runs, browser: Browser) -> None:
    run = runs.training()
    log(run, line(0, "oldest"), line(1, "older"), line(2, "newest") + "2026-11-21T17:40:03+0000 INFO tor")
    path = f"/runs/{browser.id('mine')}/logs"

    def texts(answer: Any) -> list[str]:
        return [one["text"].rpartition(" ")[2] for one in answer["lines"]]

    first = browser.get(path, limit=2)
    assert (texts(first), first["more"]) == (["oldest", "older"], True)
    second = browser.get(path, cursor=first["next"])
    assert (texts(second), second["more"]) == (["newest"], False)
    assert texts(browser.get(path, tail=True, limit=2)) == ["older", "newest"]
    with (run / "logs" / "run.log").open("a") as file:
        file.write("n\n")
    os.rename(run / "logs" / "run.log.1", run / "logs" / "run.log.3")
    os.rename(run / "logs" / "run.log", run / "logs" / "run.log.1")
    (run / "logs" / "run.log").write_text(line(4, "rotated"))
    assert texts(browser.get(path, cursor=second["next"])) == ["torn", "rotated"]


def test_log_lines_are_chosen_by_text_level_and_time(runs: Runs, browser: Browser) -> None:
    run = runs.training()
    text = (
        line(0, "step 1")
        + line(1, "careful", "WARNING")
        + "    of this\n"
        + line(2, "broken", "ERROR")
        + line(3, "end")
    )
    log(run, text)
    path = f"/runs/{browser.id('mine')}/logs"
    warnings = browser.get(path, level="WARNING")["lines"]
    assert [one["level"] for one in warnings] == ["WARNING", "WARNING", "ERROR"]
    assert [one["text"] for one in browser.get(path, search="OF THIS")["lines"]] == ["    of this"]
    assert len(browser.get(path, since=1795282802)["lines"]) == 2
    assert browser.error(path, 422, cursor="x").startswith("cursor:")
    (run / "logs" / "run.log").unlink()
    (run / "logs" / "run.log").symlink_to("/etc/passwd")
    assert "links are not followed" in browser.error(path, 403)


def test_a_log_of_long_lines_comes_in_small_pieces(runs: Runs, browser: Browser) -> None:
    run = runs.training()
    log(run, "".join(f"{number} " + "y" * 1_000_000 + "\n" for number in range(6)))
    path = f"/runs/{browser.id('mine')}/logs"
    answer = browser.get(path)
    assert [one["text"][:1] for one in answer["lines"]] == list("012345")
    assert all(one["text"].endswith("characters more]") for one in answer["lines"])


# Checkpoints.


def test_checkpoints_are_verified_and_sent_as_an_archive(runs: Runs, browser: Browser) -> None:
    run = runs.training()
    for step in (1, 2):
        save_checkpoint(
            run / "checkpoints", step, lambda path: (path / "weights").write_bytes(b"w" * 1000) and None, keep=9
        )
    (run / "adapters" / "step_2").mkdir(parents=True)
    (run / "adapters" / "step_2" / "adapter_config.json").write_text("{}")
    id = browser.id("mine")
    items = browser.get(f"/runs/{id}/checkpoints")["items"]
    assert [(one["step"], one["fault"], one["archives"]) for one in items] == [
        (1, None, ["checkpoint"]),
        (2, None, ["adapter", "checkpoint"]),
    ]
    (run / "checkpoints" / "step_1" / "weights").write_bytes(b"v" * 1000)
    first = browser.get(f"/runs/{id}/checkpoints")["items"][0]
    assert first["fault"] == "weights is damaged (its hash differs)"
    answer = browser.http.get(f"/api/v1/runs/{id}/checkpoints/2/archive")
    assert len(answer.content) == int(answer.headers["content-length"])
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert sorted(archive.getnames()) == ["mine-step_2-checkpoint/manifest.json", "mine-step_2-checkpoint/weights"]
        member = archive.extractfile("mine-step_2-checkpoint/weights")
        assert member is not None
        assert member.read() == b"w" * 1000
    assert browser.http.get(f"/api/v1/runs/{id}/checkpoints/2/archive?what=adapter").status_code == 200
    assert "whet train export" in browser.error(f"/runs/{id}/checkpoints/1/archive", 404, what="adapter")
    (run / "checkpoints" / "step_1" / "more").symlink_to("/etc")
    assert "links are not followed" in browser.error(f"/runs/{id}/checkpoints/1/archive", 403)


# Facts.


def test_evaluations_findings_progress_config_and_report(runs: Runs, browser: Browser) -> None:
    config = 'model = "whet/tiny"\nmax_steps = 9\n[[env]]\nid = "reverse-text"\nargs = {api_key = "hidden-value"}\n'
    rows = [{"step": step, "reward/mean": 0.0, "groups/zero_variance_frac": 1.0} for step in range(1, 20)]
    run = runs.training(metrics=rows, config=config, stalled=["the sampler waits"], last_note="x" * 10_000)
    score = {
        "environment": "reverse-text",
        "sampling": "greedy",
        "reward": None,
        "metrics": {},
        "rollouts": 4,
        "errors": 0,
    }
    text = json.dumps({"step": 0, "moment": "before", "version": 0, **score, "tasks": {"0": 0.5}}) + "\n{torn"
    (run / "evals.jsonl").write_text(text)
    id = browser.id("mine")
    (evaluation,) = browser.get(f"/runs/{id}/evaluations")["items"]
    assert (evaluation["moment"], evaluation["scores"][0]["tasks"]) == ("before", {"0": 0.5})
    findings = browser.get(f"/runs/{id}/findings")["items"]
    assert {"severity", "rule", "title", "evidence", "change"} <= set(findings[0])
    assert browser.get(f"/runs/{id}/progress")["waits_for"] == ["the sampler waits"]
    shown = browser.http.get(f"/api/v1/runs/{id}/config").text
    assert "hidden-value" not in shown
    assert 'id = "reverse-text"' in shown
    assert "whet train report" in browser.error(f"/runs/{id}/report", 404)
    (run / "report.html").write_text("<script>alert(1)</script>")
    page = browser.http.get(f"/api/v1/runs/{id}/report")
    assert page.headers["content-security-policy"].endswith("sandbox")


def test_comparison_of_several_runs(runs: Runs, browser: Browser) -> None:
    for name, rate in (("a", 1), ("b", 2), ("c", 2)):
        config = f'model = "whet/tiny"\nname = "{name}"\nlearning_rate = {rate}e-5\n[[env]]\nid = "reverse-text"\n'
        runs.training(name, metrics=steps(rate + 1), config=config)
    ids = [browser.id(name) for name in "abc"]
    found = browser.get("/compare", run=ids)
    assert [run["name"] for run in found["runs"]] == ["a", "b", "c"]
    assert found["config"] == {"learning_rate": [1e-5, 2e-5, 2e-5]}
    assert [curve["last_step"] for curve in found["curves"]] == [2, 3, 3]
    assert found["names"][0] == "reward/mean"
    assert found["common_steps"] == 2
    browser.error("/compare", 422, run=ids[:1])


# What no route survives badly.

ROUTES = (
    "", "/config", "/metrics", "/evaluations", "/findings", "/progress", "/logs", "/rollouts", "/rollouts/values",
    "/rollouts/0", "/rollouts/0/tokens", "/rollouts/0/raw", "/rollouts/0/group", "/groups", "/distributions",
    "/checkpoints", "/checkpoints/1/archive", "/report",
)  # fmt: skip


def garbage(run: Path) -> None:
    names = ("config.toml", "status.json", "metrics.jsonl", "evals.jsonl", "errors.jsonl", "rollouts/step_000001.jsonl")
    for name in (*names, "checkpoints/step_1/manifest.json", "logs/run.log", "report.html"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(b'\xff\x00{"step": "x"}\n{"step": 1e999, "a": {"b": []}}\n[1, 2]\nnull\n{"step":')


def wrong_values(run: Path) -> None:
    (run / "status.json").write_text('{"state": 5, "step": "x", "pid": -1, "process_began": [], "stalled": 3}')
    (run / "config.toml").write_text('model = 3\nenv = "none"\nmax_steps = "many"\nname = []\n')
    (run / "metrics.jsonl").write_text('{"step": 1, "reward/mean": "high", "a": 1e400, "b": true}\n{"step": -4}\n')
    (run / "evals.jsonl").write_text('{"step": [], "moment": {}, "tasks": 4}\n')
    (run / "rollouts" / "step_000001.jsonl").write_text('{"prompt": 3, "completion": {}, "turns": 5, "reward": "x"}\n')


def folders_for_files(run: Path) -> None:
    for name in ("status.json", "metrics.jsonl", "evals.jsonl", "logs", "rollouts/step_000001.jsonl", "report.html"):
        if (run / name).is_file():
            (run / name).unlink()
        (run / name).mkdir(parents=True, exist_ok=True)


def pipes_for_files(run: Path) -> None:
    for name in (".lock", "metrics.jsonl", "evals.jsonl", "rollouts/step_000001.jsonl"):
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)


@pytest.mark.parametrize("spoil", [garbage, wrong_values, folders_for_files, pipes_for_files])
def test_every_route_answers_whatever_the_files_are(runs: Runs, browser: Browser, spoil: Any) -> None:
    run = runs.training(steps=[[trained("1", 1.0, 0.5)]], metrics=steps(1))
    (item,) = browser.get("/runs")["items"]
    spoil(run)
    for route in ROUTES:
        answer = browser.http.get(f"/api/v1/runs/{item['id']}{route}")
        assert answer.status_code < 500, (route, answer.text)
        if answer.status_code != 200:
            assert answer.json()["error"]["message"], route


def test_every_route_of_a_run_without_files_says_so(runs: Runs, browser: Browser) -> None:
    run = runs.training()
    id = browser.id("mine")
    for path in (run / "rollouts", run / "status.json", run / "metrics.jsonl"):
        path.rmdir() if path.is_dir() else path.unlink()
    (run / "status.json").write_text("{}")
    for route in ROUTES:
        assert browser.http.get(f"/api/v1/runs/{id}{route}").status_code in (200, 404), route
