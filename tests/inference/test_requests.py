"""What is left of an interrupted request, and the sample put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from whet.inference.protocol import Sample, SampleRequest, SamplingParams, VersionRun
from whet.inference.requests import completed, joined, remaining
from whet.inference.token_sets import TokenSets

REQUEST = SampleRequest([1, 2, 3], SamplingParams(max_tokens=8, seed=5), group_key="g", rollout_key="r", adapter="a")


def test_the_rest_begins_after_what_was_sampled() -> None:
    rest = remaining(REQUEST, [7, 8])
    assert rest.prompt_ids == [1, 2, 3, 7, 8]
    assert rest.params.max_tokens == 6
    assert (rest.rollout_key, rest.adapter, rest.group_key) == ("r", "a", None)


def test_nothing_sampled_leaves_the_request_as_it_is() -> None:
    assert remaining(REQUEST, []) is REQUEST


def test_the_seed_of_the_rest_depends_on_seed_and_length_alone() -> None:
    seeds = {remaining(REQUEST, [9] * count).params.seed for count in range(8)}
    assert len(seeds) == 8
    assert remaining(REQUEST, [7, 8]).params.seed == remaining(replace(REQUEST, prompt_ids=[4]), [1, 1]).params.seed
    assert remaining(replace(REQUEST, params=SamplingParams()), [7]).params.seed is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=6))
def test_parts_join_to_the_whole(parts: list[tuple[int, int]]) -> None:
    whole: Sample | None = None
    ids: list[int] = []
    for version, count in parts:
        new = list(range(len(ids), len(ids) + count))
        ids += new
        part = Sample(new, [-0.5 * number for number in new], [VersionRun(version, count)], "length")
        whole = part if whole is None else joined(whole, part)
    assert whole is not None
    assert whole.ids == ids
    assert whole.logprobs == [-0.5 * number for number in ids]
    assert [run.version for run in whole.versions for _ in range(run.count)] == [
        v for v, count in parts for _ in range(count)
    ]
    assert all(a.version != b.version for a, b in zip(whole.versions, whole.versions[1:], strict=False))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.data())
def test_many_parts_join_as_two_at_a_time(counts: list[int], data: st.DataObject) -> None:
    def part(count: int) -> Sample:
        runs = [VersionRun(data.draw(st.integers(0, 2)), count)] if count else []
        masses = data.draw(st.sampled_from([None, [0.5] * count]))
        kept = data.draw(st.sampled_from([None, TokenSets.of([np.array([3, 4], np.int32)] * count)]))
        return Sample([7] * count, [-1.0] * count, runs, "length", kept_mass=masses, kept=kept)

    parts = [part(count) for count in counts]
    one_by_one = parts[0]
    for following in parts[1:]:
        one_by_one = joined(one_by_one, following)
    at_once = joined(*parts)
    assert (at_once.ids, at_once.logprobs, at_once.versions) == (
        one_by_one.ids,
        one_by_one.logprobs,
        joined(one_by_one).versions,
    )
    assert at_once.kept_mass == one_by_one.kept_mass
    assert (at_once.kept is None) == (one_by_one.kept is None)
    assert at_once.kept is None or len(at_once.kept) == len(at_once.ids)


def test_what_was_whole_before_the_interruption_is_not_continued() -> None:
    stops = replace(REQUEST, params=replace(REQUEST.params, stop_token_ids=(9,)))
    some = Sample([4, 9], [-1.0, -2.0], [VersionRun(2, 2)], "length")
    assert completed(REQUEST, some) is None
    assert completed(stops, some) == replace(some, finish_reason="stop")
    full = Sample([4] * 8, [-1.0] * 8, [VersionRun(2, 8)], "length")
    assert completed(REQUEST, full) == full
    assert completed(REQUEST, Sample([], [], [], "length")) is None


def test_a_part_without_tokens_adds_nothing() -> None:
    first = Sample([4], [-1.0], [VersionRun(2, 1)], "length")
    whole = joined(first, Sample([], [], [], "stop"))
    assert (whole.ids, whole.versions, whole.finish_reason) == ([4], [VersionRun(2, 1)], "stop")


def test_experts_are_those_that_a_token_was_sampled_with() -> None:
    first = Sample([7, 8], [0.0, 0.0], [VersionRun(1, 2)], "length", experts=np.zeros((4, 1, 1), np.int16))
    second = Sample([9], [0.0], [VersionRun(2, 1)], "stop", experts=np.ones((5, 1, 1), np.int16))
    experts = joined(first, second).experts
    assert experts is not None
    assert experts.ravel().tolist() == [0, 0, 0, 0, 1]
