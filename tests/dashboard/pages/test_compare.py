"""Two to four runs over one another, as the server sends it."""

from __future__ import annotations

from ..conftest import CONFIG, Browser, Runs


def several(runs: Runs, browser: Browser, count: int) -> list[str]:
    for number in range(count):
        rows = [
            {"step": step, "reward/mean": step / 10, "reward/reverse-text/mean": 0.5} for step in range(1, 3 + number)
        ]
        config = CONFIG.format(max_steps=3) + f"[optimizer]\nwarmup_steps = {number}\n"
        runs.training(f"run{number}", metrics=rows, config=f'name = "run{number}"\n' + config)
    return [browser.id(f"run{number}") for number in range(count)]


def test_curves_of_all_and_what_differs(runs: Runs, browser: Browser) -> None:
    ids = several(runs, browser, 4)
    text = browser.http.get("/compare?" + "&".join(f"run={id}" for id in ids)).text
    assert text.count('<path d="M') >= 4
    assert "All of them have the first 2 steps." in text
    assert '<th scope="row" class="mono">optimizer.warmup_steps</th>' in text
    assert "batch_size" not in text
    assert text.count("Leave out run") == 4


def test_without_runs_the_page_says_how_to_make_some(browser: Browser) -> None:
    assert "There is nothing to compare yet" in browser.http.get("/compare").text


def test_fewer_than_two_offer_a_choice_and_more_than_four_are_refused(runs: Runs, browser: Browser) -> None:
    ids = several(runs, browser, 5)
    text = browser.http.get(f"/compare?run={ids[3]}").text
    assert f'value="{ids[3]}" aria-label="Compare run3" checked' in text
    assert text.count('name="run"') == 5
    answer = browser.http.get("/compare?" + "&".join(f"run={id}" for id in ids))
    assert (answer.status_code, "at most 4 runs" in answer.text) == (422, True)
    assert browser.http.get(f"/compare?run={ids[0]}&run=none-12345678").status_code == 404
