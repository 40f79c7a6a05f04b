"""Pages of a run's files: its log, its config, its checkpoints."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from html import unescape

import pytest

from ..conftest import Browser, Runs

LOG = """\
2026-11-23T10:00:00+0000 INFO step 1: reward 0.25
2026-11-23T10:00:01+0000 WARNING a group <b>without</b> variance
2026-11-23T10:00:02+0000 ERROR the judge did not answer
    because of a timeout
"""


def test_a_log_is_searched_by_level_and_time(runs: Runs, browser: Browser) -> None:
    logs = runs.training("mine") / "logs"
    logs.mkdir()
    (logs / "run.log").write_text(LOG)
    here = f"/runs/{browser.id('mine')}/logs"

    def lines(**query: str) -> list[str]:
        html = browser.http.get(here, params=query or None).text
        found = re.findall(r'<span class="entry[^>]*>(?:<time title="([^"]*)">[^<]*</time>)?([^<]*)</span>', html)
        return [unescape(when + text) for when, text in found]

    assert lines() == LOG.splitlines()
    assert lines(search="VARIANCE") == LOG.splitlines()[1:2]
    assert lines(level="WARNING") == LOG.splitlines()[1:]
    assert lines(level="", since="2026-11-23T10:00:02") == LOG.splitlines()[2:]
    assert "No line fits" in browser.http.get(here, params={"search": "nothing"}).text
    assert browser.http.get(here, params={"since": "yesterday"}).status_code == 422


def test_a_running_log_is_followed_from_where_the_page_ends(runs: Runs, browser: Browser) -> None:
    logs = runs.training("mine", state="unknown") / "logs"
    logs.mkdir()
    (logs / "run.log").write_text(LOG)
    html = browser.http.get(f"/runs/{browser.id('mine')}/logs?level=ERROR").text
    follow = re.search(r'data-follow="([^"]*)"', html)
    assert follow is not None
    with (logs / "run.log").open("a") as file:
        file.write("2026-11-23T10:00:03+0000 INFO step 2\n2026-11-23T10:00:04+0000 ERROR again\n")
    answer = browser.http.get(unescape(follow[1]))
    assert [line["text"].rpartition(" ")[2] for line in answer.json()["lines"]] == ["again"]


def test_config_shows_what_differs_and_no_secret(runs: Runs, browser: Browser) -> None:
    config = 'model = "whet/tiny"\nmax_steps = 3\n[[env]]\nid = "reverse-text"\n[env.args]\napi_key = "sk-0123456789"\n'
    runs.training("mine", config=config)
    html = browser.http.get(f"/runs/{browser.id('mine')}/config").text
    assert re.search(r"<code>max_steps</code></td><td><code>3</code>", html)
    assert "sk-0123456789" not in html


def test_settings_of_an_evaluation(runs: Runs, browser: Browser) -> None:
    runs.evaluation([], "one", config={"environment": "arithmetic", "api_key": "sk-0123456789"})
    html = browser.http.get(f"/runs/{browser.id('one')}/config").text
    assert '"environment": "arithmetic"' in unescape(html)
    assert "sk-0123456789" not in html


@pytest.mark.parametrize("damaged", [False, True])
def test_whole_checkpoints_can_be_downloaded(runs: Runs, browser: Browser, damaged: bool) -> None:
    directory = runs.training("mine", metrics=[{"step": 1}])
    step = directory / "checkpoints" / "step_1"
    step.mkdir(parents=True)
    (step / "weights.safetensors").write_bytes(b"w" * 2000)
    entry = {"size": 2000, "sha256": hashlib.sha256(b"w" * 2000).hexdigest()}
    (step / "manifest.json").write_text(json.dumps({"step": 1, "files": {"weights.safetensors": entry}}))
    if damaged:
        (step / "weights.safetensors").write_bytes(b"v" * 2000)
    html = browser.http.get(f"/runs/{browser.id('mine')}/checkpoints").text
    found = [unescape(link) for link in re.findall(r'href="([^"]*archive[^"]*)" download', html)]
    if damaged:
        assert not found
        return
    (link,) = found
    with tarfile.open(fileobj=io.BytesIO(browser.http.get(link).content)) as archive:
        assert sum(member.size for member in archive if member.name.endswith("weights.safetensors")) == 2000


def test_no_checkpoint_says_when_there_will_be_one(runs: Runs, browser: Browser) -> None:
    runs.training("mine")
    assert "No checkpoints yet" in browser.http.get(f"/runs/{browser.id('mine')}/checkpoints").text


def test_lines_of_a_log_have_the_time_of_day_and_the_date_where_it_is_another(runs: Runs, browser: Browser) -> None:
    logs = runs.training("mine", metrics=[{"step": 1}]) / "logs"
    logs.mkdir()
    (logs / "run.log").write_text("2026-11-22T23:59:59+0000 INFO before\n" + LOG)
    for path in ("", "/logs"):
        html = browser.http.get(f"/runs/{browser.id('mine')}{path}").text
        assert ">11-22 23:59:59</time> INFO before</span>" in html
        assert 'level-warning"><time title="2026-11-23T10:00:01+0000">10:00:01</time> WARNING a group' in html
        assert '<span class="entry level-error">    because of a timeout</span>' in html


def test_steps_without_a_number_are_the_newest(runs: Runs, browser: Browser) -> None:
    runs.training("mine", metrics=[{"step": 1, "reward/mean": 0.5}, {"step": 2, "reward/mean": 0.75}])
    runs.training("new")
    for name, end in (("mine", "/steps/2"), ("new", "")):
        answer = browser.http.get(f"/runs/{browser.id(name)}/steps")
        assert (answer.status_code, answer.url.path) == (200, f"/runs/{browser.id(name)}{end}")
