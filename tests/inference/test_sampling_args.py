"""Sampling arguments are read strictly."""

from __future__ import annotations

from typing import Any

import pytest

from whet.errors import ConfigError
from whet.inference.sampling_args import SamplingSettings, read_sampling_args, turn_seed


def test_every_key_is_understood_and_none_means_absent() -> None:
    settings = read_sampling_args(
        {
            "max_completion_tokens": 7,
            "temperature": 0,
            "top_p": 0.9,
            "stop": "END",
            "seed": 3,
            "logprobs": True,
            "n": 1,
            "extra_body": {"top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}},
            "max_tokens": None,
        }
    )
    assert settings == SamplingSettings(
        max_tokens=7, temperature=0.0, top_p=0.9, top_k=5, min_p=0.1, stop=("END",), seed=3, enable_thinking=False
    )
    assert read_sampling_args({}) == SamplingSettings()
    assert read_sampling_args({"top_k": -1}).top_k == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"temprature": 1.0}, "Did you mean 'temperature'"),
        ({"extra_body": {"topk": 5}}, "Did you mean 'top_k'"),
        ({"chat_template_kwargs": {"temperature": 1}}, "temperature"),
        ({"frequency_penalty": 0.5}, "not one a policy takes"),
        ({"temperature": "hot"}, "must be a number"),
        ({"temperature": -1}, "must be a number"),
        ({"top_p": 1.5}, "must be a number"),
        ({"max_tokens": 0}, "at least 1"),
        ({"max_tokens": 2.5}, "whole number"),
        ({"seed": "x"}, "whole number"),
        ({"n": 2}, "must be 1"),
        ({"enable_thinking": "no"}, "true or false"),
    ],
)
def test_mistakes_are_named(args: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_sampling_args(args)


def test_a_turn_takes_the_room_there_is_and_a_seed_of_its_own() -> None:
    settings = read_sampling_args({"max_tokens": 50, "seed": 4, "stop_token_ids": [9, 2]})
    first, second = (settings.params(room=20, turn=turn, stop_token_ids=(1, 2)) for turn in (0, 1))
    assert first.max_tokens == 20
    assert first.stop_token_ids == (1, 2, 9)
    assert (first.seed, second.seed) == (turn_seed(4, 0), turn_seed(4, 1))
    assert first.seed != second.seed
