"""The list of runs, a run and a comparison in a real browser. `make test-parts` finds or fetches one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from whet.runs.lock import DirectoryLock

from .browser import allow, opened, overflow, query, violations
from .conftest import CONFIG, Runs

if TYPE_CHECKING:
    from playwright.sync_api import Page

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
    page.goto(f"{address}/runs")
    page.get_by_role("link", name=name, exact=True).click()
    page.wait_for_selector(".plot canvas")


def reward(page: Page) -> str:
    """What the chart of rewards says to a screen reader."""
    return str(page.locator("figure[data-title=Reward] .plot").get_attribute("aria-label"))


def test_curve_moves_with_the_run_and_the_page_is_not_loaded_again(
    page: Page, address: str, runs: Runs, hold: Hold
) -> None:
    run = hold(training(runs, state="running"))
    open_run(page, address)
    page.evaluate("window.same = document.querySelector('.plot canvas')")
    for _ in range(3):
        step = next_step(run)
        page.wait_for_function(
            "step => document.querySelector('figure[data-title=Reward] .plot').ariaLabel.includes(`step ${step}:`)",
            arg=step,
        )
        page.wait_for_function("step => document.querySelector('[data-step]').textContent == step", arg=str(step))
    assert page.evaluate("window.same === document.querySelector('.plot canvas')")
    assert reward(page) == "Reward, step 15: reverse-text 0.75"


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
    page.get_by_role("link", name="Reward").click()
    assert names.all_text_contents() == ["beta", "alpha", "gamma"]
    page.get_by_role("link", name="Name", exact=True).click()
    assert names.all_text_contents() == ["alpha", "beta", "gamma"]
    assert page.locator("th[aria-sort=ascending]").inner_text() == "Name"
    page.keyboard.press("/")
    page.keyboard.type("a")
    assert page.locator("[data-search]").input_value() == "a"
    page.keyboard.press("Escape")
    for key in ("j", "j", "j", "k", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("h1:has-text('beta')")
    page.keyboard.press("u")
    page.wait_for_url("**/runs")
    page.get_by_label("Search runs").fill("gam")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs?search=gam")
    assert names.all_text_contents() == ["gamma"]
    page.get_by_role("link", name="failed").click()
    page.wait_for_selector("text=No run matches")
    assert query(page) == {"search": ["gam"], "state": ["failed"]}


def test_new_run_appears_in_the_list_and_what_is_chosen_stays(page: Page, address: str, runs: Runs, hold: Hold) -> None:
    training(runs, "alpha")
    page.goto(f"{address}/runs")
    page.get_by_label("Compare alpha").check()
    hold(training(runs, "beta", state="running"))
    page.wait_for_selector("#runs a:has-text('beta')")
    assert page.get_by_label("Compare alpha").is_checked()


def test_four_runs_are_compared_and_one_more_is_refused(page: Page, address: str, runs: Runs) -> None:
    for number in range(5):
        training(runs, f"run{number}", number / 10)
    page.goto(f"{address}/runs?sort=name")
    assert page.locator("#compare").is_disabled()
    for key in ("j", "x", "j", "x", "j", "x", "j", "x", "j", "x"):
        page.keyboard.press(key)
    assert page.locator("#runs input:checked").count() == 4
    assert "At most 4" in page.locator("#toasts").inner_text()
    page.get_by_role("button", name="Compare 4 runs").click()
    page.wait_for_selector(".plot canvas")
    for number in range(4):
        assert f"run{number} {number / 10 + 0.6:.3g}" in reward(page)
    assert page.locator("table.diff th[scope=row]").all_inner_texts() == ["learning_rate"]
    page.get_by_label("Leave out run2").click()
    page.wait_for_selector("h1:has-text('Compare 3 runs')")


def test_curves_are_read_and_zoomed_with_the_keyboard_and_the_mouse(page: Page, address: str, runs: Runs) -> None:
    training(runs)
    open_run(page, address)
    page.locator("figure[data-title=Reward] .plot").focus()
    page.keyboard.press("ArrowLeft")
    assert reward(page).startswith("Reward, step 11:")
    entropy = page.locator("figure[data-title=Entropy] .plot").get_attribute("aria-label")
    assert str(entropy).startswith("Entropy, step 11:")
    page.keyboard.press("+")
    assert re.fullmatch(r"\d+-12", query(page)["steps"][0])
    page.keyboard.press("0")
    assert "steps" not in query(page)
    box = page.locator("figure[data-title=Reward] .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=5)
    page.mouse.up()
    chosen = query(page)["steps"]
    page.reload()
    page.wait_for_selector(".plot canvas")
    assert (query(page)["steps"], page.locator("#zoom-out").is_visible()) == (chosen, True)
    page.locator("#zoom-out").click()
    assert "steps" not in query(page)


def test_controls_and_chosen_metrics_are_in_the_address(page: Page, address: str, runs: Runs) -> None:
    training(runs)
    open_run(page, address)
    page.get_by_label("Log scale").check()
    page.get_by_label("Smoothing").fill("0.2")
    assert query(page) == {"log": ["1"], "smoothing": ["0.2"]}
    page.get_by_label("Draw time/step").check()
    page.wait_for_selector("figure[data-title='time/step'] canvas")
    assert query(page) == {"metric": ["time/step"], "log": ["1"], "smoothing": ["0.2"]}


def test_theme_follows_the_system_until_one_is_chosen(page: Page, address: str, runs: Runs) -> None:
    training(runs)
    open_run(page, address)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert light != dark
    page.get_by_role("button", name="Dark theme").click()
    assert page.evaluate(background) == light
    page.reload()
    assert page.evaluate(background) == light
    assert page.get_by_role("button", name="Dark theme").get_attribute("aria-pressed") == "false"


def test_help_names_the_keys_and_they_lead_to_pages(page: Page, address: str, runs: Runs) -> None:
    training(runs)
    page.goto(f"{address}/runs")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard")
    assert "next, previous in a list" in dialog.inner_text()
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
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
        assert page.get_by_role("img", name="Reward", exact=True).is_visible()
        assert page.locator("#theme").is_hidden()
        page.get_by_label("Draw time/step").check()
        page.get_by_role("button", name="Draw the chosen").click()
        assert page.get_by_role("img", name="time/step", exact=True).first.is_visible()


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
    assert page.evaluate("streams.map((one) => one.readyState)") == [2]
    step = next_step(run)
    page.evaluate(hide, False)
    page.wait_for_function("step => document.querySelector('[data-step]').textContent == step", arg=str(step))
    assert page.evaluate("streams.length") == 2
