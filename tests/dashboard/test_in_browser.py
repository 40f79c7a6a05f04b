"""The list of runs, a run and a comparison in a real browser. `make test-parts` finds or fetches one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from whet.records.lock import DirectoryLock

from .browser import allow, expect, expect_query, opened, overflow, query, violations
from .conftest import CONFIG, Runs, rollout, trained

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.parts
PAST_STEPS = 12
Hold = Callable[[Path], Path]


def row(step: int, level: float = 0.0) -> dict[str, Any]:
    reward = min(1.0, level + step / 20)
    names = {"reward/mean": reward, "reward/reverse-text/mean": reward, "reward/reverse-text/similarity": reward / 2}
    return {"step": step, **names, "policy/entropy": 1 / step, "time/step": 0.5}


def training(runs: Runs, name: str = "mine", level: float = 0.0, **status: Any) -> Path:
    metrics = [row(step, level) for step in range(1, PAST_STEPS + 1)]
    config = f'name = "{name}"\nlearning_rate = {level + 0.01}\n' + CONFIG.format(max_steps=40)
    return runs.training(name, metrics=metrics, config=config, **status)


@pytest.fixture
def hold() -> Iterator[Callable[[Path], Path]]:
    """Makes a run one that is running: this process has its lock."""
    locks = []

    def take(run: Path) -> Path:
        locks.append(DirectoryLock(run))
        return run

    yield take
    for lock in locks:
        lock.release()


def next_step(run: Path) -> int:
    """Append a row as a run does."""
    with (run / "metrics.jsonl").open("a") as file:
        step = 1 + len((run / "metrics.jsonl").read_text().splitlines())
        file.write(json.dumps(row(step)) + "\n")
    return step


def open_run(page: Page, address: str, name: str = "mine") -> None:
    """Open a run from the list, and wait for its curves in the typeface of the page, which draws them again."""
    page.goto(f"{address}/runs")
    with page.expect_navigation():
        page.get_by_role("link", name=name, exact=True).click()
    page.mouse.move(0, 0)  # curves say what is under the pointer
    page.wait_for_selector(".plot canvas")
    page.evaluate("document.fonts.ready.then(() => true)")


def chart(page: Page, title: str) -> Locator:
    return page.locator(f"figure[data-title='{title}'] .plot")


def expect_reward(page: Page, words: str) -> None:
    """Wait until the chart of rewards says this to a screen reader."""
    expect(chart(page, "Reward")).to_have_attribute("aria-label", re.compile(re.escape(words)))


def test_curve_moves_with_the_run_and_the_page_is_not_loaded_again(
    page: Page, address: str, runs: Runs, hold: Hold
) -> None:
    run = hold(training(runs, state="running"))
    open_run(page, address)
    page.evaluate("window.same = document.querySelector('.plot canvas')")
    for _ in range(3):
        step = next_step(run)
        expect_reward(page, f"Reward, step {step}: reverse-text")
        expect(page.locator("[data-step]").first).to_have_text(str(step))
    expect_reward(page, "Reward, step 15: reverse-text 0.75")
    assert page.evaluate("window.same === document.querySelector('.plot canvas')")


def test_first_step_of_a_run_brings_its_curves(page: Page, address: str, runs: Runs, hold: Hold) -> None:
    run = hold(runs.training("mine", config='name = "mine"\n' + CONFIG.format(max_steps=40), state="running"))
    page.goto(f"{address}/runs")
    page.get_by_role("link", name="mine", exact=True).click()
    page.wait_for_selector("#waiting")
    next_step(run)
    page.wait_for_selector(".plot canvas")


def test_list_is_filtered_sorted_and_walked_with_the_keyboard(page: Page, address: str, runs: Runs) -> None:
    for name, level in (("alpha", 0.1), ("beta", 0.3), ("gamma", 0.0)):
        training(runs, name, level)
    page.goto(f"{address}/runs")
    names = page.locator("#runs .name")
    with page.expect_navigation():
        page.get_by_role("link", name="Reward").click()
    expect(names).to_have_text(["beta", "alpha", "gamma"])
    with page.expect_navigation():
        page.get_by_role("link", name="Name", exact=True).click()
    expect(names).to_have_text(["alpha", "beta", "gamma"])
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Name")
    page.keyboard.press("/")
    page.keyboard.type("a")
    expect(page.locator("[data-search]")).to_have_value("a")
    page.keyboard.press("Escape")
    with page.expect_navigation():
        for key in ("j", "j", "j", "k", "Enter"):
            page.keyboard.press(key)
    expect(page.locator("h1")).to_contain_text("beta")
    with page.expect_navigation():
        page.keyboard.press("u")
    page.get_by_label("Search runs").fill("gam")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    expect(names).to_have_text(["gamma"])
    with page.expect_navigation():
        page.get_by_role("link", name="failed").click()
    expect(page.get_by_text("No run matches")).to_be_visible()
    assert query(page) == {"search": ["gam"], "state": ["failed"]}


def test_new_run_appears_in_the_list_and_what_is_chosen_stays(page: Page, address: str, runs: Runs, hold: Hold) -> None:
    training(runs, "alpha")
    page.goto(f"{address}/runs")
    page.get_by_label("Compare alpha").check()
    hold(training(runs, "beta", state="running"))
    page.wait_for_selector("#runs a:has-text('beta')")
    expect(page.get_by_label("Compare alpha")).to_be_checked()


def test_four_runs_are_compared_and_one_more_is_refused(page: Page, address: str, runs: Runs) -> None:
    for number in range(5):
        training(runs, f"run{number}", number / 10)
    page.goto(f"{address}/runs?sort=name")
    expect(page.locator("#compare")).to_be_disabled()
    page.evaluate(  # a message goes after a few seconds, however slow the test is
        "window.said = []; new MutationObserver((all) => all.forEach((one) => one.addedNodes.forEach("
        "(box) => said.push(box.textContent)))).observe(document.getElementById('toasts'), {childList: true})"
    )
    for key in ("j", "x", "j", "x", "j", "x", "j", "x", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("#runs input:checked")).to_have_count(4)
    page.wait_for_function("said.some((text) => text.includes('At most 4'))")
    page.get_by_role("button", name="Compare 4 runs").click()
    for number in range(4):
        expect_reward(page, f"run{number} {number / 10 + 0.6:.3g}")
    expect(page.locator("table.diff th[scope=row]")).to_have_text(["learning_rate"])
    page.get_by_label("Leave out run2").click()
    expect(page.locator("h1")).to_contain_text("Compare 3 runs")


def test_curves_are_read_and_zoomed_with_the_keyboard_and_the_mouse(page: Page, address: str, runs: Runs) -> None:
    training(runs)
    open_run(page, address)
    chart(page, "Reward").focus()
    page.keyboard.press("ArrowLeft")
    expect_reward(page, "Reward, step 11:")
    expect(chart(page, "Entropy")).to_have_attribute("aria-label", re.compile("^Entropy, step 11:"))
    page.keyboard.press("+")
    expect_query(page, steps="8-12")
    page.keyboard.press("0")
    expect_query(page, steps=None)
    box = page.locator("figure[data-title=Reward] .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=5)
    page.mouse.up()
    page.wait_for_function("new URLSearchParams(location.search).has('steps')")
    chosen = query(page)["steps"]
    page.reload()
    page.wait_for_selector(".plot canvas")
    expect(page.locator("#zoom-out")).to_be_visible()
    assert query(page)["steps"] == chosen
    page.locator("#zoom-out").click()
    expect_query(page, steps=None)


def test_step_that_was_chosen_with_the_keyboard_stays_when_the_run_goes_on(
    page: Page, address: str, runs: Runs, hold: Hold
) -> None:
    run = hold(training(runs, state="running"))
    open_run(page, address)
    chart(page, "Reward").focus()
    page.keyboard.press("ArrowLeft")
    expect_reward(page, "Reward, step 11:")
    step = next_step(run)
    expect(page.locator("[data-step]").first).to_have_text(str(step))
    expect_reward(page, "Reward, step 11:")
    page.keyboard.press("ArrowLeft")
    expect_reward(page, "Reward, step 10:")
    page.keyboard.press("Escape")
    expect_reward(page, f"Reward, step {step}:")


def test_controls_and_chosen_metrics_are_in_the_address(page: Page, address: str, runs: Runs) -> None:
    training(runs)
    open_run(page, address)
    page.get_by_label("Log scale").check()
    page.get_by_label("Smoothing").fill("0.2")
    expect_query(page, log="1", smoothing="0.2")
    page.get_by_label("Draw time/step").check()
    page.wait_for_selector("figure[data-title='time/step'] canvas")
    assert query(page) == {"metric": ["time/step"], "log": ["1"], "smoothing": ["0.2"]}


def test_theme_follows_the_system_until_one_is_chosen(page: Page, address: str, runs: Runs) -> None:
    training(runs)
    open_run(page, address)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"light => {background} !== light", arg=light)
    page.get_by_role("button", name="Dark theme").click()
    page.wait_for_function(f"light => {background} === light", arg=light)
    page.reload()
    page.wait_for_function(f"light => {background} === light", arg=light)
    expect(page.get_by_role("button", name="Dark theme")).to_have_attribute("aria-pressed", "false")


def test_help_names_the_keys_and_they_lead_to_pages(page: Page, address: str, runs: Runs) -> None:
    training(runs)
    page.goto(f"{address}/runs")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    expect(dialog).to_contain_text("next, previous in a list")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.clock.set_fixed_time("2026-11-21T17:00:00Z")  # the second key belongs to the first, however slow the test is
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.wait_for_url("**/compare")


def pages_of(page: Page, address: str, runs: Runs) -> Iterator[str]:
    """Every page of this test file, over runs of several states."""
    training(runs, "one")
    training(runs, "two", 0.2, state="failed", last_error="out of memory")
    runs.training("none", config='name = "none"\n' + CONFIG.format(max_steps=3), state="failed")
    page.goto(f"{address}/runs")
    ids = [str(one.get_attribute("value")) for one in page.locator("input[name=run]").all()]
    compared = "&".join(f"run={id}" for id in ids)
    runs_of = [f"/runs/{id}" for id in ids]
    for path in ("/runs", "/runs?search=nothing", *runs_of, "/compare", f"/compare?{compared}"):
        yield address + path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screen_readers_find_names_roles_and_contrast(chromium: Any, address: str, runs: Runs, scheme: str) -> None:
    with opened(chromium, color_scheme=scheme, reduced_motion="reduce") as page:
        for url in pages_of(page, address, runs):
            page.goto(url)
            page.wait_for_load_state("load")
            assert violations(page) == [], url


def test_phone_never_scrolls_sideways(chromium: Any, address: str, runs: Runs) -> None:
    with opened(chromium, viewport={"width": 360, "height": 740}) as page:
        for url in pages_of(page, address, runs):
            page.goto(url)
            assert overflow(page) == 0, url


def test_pages_without_runs_fit_a_phone_and_have_names(chromium: Any, address: str) -> None:
    with opened(chromium, viewport={"width": 360, "height": 740}) as page:
        for path in ("/runs", "/compare", "/none"):
            page.goto(address + path)
            assert (overflow(page), violations(page)) == (0, []), path
        allow(page, "404")


def test_pages_read_without_scripts(chromium: Any, address: str, runs: Runs) -> None:
    training(runs)
    with opened(chromium, java_script_enabled=False) as page:
        page.goto(f"{address}/runs")
        page.get_by_role("link", name="mine", exact=True).click()
        expect(page.get_by_role("img", name="Reward", exact=True)).to_be_visible()
        expect(page.locator("#theme")).to_be_hidden()
        page.get_by_label("Draw time/step").check()
        page.get_by_role("button", name="Draw the chosen").click()
        expect(page.get_by_role("img", name="time/step", exact=True).first).to_be_visible()


def test_hidden_tab_asks_for_nothing_and_catches_up(page: Page, address: str, runs: Runs, hold: Hold) -> None:
    run = hold(training(runs, state="running"))
    page.add_init_script(
        "window.streams = []; window.EventSource = class extends EventSource {"
        " constructor(url) { super(url); streams.push(this); } };"
    )
    open_run(page, address)
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
    hide += " document.dispatchEvent(new Event('visibilitychange')); }"
    page.wait_for_function("streams.length === 1")
    page.evaluate(hide, True)
    page.wait_for_function("streams[0].readyState === EventSource.CLOSED")
    step = next_step(run)
    page.evaluate(hide, False)
    expect(page.locator("[data-step]").first).to_have_text(str(step))
    page.wait_for_function("streams.length === 2 && streams[1].readyState === EventSource.OPEN")


def test_phone_shows_long_reasons_and_names_in_whole_words_and_folds_filters(
    chromium: Any, address: str, runs: Runs
) -> None:
    reason = "the server does not answer: connection refused after 6 tries. Start it, or set base_url to one that runs"
    runs.training("sort-words-with-a-long-name-and-no-space-lr-0.0003", state="failed", last_error=reason)
    for width in (1280, 390):
        with opened(chromium, viewport={"width": width, "height": 844}) as page:
            page.goto(f"{address}/runs")
            assert page.locator("#runs a.name").bounding_box()["width"] > 100
            expect(page.get_by_text("connection refused")).to_be_visible()
            assert overflow(page) == 0
            expect(page.get_by_label("Kind")).to_be_visible(visible=width > 760)
            if width < 760:
                page.get_by_text("Filters").click()
                expect(page.get_by_label("Kind")).to_be_visible()


def test_long_words_and_failures_leave_every_column_in_sight(chromium: Any, address: str, runs: Runs) -> None:
    word = "w" * 190
    names = {f"reward/{word}/mean": 0.5, f"{word}/{word}": -1e300}
    metrics = [{"step": step, "reward/mean": 0.5, **names} for step in (1, 2)]
    config = CONFIG.format(max_steps=3).replace("reverse-text", word)
    rows = [{**trained(group, 0.5, 0.0, word), "answer": word, "environment": word} for group in "01"]
    rows += [{**trained("2", 0.5, 0.0), "environment": "other"}]
    runs.training(word, steps=[rows], metrics=metrics, config=config, state="failed", last_error=word)
    runs.evaluation([rollout(0, 1.0), rollout(1, None)], "half", avg_error=0.5)
    runs.evaluation([rollout(0, None)], "none", avg_error=1.0, avg_reward=None, model=word)
    overlaps = """() => { const boxes = [...document.querySelectorAll("tbody td, .badge")]
      .map((one) => [one, one.getBoundingClientRect()]).filter(([, box]) => box.width > 0 && box.height > 0);
      return boxes.flatMap(([one, a]) => boxes.filter(([other, b]) => one !== other && !one.contains(other)
        && !other.contains(one) && a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1
        && b.top < a.bottom - 1).map(([other]) => [one.textContent, other.textContent])); }"""
    for width in (1280, 390):
        with opened(chromium, viewport={"width": width, "height": 844}) as page:
            page.goto(f"{address}/runs")
            run = page.locator("#runs a.name", has_text=word).last.get_attribute("href")
            for path in ("/runs", "/evaluations", "/compare", str(run), f"{run}/steps/2", f"{run}/rollouts"):
                page.goto(address + path)
                assert overflow(page) == 0, path
                tables = page.locator(".table-wrap").evaluate_all(
                    "all => all.map((one) => one.scrollWidth - one.clientWidth)"
                )
                assert max([0, *tables]) == 0, path
                assert page.evaluate(overlaps) == [], path


def test_constant_is_a_straight_line_on_an_axis_around_it(page: Page, address: str, runs: Runs) -> None:
    runs.training("mine", metrics=[{"step": step, "reward/mean": 0.5, "policy/entropy": 0.1} for step in range(1, 30)])
    open_run(page, address)
    low, high = page.evaluate(
        "async () => { const { Board } = await import(document.body.dataset.root + '/static/charts.js');"
        " const board = new Board([document.querySelector(\"figure[data-title='Entropy']\")], { smoothing: 0.6 });"
        " const steps = Array.from({ length: 29 }, (_, at) => at + 1);"
        " board.set(steps, { 'policy/entropy': steps.map(() => 0.1) });"
        " await new Promise(requestAnimationFrame);"
        " const { min, max } = board.charts[0].plot.scales.y; return [min, max]; }"
    )
    assert low < 0.095
    assert high > 0.105


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_reports_open_from_a_file_with_curves_and_tables_that_sort(chromium: Any, runs: Runs, scheme: str) -> None:
    from whet.evals.report import write_report as of_evaluation
    from whet.rl.report import write_report as of_training

    long = "a-word-without-an-end" * 30
    run = training(runs)
    evaluation = runs.evaluation([rollout(task, task / 9, f"What is {task}? {long}") for task in range(10)])
    for width in (1280, 390):
        with opened(chromium, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
            page.goto(of_training(run).as_uri())
            expect(page.locator(".plot canvas").first).to_be_visible()
            page.locator("#smoothing").fill("0")
            page.locator("#log-scale").check()
            page.locator(".plot").first.press("ArrowLeft")
            expect(page.locator("figure.wide .at")).to_have_text(f"step {PAST_STEPS - 1}")
            assert (overflow(page), violations(page)) == (0, [])
            page.goto(of_evaluation(evaluation).as_uri())
            page.get_by_role("button", name="highest").click()
            page.get_by_role("button", name="highest").click()
            expect(page.locator("table.sortable tbody td").first).to_have_text("9")
            assert (overflow(page), violations(page)) == (0, [])
