"""report.html and reward.png, made from a run's files alone."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from whet.errors import RunError
from whet.rl.report import write_report
from whet.rl.report.data import read_run
from whet.rl.report.samples import pair_up, trained_samples

BuildRun = Callable[..., Path]
HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'\x1b[2J\u202e\ud800&amp;"


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        {"script": self.scripts, "style": self.styles}.get(self._inside, self.texts).append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_the_page_needs_nothing_but_itself(build_run: BuildRun) -> None:
    page = Page(write_report(build_run()))
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "href", "srcset", "data", "action"} & attributes.keys()
    assert "url(" not in "".join(page.styles)
    assert "@import" not in "".join(page.styles)


def test_a_hostile_model_changes_the_text_of_the_page_and_nothing_else(build_run: BuildRun) -> None:
    page = Page(write_report(build_run(extra=HOSTILE)))
    assert len(page.named("script")) == 1
    assert not page.named("img")
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    shown = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'\ufffd[2J\ufffd\ufffd&amp;"
    assert shown in page.text


def test_only_the_page_s_own_script_and_style_may_run(build_run: BuildRun) -> None:
    page = Page(write_report(build_run(extra=HOSTILE)))
    (policy,) = [meta["content"] or "" for meta in page.named("meta") if "http-equiv" in meta]
    allowed = dict(re.findall(r"(script|style)-src 'sha256-([^']+)'", policy))
    for kind, text in (("script", page.scripts[0]), ("style", page.styles[0])):
        assert allowed[kind] == base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_every_environment_has_its_curve_and_its_numbers(build_run: BuildRun) -> None:
    directory = build_run()
    page = Page(write_report(directory))
    charts = {svg["aria-label"]: svg["data-chart"] or "" for svg in page.named("svg")}
    assert '"name":"reverse-text"' in charts["Reward"]
    assert '"name":"shout"' in charts["Reward"]
    assert {"KL, sampler to learner", "Entropy", "Gradient norm", "Seconds a step"} <= charts.keys()
    before, after = (read_run(directory).evaluation(moment) for moment in ("before", "after"))
    assert before is not None
    assert after is not None
    for report in (before, after):
        for score in report.scores:
            assert f"{score.reward:.3f}" in page.text


def test_the_same_task_is_shown_before_and_after_with_reward_and_advantage(build_run: BuildRun) -> None:
    page = Page(write_report(build_run()))
    assert "reverse-text, task" in page.text
    assert "the largest gain" in page.text
    assert re.search(r"before reward \d\.\d{3}, advantage [+-]\d\.\d{3}", page.text)
    assert re.search(r"after reward \d\.\d{3}, advantage [+-]\d\.\d{3}", page.text)
    assert re.search(r"best reward \d\.\d{3}, advantage \+\d\.\d{3}", page.text)


def test_the_picture_beside_it_is_a_png_of_the_curve(build_run: BuildRun) -> None:
    directory = build_run()
    write_report(directory)
    with Image.open(directory / "reward.png") as image:
        assert image.size == (1200, 675)
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or []}
    assert {(0, 114, 178), (213, 94, 0)} <= colours  # both environments' lines


def test_a_run_that_was_stopped_before_its_first_step_still_has_a_report(build_run: BuildRun) -> None:
    directory = build_run()
    for path in ("metrics.jsonl", "evals.jsonl"):
        (directory / path).unlink()
    for path in (directory / "rollouts").iterdir():
        path.unlink()
    assert "No step has been trained yet." in Page(write_report(directory)).text


def test_a_run_in_the_middle_has_a_report_without_its_end(build_run: BuildRun) -> None:
    directory = build_run()
    (directory / "rollouts" / "eval_after.jsonl").unlink()
    lines = (directory / "evals.jsonl").read_text().splitlines(keepends=True)
    (directory / "evals.jsonl").write_text("".join(lines[:4]))
    text = Page(write_report(directory)).text
    assert "Held-out tasks, before and after" in text
    assert "The same held-out task" not in text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is not a run: .*config\.toml is missing"):
        write_report(tmp_path)


def row(
    example: int, reward: float | None, *, sampling: str = "temperature 1", error: object = None
) -> dict[str, object]:
    return {"environment": "e", "sampling": sampling, "example_id": example, "reward": reward, "error": error}


def test_pairs_are_the_largest_gain_a_typical_task_and_the_largest_loss() -> None:
    before = [row(0, 0.5), row(1, 0.5), row(2, 0.5)]
    after = [row(0, 0.4), row(1, 0.6), row(2, 1.0)]
    pairs = pair_up(before, after)
    assert [(pair.why, pair.before["example_id"]) for pair in pairs] == [
        ("the largest gain", 2),
        ("a typical task", 1),
        ("the largest loss", 0),
    ]


def test_rollouts_that_failed_are_in_no_pair_and_greedy_ones_only_where_nothing_else_is() -> None:
    failed = row(1, None, error={"error": "ModelError"})
    greedy = [row(1, 0.1, sampling="greedy")]
    assert pair_up([row(0, 0.5), failed, *greedy], [row(0, 0.6), row(1, 0.9), *greedy])[0].before["example_id"] == 0
    assert [pair.sampling for pair in pair_up(greedy, greedy)] == ["greedy"]


def test_trained_samples_come_from_the_first_the_middle_and_the_last_step(build_run: BuildRun) -> None:
    directory = build_run(steps=5)
    samples = trained_samples(directory / "rollouts", [1, 2, 3, 4, 5])
    assert list(dict.fromkeys(sample.step for sample in samples)) == [1, 3, 5]
    assert all(sample.best["advantage"] >= sample.worst["advantage"] for sample in samples)
