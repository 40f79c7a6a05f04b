"""Rollouts, tokens, a group, a step and a log in a real browser. `make test-parts` finds or fetches one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from ...browser import expect, expect_query, opened, overflow, query, violations
from ...conftest import Runs, rollout, trained

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.parts
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.fixture
def here(runs: Runs, address: str) -> str:
    """The address of a run with two steps of two groups."""
    long = " ".join(f"word{number}" for number in range(300))
    steps = [
        [trained("0", 0.25, -1.0, "the sum is seven"), trained("0", 0.75, 1.0, "the sum is nine")],
        [trained("1", 0.5, -0.5, long), trained("1", 1.0, 0.5, "the sum is ten", is_truncated=True)],
    ]
    metrics = [{"step": step, "reward/mean": 0.5, "optim/lr": 0.001} for step in (1, 2)]
    logs = runs.training("mine", steps=steps, metrics=metrics, state="unknown") / "logs"
    logs.mkdir()
    (logs / "run.log").write_text("2026-11-23T10:00:00+0000 INFO step 1\n")
    from whet.dashboard.folders import identity

    return f"{address}/runs/{identity(logs.parent.absolute())}"


def expect_rewards(page: Page, *rewards: str) -> None:
    """Wait until these rewards are listed."""
    expect(page.locator("table.rollouts tbody td:nth-child(4)")).to_have_text(list(rewards))


def test_filter_and_sort_change_the_list_and_the_url(page: Page, here: str) -> None:
    page.goto(f"{here}/rollouts")
    expect_rewards(page, "1.000", "0.500", "0.750", "0.250")  # the newest first
    with page.expect_navigation():
        page.get_by_role("link", name="reward").click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("reward")
    expect_rewards(page, "1.000", "0.750", "0.500", "0.250")
    with page.expect_navigation():
        page.get_by_label("Part").select_option(label="step 1 (2)")
    expect_rewards(page, "0.750", "0.250")
    assert query(page) == {"part": ["step_000001"], "sort": ["reward"], "descending": ["true"]}
    page.get_by_label("Search").fill("NINE")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    expect_rewards(page, "0.750")
    page.go_back()
    expect_rewards(page, "0.750", "0.250")


def test_keyboard_walks_the_list_and_from_rollout_to_rollout(page: Page, here: str) -> None:
    page.goto(f"{here}/rollouts?sort=reward&descending=true")
    page.keyboard.press("j")
    page.keyboard.press("j")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Rollout 2")).to_be_visible()
    with page.expect_navigation():
        page.keyboard.press("j")
    expect(page.get_by_role("heading", name="Rollout 3")).to_be_visible()
    with page.expect_navigation():
        page.keyboard.press("k")
    with page.expect_navigation():
        page.keyboard.press("s")
    expect(page.get_by_role("heading", name="Group of 2")).to_be_visible()
    page.go_back()
    with page.expect_navigation():
        page.keyboard.press("u")
    expect(page.locator("table.rollouts tbody td:nth-child(4)").first).to_have_text("1.000")


def test_tokens_follow_pointer_and_arrow_keys(page: Page, here: str) -> None:
    page.goto(f"{here}/rollouts/0")
    facts = page.locator("#token-facts")
    page.locator("#t3").hover()
    expect(facts).to_contain_text("logprob -3.5000")
    page.locator("#t2").click()
    expect_query(page, token="2")
    page.keyboard.press("ArrowRight")
    expect_query(page, token="3")
    expect(page.locator("#t3")).to_be_focused()
    page.keyboard.press("Home")
    expect_query(page, token="0")
    page.keyboard.press("n")
    expect_query(page, token="3")
    page.get_by_role("link", name="advantage", exact=True).click()
    expect(page.locator("#token-list")).to_have_class(re.compile("by-advantage"))
    page.mouse.move(0, 0)  # facts are those of the token under the pointer
    page.reload()
    expect(facts).to_contain_text("token 4 of 5")
    shade = page.locator("#t3").evaluate("token => getComputedStyle(token).backgroundColor")
    assert shade not in ("rgba(0, 0, 0, 0)", "transparent")


def test_a_group_scrolls_inside_of_its_own_box_on_a_phone(chromium: Any, here: str) -> None:
    with opened(chromium, **PHONE) as page:
        page.goto(f"{here}/groups/2")
        assert overflow(page) == 0
        sides = page.locator(".sides")
        assert sides.evaluate("box => box.scrollWidth > box.clientWidth")
        expect(page.locator(".side")).to_have_count(2)
        expect(page.locator(".side mark").first).to_be_attached()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_have_names_for_screen_readers_and_enough_contrast(
    chromium: Any, runs: Runs, here: str, scheme: str
) -> None:
    failed = {"error": {"error": "ModelError", "error_chain_repr": "ModelError('no') -> TimeoutError()"}}
    runs.evaluation([rollout(0, 1.0), rollout(1, 0.0), rollout(2, None, **failed)], num_examples=3)
    with opened(chromium, color_scheme=scheme) as page:
        for path in ("/rollouts", "/rollouts/0?token=3", "/groups/0", "/steps/1", "/logs", "/config", "/checkpoints"):
            page.goto(here + path)
            assert violations(page) == [], path
        root = here.partition("/runs/")[0]
        page.goto(f"{root}/evaluations")
        assert violations(page) == []
        page.locator("[data-item] a").first.click()
        page.wait_for_selector(".report")
        assert violations(page) == []
        page.get_by_role("link", name="failed", exact=True).click()
        page.wait_for_selector("table.rollouts")
        page.locator("[data-item] a").first.click()
        page.wait_for_selector(".callout.error")
        assert violations(page) == []


def test_narrow_screens_scroll_tables_and_not_the_page(chromium: Any, here: str) -> None:
    with opened(chromium, **PHONE) as page:
        for path in ("/rollouts", "/rollouts/0", "/steps/1", "/logs", "/config", "/checkpoints"):
            page.goto(here + path)
            assert overflow(page) == 0, path


def test_a_log_is_followed_while_it_is_written(page: Page, here: str, runs: Runs) -> None:
    page.goto(f"{here}/logs")
    log = runs.folder / "runs" / "mine" / "logs" / "run.log"
    with log.open("a") as file:
        file.write("2026-11-23T10:00:01+0000 ERROR <b>later</b>\n")
    line = page.locator(".entry.level-error")
    expect(line).to_have_text(re.compile("<b>later</b>$"))


def test_pages_work_without_scripts(chromium: Any, here: str) -> None:
    with opened(chromium, java_script_enabled=False) as page:
        page.goto(f"{here}/rollouts")
        page.get_by_label("Part").select_option(label="step 1 (2)")
        page.get_by_role("button", name="Apply").click()
        expect_rewards(page, "0.750", "0.250")
        page.locator("[data-item] a").first.click()
        page.locator("#t3").click()
        expect(page.locator("#token-facts")).to_contain_text("token 4 of 5")
