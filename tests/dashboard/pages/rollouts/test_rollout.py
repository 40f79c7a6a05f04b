"""One rollout and its tokens, a group side by side, a step."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from whet.dashboard.pages.rollouts.group import compared
from whet.dashboard.pages.rollouts.rollout import WINDOW, token_page
from whet.records.rollout_text import WHOLE, conversation
from whet.records.tokens import Token, TokenTurn, TokenView

from ...conftest import Browser, Runs, rollout, trained

ReadPage = Callable[[str], Any]


@pytest.fixture
def read(browser: Browser, read_page: ReadPage) -> Callable[..., Any]:
    """Reads a page of the run `mine`."""

    def get(path: str, status: int = 200) -> Any:
        answer = browser.http.get(f"/runs/{browser.id('mine')}{path}")
        assert answer.status_code == status, answer.text
        return read_page(answer.text)

    return get


def test_a_rollout_shows_messages_scores_and_its_error(runs: Runs, read: Callable[..., Any]) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    completion = [
        {"role": "assistant", "content": "", "reasoning_content": "two and three", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "5"},
        {"role": "assistant", "content": "It is 5."},
    ]
    failed = {"error": "ToolError", "error_chain_repr": "ToolError('away') -> OSError()"}
    runs.training("mine", steps=[[trained("0", 0.5, -1.0, completion=completion, error=failed)]], metrics=[{"step": 1}])
    text = read("/rollouts/0").text
    for said in (
        "reasoning, 13 characters two and three",
        "calls add a: 2 b: 3",
        "tool add 5",
        "It is 5.",
        "0.500 reward",
        "-1.000 advantage",
        "0.500 exact_match",
        "because of OSError()",
    ):
        assert said.casefold() in text.casefold() or _reversed(said, text), (said, text)


def _reversed(said: str, text: str) -> bool:
    """A value and its name, in the other order."""
    value, _, name = said.partition(" ")
    return f"{name} {value}" in text


def test_the_token_of_the_url_is_selected(runs: Runs, read: Callable[..., Any]) -> None:
    runs.training("mine", steps=[[trained("0", 0.5, -1.0)]], metrics=[{"step": 1}])
    page = read("/rollouts/0?token=3")
    assert "token 4 of 5, id 102," in page.text
    assert "logprob -3.5000 (3.02%), policy version 4, advantage -1.000" in page.text
    (selected,) = [tag for name, tag in page.tags if name == "a" and tag.get("id") == "t3"]
    assert selected["aria-current"] == "true"
    assert "p-rare" in (selected["class"] or "").split()


def test_bars_say_what_was_trained(runs: Runs, read: Callable[..., Any]) -> None:
    runs.training("mine", steps=[[trained("0", 0.5, -1.0), trained("0", 0.5, 0.0)]], metrics=[{"step": 1}])
    page = read("/rollouts/0")
    assert "1 call of the policy in 1 branch: 3 of 3 sampled tokens are trained." in page.text
    assert [tag["width"] for name, tag in page.tags if name == "rect" and tag["class"] == "sampled trained down"] == [
        "16",
        "60.000%",
    ]
    assert "0 of 3 sampled tokens are trained. The rollout has no advantage" in read("/rollouts/1").text


def test_the_bars_of_an_evaluation_say_that_nothing_is_trained(runs: Runs, read: Callable[..., Any]) -> None:
    directory = runs.training("mine", steps=[[trained("0", 0.5, 1.0)]], metrics=[{"step": 1}])
    row = {name: value for name, value in trained("0", 0.5, 1.0).items() if name != "advantage"}
    (directory / "rollouts" / "eval_before.jsonl").write_text(json.dumps(row) + "\n")
    assert "0 of 3 sampled tokens are trained. The rollout is of an evaluation." in read("/rollouts/0").text


def test_a_line_that_is_no_rollout_is_shown_as_it_is(runs: Runs, read: Callable[..., Any]) -> None:
    directory = runs.training("mine", steps=[[trained("0", 0.5, 1.0)]], metrics=[{"step": 1}])
    with (directory / "rollouts" / "step_000001.jsonl").open("a") as file:
        file.write("this is <b>not</b> JSON\n")
    text = read("/rollouts/1").text
    assert "This line is no rollout" in text
    assert "this is <b>not</b> JSON" in text


def test_a_group_marks_what_differs_from_the_best(runs: Runs, read: Callable[..., Any]) -> None:
    answers = ["the sum is nine", "the sum is ten", "the sum is ten"]
    rows = [trained("0", reward, 0.0, text) for reward, text in zip((0.0, 1.0, 1.0), answers, strict=True)]
    runs.training("mine", steps=[rows, [trained("1", 0.5, 0.0)]], metrics=[{"step": 1}, {"step": 2}])
    page = read("/groups/0")
    assert "mean reward 0.667, from 0.000 to 1.000" in page.text
    assert "Group of 3" in page.text
    assert [name for name, _ in page.tags].count("mark") == 1
    (following,) = [tag for name, tag in page.tags if name == "a" and tag.get("rel") == "next"]
    assert (following["href"] or "").endswith("/groups/3")
    assert [name for name, _ in read("/groups/0?against=none").tags].count("mark") == 0
    read("/groups/99", status=404)


def test_a_step_has_metrics_distributions_and_groups(runs: Runs, read: Callable[..., Any]) -> None:
    steps = [[trained("0", 0.25, -1.0), trained("0", 0.75, 1.0)], [trained("1", 0.5, 0.0)]]
    runs.training("mine", steps=steps, metrics=[{"step": 1, "reward/mean": 0.5}, {"step": 2, "optim/lr": 0.125}])
    first, second = read("/steps/1"), read("/steps/2")
    assert "mean 0.5" in first.text
    assert "lr 0.125" in second.text
    assert "Rewards (mean 0.500)" in first.text
    assert [name for name, _ in first.tags].count("svg") > 3
    assert any((tag.get("href") or "").endswith("/groups/0") for name, tag in first.tags if name == "a")
    assert "Nothing is known of step 7" in read("/steps/7").text


def test_groups_of_a_step_show_what_differs_and_a_constant_is_one_bar(runs: Runs, read: Callable[..., Any]) -> None:
    asked = "Answer with one number only and nothing else. What is {} and one?"
    prompts = [[{"role": "user", "content": asked.format(word)}] for word in ("two", "seventy")]
    rows = [trained(str(at), 1.0, 0.0, prompt=prompt) for at, prompt in enumerate(prompts)]
    runs.training("mine", steps=[rows], metrics=[{"step": 1}])
    page = read("/steps/1")
    assert [text for text in page.texts if text.startswith("... ")] == ["... two and one?", "... seventy and one?"]
    assert [tag.get("class") for tag in page.named("rect")].count("bar") == 3


def view(count: int) -> TokenView:
    tokens = [Token(at, f"w{at} ", sampled=True, logprob=-0.5, version=1) for at in range(count)]
    return TokenView([TokenTurn(1, 0, False, tokens)], 0.5)


def test_a_page_has_a_window_of_very_many_tokens() -> None:
    page = token_page(view(WINDOW + 10), WINDOW + 3, "")
    assert (page.first, page.last, page.count) == (WINDOW, WINDOW + 10, WINDOW + 10)
    assert page.before == 0
    assert page.after is None
    assert [token.index for turn in page.turns for token in turn.tokens] == list(range(WINDOW, WINDOW + 10))
    assert token_page(view(5), 99, "").selected is None


def test_a_long_text_is_folded_and_nothing_of_it_is_lost() -> None:
    said = "".join(map(str, range(5000)))
    (message,) = conversation({"completion": [{"role": "assistant", "content": said}]})
    (part,) = message.parts
    assert len(part.text) == WHOLE.first
    assert part.text + part.rest == said


def test_compared_text_is_the_text() -> None:
    text, reference = "one\ntwo three\nfour", "one\ntwo four\nfive"
    lines = compared(text, reference)
    assert "\n".join("".join(piece for piece, _ in line) for line in lines) == text
    assert [piece for line in lines for piece, differs in line if differs and piece.strip()] == ["three", "four"]


def test_an_evaluation_says_why_there_are_no_tokens(runs: Runs, browser: Browser, read_page: ReadPage) -> None:
    runs.evaluation([rollout(0, 1.0)])
    html = browser.http.get(f"/runs/{browser.id('one')}/rollouts/0").text
    assert "No tokens are kept in an evaluation" in re.sub(r"\s+", " ", html)
