"""The library of plain directories."""

from __future__ import annotations

import shutil
from typing import Any

from whet.records.lock import DirectoryLock

from .conftest import Browser, Runs, rollout


def item(browser: Browser, name: str) -> dict[str, Any]:
    return browser.get(f"/runs/{browser.id(name)}")


def test_each_kind_of_run_is_listed_the_newest_first(runs: Runs, browser: Browser) -> None:
    runs.training("rl", metrics=[{"step": 1, "reward/mean": 0.25}])
    imitated = runs.training("copy", config='model = "whet/tiny"\n[data]\npath = "a"\n', ended="2026-11-22T17:00:00")
    (imitated / "rollouts").rmdir()
    runs.evaluation([rollout(0, 1.0)])
    items = browser.get("/runs")["items"]
    assert [(run["name"], run["kind"]) for run in items] == [("copy", "sft"), ("rl", "training"), ("one", "evaluation")]
    assert [run["name"] for run in browser.get("/runs", kind="sft")["items"]] == ["copy"]
    assert [run["name"] for run in browser.get("/runs", search="ARITHM")["items"]] == ["one"]
    first = browser.get("/runs", limit=2)
    assert [run["name"] for run in browser.get("/runs", limit=2, cursor=first["next"])["items"]] == ["one"]
    assert item(browser, "rl")["reward"] == 0.25


def test_state_of_a_run_whose_process_is_gone_is_failed(runs: Runs, browser: Browser) -> None:
    run = runs.training(state="running")
    lock = DirectoryLock(run)
    assert item(browser, "mine")["state"] == "running"
    lock.release()
    assert item(browser, "mine")["state"] == "failed"
    assert "its process ended without a result" in item(browser, "mine")["reason"]


def test_run_that_is_removed_is_not_found(runs: Runs, browser: Browser) -> None:
    run = runs.training()
    id = browser.id("mine")
    shutil.rmtree(run)
    assert "there is no run of this name" in browser.error(f"/runs/{id}", 404)
    assert browser.get("/runs")["items"] == []


def test_unreadable_config_and_status_are_said(runs: Runs, browser: Browser) -> None:
    runs.training("config", config="model = [")
    damaged = runs.training("status")
    (damaged / "status.json").write_text("{")
    assert item(browser, "config")["state"] == "unknown"
    assert "not TOML" in item(browser, "config")["reason"]
    assert "not JSON" in item(browser, "status")["reason"]


def test_links_are_not_followed(runs: Runs, browser: Browser) -> None:
    elsewhere = Runs(runs.folder / "private").training("secret")
    (runs.folder / "runs" / "linked").symlink_to(elsewhere)
    run = runs.training("mine")
    (run / "config.toml").unlink()
    (run / "config.toml").symlink_to(elsewhere / "config.toml")
    assert [run["name"] for run in browser.get("/runs")["items"]] == ["mine"]
    assert "links are not followed" in item(browser, "mine")["reason"]


def test_hostile_names_give_ids_that_fit_into_a_url(runs: Runs, browser: Browser) -> None:
    for name in ('<script>alert("1")</script>', "a b?c#d%2f", "-.visible", "ünï", "x" * 200):
        runs.training(name.replace("/", "_"))
    items = browser.get("/runs")["items"]
    assert len(items) == len({run["id"] for run in items}) == 5
    for run in items:
        assert browser.get(f"/runs/{run['id']}") == run
