"""The search that the guide to prompt optimisation shows is the one it describes, and its table is what it says."""

from __future__ import annotations

import importlib.util
import math
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gepa")
pytest.importorskip("openai")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "gepa.md").read_text()
PLANTED = ROOT / "tests" / "gepa"


def beside(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"gepa_guide_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their own module
    spec.loader.exec_module(module)
    return module


def shown(start: str) -> str:
    """The block of the page that begins with this."""
    return next(block for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) if block.startswith(start))


@pytest.mark.long
def test_the_search_in_the_guide_is_what_its_command_does(
    warm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PLANTED))
    from planted.policy import answer
    from planted.reflection import Proposer
    from planted.server import Endpoint
    from planted.world import World

    (tmp_path / "tests").symlink_to(ROOT / "tests")
    command = re.search(r"^\$ whet (gepa run tests/gepa/planted .*)$", PAGE, re.MULTILINE)[1]
    with (
        Endpoint(partial(answer, World.of(0, kinds=3))) as policy,
        Endpoint(Proposer(0, insight=0.6).answer) as reflection,
    ):
        urls = {"http://127.0.0.1:8801/v1": policy.url, "http://127.0.0.1:8802/v1": reflection.url}
        printed = warm.run(*(urls.get(word, word) for word in shlex.split(command)), cwd=tmp_path)
    printed = printed.replace(policy.url, "http://127.0.0.1:8801/v1")
    assert beside("guide").first_difference(shown("loading planted"), printed) is None, printed
    assert (tmp_path / "runs" / "planted" / "best_prompt.txt").read_text() == shown("You answer questions")


def test_the_smallest_differences_that_show_are_those_of_the_formula() -> None:
    """Four times in five, a two-sided 95 % interval around a difference of two independent rewards with p = 1/2."""
    table = re.findall(r"^\| (\d+) \| (0\.\d+) \|$", PAGE, re.MULTILINE)
    assert [number for number, _ in table] == ["30", "50", "100", "200", "400"]
    for number, difference in table:
        assert float(difference) == pytest.approx((1.96 + 0.84) * math.sqrt(0.5 / int(number)), abs=0.005)


def test_what_the_guide_says_of_defaults_is_so() -> None:
    from whet.gepa.config import GepaConfig, SearchConfig
    from whet.gepa.reflection.reflection import most_chars

    fields = GepaConfig.model_fields
    for option, key in (("-n", "num_train"), ("-N", "num_val"), ("--minibatch-size", "minibatch_size")):
        assert f"`{option}`, {fields[key].default}" in PAGE
    for component in ("system_prompt", "tool:search", "judge"):
        assert str(most_chars({}, component)) in PAGE
    assert SearchConfig().max_unusable == 5
