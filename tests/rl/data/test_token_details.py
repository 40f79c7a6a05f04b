"""What the learner made of each token: on record with the rollout it belongs to, and shown by the viewer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from whet.records.tokens import token_view
from whet.rl.config import load_run_config
from whet.rl.data.assembly import RewardShaper, assemble, turn_details
from whet.rl.data.curriculum import DrawnTask
from whet.rl.learner.protocol import TokenValues
from whet.rl.loop.group import Group
from whet.rl.run import run_training
from whet.rl.sections.algorithm import AlgorithmConfig
from whet.system.files import read_lines

CONFIG = """
max_steps = 2
batch_size = 8
rollouts_per_example = 4
learning_rate = 1e-2
[sampling]
max_tokens = 24
[[env]]
id = "calculator"
[algorithm]
mask_truncated = true
[eval]
before = false
after = false
[deployment]
threads = 1
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """Rollouts of step 2 of a real run, some of whose answers are cut off."""

    def rows(*overrides: str) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("details")
        file = folder / "run.toml"
        file.write_text(CONFIG)
        config = load_run_config(file, ["--runs_directory", str(folder), *overrides])
        assert run_training(config, json_output=True).state == "finished"
        return list(read_lines(config.directory / "rollouts" / "step_000002.jsonl"))

    return rows


def test_the_viewer_shows_logprob_and_ratio_of_every_trained_token_and_what_carried_no_loss(rows: Any) -> None:
    found = rows()
    assert {row["is_truncated"] for row in found} == {True, False}
    for row in found:
        sampled = [token for token in token_view(row).tokens if token.sampled]
        assert sampled
        for token in sampled:
            if row["is_truncated"]:
                assert (token.masked, token.learner_logprob, token.ratio) == (True, None, None)
                continue
            assert token.learner_logprob is not None
            assert token.logprob is not None
            # Synchronous training: the learner's weights are those that sampled, up to rounding.
            assert token.learner_logprob == pytest.approx(token.logprob, abs=1e-3)
            assert token.ratio == pytest.approx(math.exp(token.learner_logprob - token.logprob), abs=1e-5)


def test_rollouts_are_kept_without_it_where_that_is_asked_for(rows: Any) -> None:
    turns = [turn for row in rows("--learner.keep_token_details", "false", "--max_steps", "2") for turn in row["turns"]]
    assert not any({"learner_logprobs", "ratio", "masked", "clipped"} & turn.keys() for turn in turns)


def turn(prompt: list[int], completion: list[int]) -> dict[str, Any]:
    return {
        "tokens": {
            "prompt_ids": prompt,
            "completion_ids": completion,
            "completion_mask": [1] * len(completion),
            "completion_logprobs": [-1.0] * len(completion),
            "policy_version": [[0, len(completion)]],
        }
    }


def test_values_find_their_turn_whatever_the_branches_and_groups() -> None:
    """Turn 3 goes on with turn 1, so the sequences of a rollout are not in the order of its turns."""
    branched = [turn([1], [2, 3]), turn([9], [8]), turn([1, 2, 3, 4], [5])]
    plain = [turn([1], [6])]

    def state(trajectory: list[dict[str, Any]], reward: float) -> Any:
        return {"trajectory": trajectory, "reward": reward, "example_id": 0, "is_truncated": False}

    groups = [
        Group(number, DrawnTask(number, 0, 0, 0), "env", [state(branched, 0.0), state(plain, 1.0)])
        for number in range(2)
    ]
    algorithm = AlgorithmConfig()
    assembled = assemble(groups, algorithm, RewardShaper(algorithm), temperature=1.0)
    place = np.arange(len(assembled.batch.ids))
    values = TokenValues(np.where(assembled.batch.trained, -place, 0).astype(np.float32), place == 2)
    found = turn_details(assembled, values)
    ids = {int(number): int(token) for number, token in zip(place, assembled.batch.ids, strict=True)}
    for group in found:
        seen = [
            [[ids[-round(value)] for value in values["learner_logprobs"]] for values in rollout] for rollout in group
        ]
        assert seen == [[[2, 3], [8], [5]], [[6]]]
    assert found[0][0][0]["clipped"] == [0, 1]
    assert "clipped" not in found[0][0][1]
    assert found[0][0][0]["ratio"] == [1.0, json.loads(f"{math.exp(-1):.6g}")]
