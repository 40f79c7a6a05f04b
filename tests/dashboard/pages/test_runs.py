"""The list of runs: what its URL chooses, and what it says where there is nothing."""

from __future__ import annotations

import re

from ..conftest import CONFIG, Browser, Runs


def names(page: str) -> list[str]:
    return re.findall(r'class="name"[^>]*>([^<]+)</a>', page)


def training(runs: Runs, name: str, reward: float, state: str = "finished", steps: int = 1) -> None:
    metrics = [{"step": step + 1, "reward/mean": reward} for step in range(steps)]
    runs.training(name, metrics=metrics, config=f'name = "{name}"\n' + CONFIG.format(max_steps=9), state=state)


def test_url_filters_and_sorts(runs: Runs, browser: Browser) -> None:
    training(runs, "alpha", 0.5)
    training(runs, "beta", 0.9, state="failed", steps=2)
    training(runs, "gamma", 0.1)

    def shown(query: str) -> list[str]:
        return names(browser.http.get(f"/runs?{query}").text)

    assert set(shown("")) == {"alpha", "beta", "gamma"}
    assert shown("search=ALPH") == ["alpha"]
    assert shown("state=failed") == ["beta"]
    assert shown("kind=evaluation") == []
    assert shown("sort=reward&descending=true") == ["beta", "alpha", "gamma"]
    assert shown("sort=name") == ["alpha", "beta", "gamma"]
    assert shown("sort=step&descending=true")[0] == "beta"


def test_links_of_heads_and_states_keep_the_filter(runs: Runs, browser: Browser) -> None:
    training(runs, "alpha", 0.5)
    page = browser.http.get("/runs?search=alpha&sort=reward").text
    assert 'aria-sort="ascending"><a href="?search=alpha&amp;sort=reward&amp;descending=true">' in page
    assert 'href="?state=failed&amp;search=alpha&amp;sort=reward"' in page


def test_nothing_at_all_says_what_to_type_and_no_match_offers_all(runs: Runs, browser: Browser) -> None:
    assert "whet train run" in browser.http.get("/runs").text
    page = browser.http.get("/runs?search=none").text
    assert "No run matches" in page
    assert '<a class="button" href="?">' in page
