"""When an engine is restarted, and what is said of engines that are not up."""

from __future__ import annotations

import re
from pathlib import Path

from whet.inference.pool.health import MemberReport, RestartPolicy, hopeless_text, pool_metrics, waiting_text

KILLED = "it was killed by SIGKILL"


def test_pauses_grow_up_to_a_limit_and_end() -> None:
    policy = RestartPolicy(max_restarts=5, first_pause_s=1.0, longest_pause_s=6.0)
    times = [float(number) for number in range(7)]
    assert [policy.pause(times[:count]) for count in range(1, 7)] == [1.0, 2.0, 4.0, 6.0, 6.0, None]


def test_an_engine_that_ran_for_long_begins_anew() -> None:
    policy = RestartPolicy(max_restarts=1, window_s=10.0)
    assert policy.pause([0.0, 9.0]) is None
    assert policy.pause([0.0, 11.0]) == policy.first_pause_s


def test_no_restart_at_all() -> None:
    assert RestartPolicy(max_restarts=0).pause([3.0]) is None


def test_what_requests_wait_for_in_words() -> None:
    up, starting = MemberReport("0", "up"), MemberReport("2", "starting", cause=KILLED)
    down = MemberReport("1", "down", cause="exit status 1", restarts_in=7.8)
    assert waiting_text([up, MemberReport("1", "up")], 1) == ""
    assert waiting_text([up, down, starting], 1) == (
        "2 of 3 engines are down: engine 1 restarts in 8 s (exit status 1), "
        "engine 2 is starting (it was killed by SIGKILL)"
    )
    assert "engine 1 is being stopped (exit" in waiting_text([MemberReport("1", "down", cause="exit status 1")], 1)
    assert waiting_text([up, down], 2).endswith("; requests wait until 2 are up")
    assert waiting_text([MemberReport("0", "up", is_current=False)], 1) == "engine 0 takes new weights"


def test_hope_ends_when_too_many_have_had_their_last_restart() -> None:
    ended, up = MemberReport("0", "given up", cause=KILLED, restarts=3), MemberReport("1", "up")
    assert hopeless_text([ended, up], 1) is None
    assert hopeless_text([ended, MemberReport("1", "down")], 1) is None
    text = hopeless_text([ended, up], 2)
    assert text is not None
    assert (
        "1 of 2 engines have ended for good, where min_healthy = 2: engine 0 (it was killed by SIGKILL; restarts: 3)."
        in text
    )


def test_metrics_are_those_of_the_documentation() -> None:
    found = pool_metrics([MemberReport("a", "up", restarts=2, version=5, queue=3), MemberReport("b", "down")], 4)
    assert (found["engine/healthy"], found["engine/restarts"], found["engine/queue"]) == (1.0, 2.0, 4.0)
    assert [found[f"engine/a/{name}"] for name in ("queue", "restarts", "version")] == [3.0, 2.0, 5.0]
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(engine/[^`]+)`", page.split("\n## Metrics\n")[1].split("\n## ")[0]))
    found_names = {name.replace("/a/", "/<name>/").replace("/b/", "/<name>/") for name in found}
    assert found_names == documented - {"engine/slept_bytes"}, "which one engine has, too"
