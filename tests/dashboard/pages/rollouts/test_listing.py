"""The list of rollouts: everything it shows is in its URL."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from whet.dashboard.pages.rollouts.listing import differing

from ...conftest import Browser, Runs, rollout, trained

ReadPage = Callable[[str], Any]


@pytest.fixture
def three(runs: Runs, browser: Browser) -> str:
    """A run of two steps; the path of its list."""
    steps = [
        [trained("0", 0.25, -1.0, "seven"), trained("0", 0.75, 1.0, "nine")],
        [trained("1", 0.5, 0.0, "ten", is_truncated=True, stop_condition="max_tokens")],
    ]
    runs.training("mine", steps=steps, metrics=[{"step": 1}, {"step": 2}])
    return f"/runs/{browser.id('mine')}/rollouts"


def page(browser: Browser, path: str, status: int = 200, **query: Any) -> str:
    answer = browser.http.get(path, params=query or None)
    assert answer.status_code == status, answer.text
    return answer.text


def rewards(html: str) -> list[str]:
    return re.findall(r">\s*(\d\.\d{3})</td>", html)


def links(html: str) -> list[str]:
    """Addresses of the rollouts listed, in order."""
    return [
        unescape(link)
        for link in re.findall(r'<td class="num" data-label="#"><a data-open href="([^"]*/rollouts/[^"]*)"', html)
    ]


def test_filter_and_sort_are_those_of_the_url(browser: Browser, three: str) -> None:
    assert rewards(page(browser, three)) == ["0.500", "0.750", "0.250"]  # the newest first
    assert rewards(page(browser, three, sort="file")) == ["0.250", "0.750", "0.500"]
    assert rewards(page(browser, three, sort="reward", descending="true")) == ["0.750", "0.500", "0.250"]
    assert rewards(page(browser, three, part="step_000001", sort="reward")) == ["0.250", "0.750"]
    assert rewards(page(browser, three, reward_from="0.5", reward_to="0.6")) == ["0.500"]
    assert rewards(page(browser, three, truncated="true", failed="false")) == ["0.500"]
    assert rewards(page(browser, three, search="NINE")) == ["0.750"]


def test_empty_fields_of_a_form_filter_nothing(browser: Browser, three: str) -> None:
    html = page(browser, three, search="", environment="", failed="", reward_from="", part="", sort="", descending="")
    assert len(rewards(html)) == 3


def test_a_rollout_of_a_narrowed_list_knows_its_neighbours(browser: Browser, three: str) -> None:
    first, second = links(page(browser, three, part="step_000001", sort="reward", descending="true"))
    html = page(browser, first)
    following = re.search(r'rel="next" href="([^"]*)"', html)
    assert following is not None
    assert unescape(following[1]) == second
    assert 'rel="prev"' not in html
    assert 'rel="next"' not in page(browser, second)


def test_neighbours_of_a_rollout_that_was_searched_for_are_matches(runs: Runs, browser: Browser) -> None:
    runs.evaluation([rollout(at, 1.0, "yes" if at % 2 else "no") for at in range(6)])
    here = f"/runs/{browser.id('one')}/rollouts"
    first, second, third = links(page(browser, here, search="yes"))
    html = page(browser, second)
    assert [unescape(link) for link in re.findall(r'rel="(?:prev|next)" href="([^"]*)"', html)] == [first, third]


def test_pages_follow_each_other_by_a_cursor(runs: Runs, browser: Browser) -> None:
    runs.evaluation([rollout(at, at / 200) for at in range(150)])
    html = page(browser, f"/runs/{browser.id('one')}/rollouts", sort="reward")
    following = re.search(r'rel="next" href="([^"]*)"', html)
    assert following is not None
    more = page(browser, unescape(following[1]))
    assert rewards(html) + rewards(more) == [f"{at / 200:.3f}" for at in range(150)]
    assert "First page" in more
    assert 'rel="next"' not in more


@pytest.mark.parametrize("query", [{"reward_from": "much"}, {"sort": "colour"}, {"failed": "maybe"}, {"group": "x"}])
def test_wrong_values_are_named(browser: Browser, three: str, query: dict[str, str]) -> None:
    assert f"{next(iter(query))}: " in page(browser, three, status=422, **query)


def test_an_empty_list_says_what_to_do(runs: Runs, browser: Browser) -> None:
    runs.training("new", config='model = "whet/tiny"\nmax_steps = 3\n')
    runs.evaluation([rollout(0, 1.0)])
    assert "No rollout fits" in page(browser, f"/runs/{browser.id('one')}/rollouts", reward_from="7")
    assert "as soon as its first step is done" in page(browser, f"/runs/{browser.id('new')}/rollouts")


def test_hostile_text_is_text(runs: Runs, browser: Browser, hostile: tuple[str, str], read_page: ReadPage) -> None:
    said, shown = hostile
    question = [{"role": "user", "content": said}]
    runs.evaluation([rollout(0, 1.0, said, prompt=question, stop_condition=said, metrics={said: 1.0}, info=said)])
    run = f"/runs/{browser.id('one')}"
    for path in ("/rollouts", f"/rollouts?stop_condition={said[:30]}", "/rollouts/0", "/groups/0", "/report"):
        found = read_page(page(browser, run + path))
        assert shown.partition("\ufffd")[0] in found.text or path.startswith("/rollouts?")
        assert not [tag for tag, _ in found.tags if tag == "img"]
        assert not any(script.strip() for script in found.scripts)
        assert not [
            name for _, attributes in found.tags for name in attributes if name.startswith("on") or name == "style"
        ]


def test_questions_show_what_differs_beside_the_answer_and_what_was_expected(runs: Runs, browser: Browser) -> None:
    asked = (
        "You are careful. Answer with one number and nothing else. " * 20
        + "What is {} + 1? Think before you answer it."
    )
    rows = [
        rollout(n, 1.0, f"It is\n{n + 1}", prompt=[{"role": "user", "content": asked.format(n)}]) | {"answer": n + 1}
        for n in (3, 41)
    ]
    runs.evaluation([*rows, rollout(5, 0.5, "no", prompt="short", env_name="x", environment="other")], "two")
    html = page(browser, f"/runs/{browser.id('two')}/rollouts")
    words = [unescape(text) for text in re.findall(r'<td class="words[^>]*>([^<]*)</td>', html)]
    assert words[3:] == ["... 41 ...", "It is 42", "42", "... 3 ...", "It is 4", "4"]
    assert words[:3] == ["short", "no", ""]


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["a b c d e 1", "a b c d e 2"], ["... 1", "... 2"]),
        (["a b c d e", "a b c d e"], ["a b c d e", "a b c d e"]),
        (["a b 1", "a b 2"], ["a b 1", "a b 2"]),
        (["a b c d", "a b c d a b c d"], ["... ", "... a b c d"]),
        (["1 a b c d", "2 a b c d"], ["1 ...", "2 ..."]),
        ([""], [""]),
        ([], []),
    ],
)
def test_words_that_all_texts_share_are_left_out(texts: list[str], shown: list[str]) -> None:
    assert [one.strip() for one in differing(texts)] == [one.strip() for one in shown]


def test_run_without_rollouts_has_an_empty_list(runs: Runs, browser: Browser) -> None:
    (runs.training("young") / "rollouts").rmdir()
    imitated = runs.training("copy", config='model = "whet/tiny"\n[data]\npath = "a"\n')
    (imitated / "rollouts").rmdir()
    for name, says in (("young", "as soon as its first step is done"), ("copy", "makes none")):
        html = page(browser, f"/runs/{browser.id(name)}/rollouts")
        assert "No rollouts yet" in html
        assert says in html
