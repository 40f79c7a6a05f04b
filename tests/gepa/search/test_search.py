"""The search: what it asks for, what it believes, when it ends; see `whet.gepa.search.search`."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

pytest.importorskip("gepa")

from gepa import EvaluationBatch
from gepa.api import optimize
from in_process import SEED, WANTED, Proposals, Rolled, Told, by_words, config, examples

from whet.errors import GepaError
from whet.gepa.search.search import search
from whet.gepa.types import candidate_id

TRAIN, VAL = examples("train", 100), examples("val", 50)


def searched(rollouts, proposals=None, settings=None, *, train=TRAIN, val=VAL, seed=SEED):
    """A search and what its observer was told."""
    told = Told()
    proposals = proposals or Proposals(rollouts.seed)
    return search(settings or config(seed=rollouts.seed), seed, train, val, rollouts, proposals, told), told


class PlainAdapter:
    """The least that `gepa.optimize` needs, over the same rewards and proposals."""

    def __init__(self, rollouts, proposals):
        self.rollouts, self.proposals = rollouts, proposals

    def evaluate(self, batch, candidate, capture_traces=False):
        scored = self.rollouts.score(candidate, batch, "minibatch")
        return EvaluationBatch([None] * len(batch), [one.reward for one in scored], scored)

    def make_reflective_dataset(self, candidate, batch, components):
        return {component: [{}] for component in components}

    def propose_new_texts(self, candidate, records, components):
        return self.proposals(candidate, records, components)


class Silent:
    def log(self, message):
        pass


def plain(rollouts, proposals, settings):
    """Accepted candidates of the library's own search: texts, the parent's texts, mean on val."""
    accepted = []

    class Heard:
        def on_valset_evaluated(self, event):
            accepted.append((event["candidate"], event["parent_ids"], event["average_score"]))

    optimize(
        seed_candidate=dict(SEED),
        trainset=TRAIN,
        valset=VAL,
        adapter=PlainAdapter(rollouts, proposals),
        reflection_minibatch_size=settings.minibatch_size,
        skip_perfect_score=settings.perfect_score is not None,
        perfect_score=settings.perfect_score,
        max_metric_calls=300,
        callbacks=[Heard()],
        logger=Silent(),
        track_best_outputs=False,
        seed=settings.search_seed,
    )
    return [(texts, [accepted[of][0] for of in parents], mean) for texts, parents, mean in accepted]


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("perfect", [1.0, None])
def test_with_the_librarys_criterion_the_candidates_are_those_of_plain_gepa(noisy, perfect):
    accepted = 0
    for seed in range(12):
        settings = config("gepa", seed=seed, perfect_score=perfect)
        # Proposals of plain gepa may be texts that there are already, or none.
        said = [None, SEED["system_prompt"], "", None, "Answer. one", "Answer. one", *[None] * 5, "Answer. one"]
        peer = Rolled(seed, most=10_000, noisy=noisy)
        theirs = plain(peer, Proposals(seed, said=said), settings)
        ours, _ = searched(Rolled(seed, most=len(peer.asked), noisy=noisy), Proposals(seed, said=said), settings)
        kept = [one for one in ours.candidates if one.verdict != "rejected"]
        by_id = {one.id: one.texts for one in ours.candidates}
        assert [(one.texts, [by_id[of] for of in one.parents], one.val_mean) for one in kept] == [
            (texts, parents, pytest.approx(mean)) for texts, parents, mean in theirs
        ]
        best = max(range(len(theirs)), key=lambda number: (theirs[number][2], -number))
        assert ours.best.texts == theirs[best][0]
        accepted += len(theirs) - 1
    assert accepted >= 12


@pytest.mark.parametrize("acceptance", ["paired", "gepa"])
def test_a_search_is_a_function_of_its_seed_the_rewards_and_the_answers(acceptance):
    first, second = (searched(Rolled(3), settings=config(acceptance, seed=3))[0] for _ in range(2))
    assert first == second
    assert first != searched(Rolled(3), settings=config(acceptance, seed=4))[0]


@pytest.mark.parametrize("acceptance", ["paired", "gepa"])
@pytest.mark.parametrize("most", [50, 51, 56, 105, 106, 107, 240])
def test_any_budget_is_kept_and_nothing_is_begun_that_could_not_be_judged(acceptance, most):
    rollouts = Rolled(1, most)
    found, told = searched(rollouts, settings=config(acceptance, seed=1))
    assert len(rollouts.asked) <= most
    assert "the budget is spent" in found.ended
    assert told.decided_on == found.candidates
    assert found.candidates[-1].calls_after <= len(rollouts.asked)
    if most < 50 + 56:
        assert len(rollouts.asked) == 50


class Shrinking(Rolled):
    """Calls that had to be made again took what was left."""

    def score(self, candidate, examples, phase):
        if phase == "race" and len(self.asked) > 150:
            self.most = len(self.asked)
        return super().score(candidate, examples, phase)


@pytest.mark.parametrize("acceptance", ["paired", "gepa"])
def test_a_candidate_whose_race_the_budget_ends_is_not_believed(acceptance):
    rollouts = Shrinking(0)
    found, told = searched(rollouts, settings=config(acceptance))
    assert found.ended == "the budget is spent"
    last = found.candidates[-1]
    assert (last.verdict, last.val_mean) == ("rejected", None)
    assert "the budget ended" in last.reason
    assert told.decided_on == found.candidates


def test_a_budget_that_does_not_suffice_for_the_seed_says_so():
    rollouts = Rolled(most=49)
    with pytest.raises(GepaError, match=r"50 calls do not fit into the 49 .*: too little .* Raise -B"):
        searched(rollouts)
    assert not rollouts.asked


@pytest.mark.parametrize("acceptance", ["paired", "gepa"])
def test_a_perfect_seed_ends_the_search_at_once(acceptance):
    rollouts = Rolled(chance=lambda _: 1.0)
    found, _ = searched(rollouts, settings=config(acceptance))
    assert found.ended == "the seed prompt is perfect on every validation example"
    assert (found.best.verdict, found.best.val_mean) == ("seed", 1.0)
    assert rollouts.phases() == {"baseline": 50}


def test_a_perfect_candidate_ends_it_too_and_without_a_perfect_score_nothing_does():
    def best(candidate):
        return 1.0 if "one" in candidate["system_prompt"] else 0.3

    found, _ = searched(Rolled(chance=best))
    assert found.best.val_mean == 1.0
    assert found.ended == f"candidate {found.best.number} is perfect on every validation example"
    found, _ = searched(Rolled(chance=best), settings=config(perfect_score=None))
    assert "the budget is spent" in found.ended


@pytest.mark.parametrize("said", ["", SEED["system_prompt"]])
def test_no_text_and_the_parents_own_text_cost_no_call_of_a_candidate(said):
    rollouts = Rolled(most=200)
    found, told = searched(rollouts, Proposals(always=said))
    assert [one.verdict for one in found.candidates] == ["seed"]
    assert not told.proposals
    assert {call.candidate for _, call in rollouts.asked} == {candidate_id(SEED)}


def test_a_text_that_was_accepted_or_lost_on_validation_is_not_paid_for_again():
    for text in ("Answer. one two three", "Answer. idle"):  # the one is accepted, the other is not
        rollouts = Rolled(most=300)
        found, _ = searched(rollouts, Proposals(always=text))
        validated = [one for one in found.candidates[1:] if one.val_rewards]
        assert len(validated) == 1
        assert found.candidates[-1] is validated[0]


def test_search_ends_without_new_proposals():
    rollouts = Rolled(most=2000)
    found, _ = searched(rollouts, Proposals(always="Answer. one two three"))
    assert "nothing new to propose 10 times in a row" in found.ended
    assert rollouts.left > 1000


def test_a_text_that_only_a_minibatch_spoke_against_may_be_tried_again():
    found, _ = searched(Rolled(4, most=300), Proposals(always="Answer. idle"))
    assert len(found.candidates) > 2
    assert all(not one.val_rewards for one in found.candidates[1:-1])


@pytest.mark.parametrize("seed", range(5))
def test_an_accepted_candidate_was_called_once_on_each_validation_example(seed):
    rollouts = Rolled(seed)
    found, _ = searched(rollouts)
    accepted = [one for one in found.candidates if one.verdict == "accepted"]
    assert accepted
    for record in accepted:
        asked = [call.example for phase, call in rollouts.asked if phase == "race" and call.candidate == record.id]
        assert sorted(asked) == sorted(example.key for example in VAL)
        assert record.val_rewards.keys() == set(asked)
        assert record.val_mean == statistics.fmean(record.val_rewards.values())
        assert record.p_value <= 0.05


def test_what_was_decided_is_told_with_its_reason_and_its_cost():
    rollouts = Rolled(0)
    found, told = searched(rollouts)
    assert [one.number for one in found.candidates] == list(range(len(found.candidates)))
    assert told.proposals == [(one.number, one.parents[0], one.changed) for one in found.candidates[1:]]
    by_id = {one.id: one for one in found.candidates}
    for record in found.candidates[1:]:
        size = {name: len(rewards) for name, rewards in record.minibatch.items()}
        assert size == {"parent": 3, "candidate": 3}
        assert record.calls_after - record.calls_before == 3 + len(record.val_rewards)
        assert by_id[record.parents[0]].verdict != "rejected"
        assert record.val_mean is None or record.verdict == "accepted"
        assert "minibatch" in record.reason or "against its parent" in record.reason
    left = [one for one in found.candidates if 0 < len(one.val_rewards) < 50]
    assert left
    assert all("left the race" in one.reason for one in left)


def test_one_component_is_changed_at_a_time_in_turn():
    both = {"system_prompt": "Answer.", "tool:search": "Searches."}
    proposals = Proposals()
    found, _ = searched(Rolled(most=250), proposals, seed=both)
    assert {tuple(one.changed) for one in found.candidates[1:]} == {("system_prompt",), ("tool:search",)}
    assert {tuple(records) for _, records in proposals.seen} == {("system_prompt",), ("tool:search",)}


def test_what_the_reflection_model_raises_ends_the_search_after_one_question():
    told, proposals = Told(), Proposals(said=[None, GepaError("5 answers in a row were of no use")])
    with pytest.raises(GepaError, match="in a row"):
        search(config(), SEED, TRAIN, VAL, Rolled(), proposals, told)
    assert len(proposals.seen) == 2
    assert [one.number for one in told.decided_on] == [0, 1]


def test_the_library_prints_nothing(capsys):
    searched(Rolled(most=200))
    assert capsys.readouterr() == ("", "")


def test_the_planted_optimum_is_found():
    wins = 0
    for seed in range(10):
        found, _ = searched(Rolled(seed, most=600))
        wins += by_words(found.best.texts) == by_words({"system_prompt": " ".join(WANTED)})
    assert wins >= 8


def test_where_all_prompts_are_equal_hardly_any_is_accepted():
    counts = [[one.verdict for one in searched(Rolled(seed, chance=lambda _: 0.5))[0].candidates] for seed in range(25)]
    proposals = sum(len(verdicts) - 1 for verdicts in counts)
    assert proposals > 400
    # At most 5 % of the proposals of one search; rewards of a parent are shared, so searches differ more than that.
    assert sum(verdicts.count("accepted") for verdicts in counts) / proposals <= 0.06


def test_records_are_values():
    found, _ = searched(Rolled(most=120))
    assert all(dataclasses.asdict(one)["texts"] == one.texts for one in found.candidates)
