"""What the library asks for, as calls; see `whet.gepa.search.adapter`."""

from __future__ import annotations

import pytest

pytest.importorskip("gepa")

from in_process import SEED, Proposals, Rolled, Told, examples

from whet.errors import GepaError
from whet.gepa.search.adapter import Adapter
from whet.gepa.search.history import History

TRAIN, VAL = examples("train", 6), examples("val", 4)


def records_of(scored, component):
    return [{"component": component, "answer": one.row["answer"]} for one in scored]


def begun(proposals=None, make_records=records_of, *, pass_over_settled=True):
    """An adapter whose seed has been validated, and what is behind it."""
    history, rollouts = History(Told()), Rolled()
    adapter = Adapter(history, rollouts, proposals or Proposals(), make_records, pass_over_settled=pass_over_settled)
    adapter.evaluate(VAL, dict(SEED))
    return adapter, history, rollouts


def test_the_first_validation_is_the_seeds_and_its_rewards_are_kept():
    adapter, history, rollouts = begun()
    assert rollouts.phases() == {"baseline": 4}
    assert (history.best.verdict, history.calls) == ("seed", 4)
    again = adapter.evaluate(VAL, dict(SEED))
    assert again.scores == list(history.best.val_rewards.values())
    assert len(rollouts.asked) == 4


def test_a_minibatch_is_called_anew_each_time_and_its_calls_are_the_trajectories():
    adapter, history, rollouts = begun()
    batch = adapter.evaluate(TRAIN[:3], dict(SEED))
    adapter.evaluate(TRAIN[:3], dict(SEED))
    assert rollouts.phases() == {"baseline": 4, "minibatch": 6}
    assert [one.reward for one in batch.trajectories] == batch.scores
    assert history.calls == 10
    assert adapter.make_reflective_dataset(dict(SEED), batch, ["a", "b"]) == {
        name: [{"component": name, "answer": number} for number in range(3)] for name in ("a", "b")
    }


def test_a_proposal_is_noted_and_only_what_changed_is_handed_on():
    adapter, history, _ = begun(lambda *_: {"system_prompt": "Better.", "unknown": "..."})
    assert adapter.propose_new_texts(dict(SEED), {}, ["system_prompt"]) == {"system_prompt": "Better."}
    assert history.open.texts == {"system_prompt": "Better."}
    assert history.open.parents == [history.best.id]


@pytest.mark.parametrize("proposed", [{}, dict(SEED), {"unknown": "..."}])
def test_nothing_new_is_no_proposal(proposed):
    adapter, history, _ = begun(lambda *_: proposed)
    assert adapter.propose_new_texts(dict(SEED), {}, ["system_prompt"]) == {}
    assert history.open is None


def test_library_criterion_accepts_repeated_texts_as_proposals():
    adapter, history, _ = begun(lambda *_: dict(SEED), pass_over_settled=False)
    assert adapter.propose_new_texts(dict(SEED), {}, ["system_prompt"]) == SEED
    assert history.open.changed == []


def test_reflection_error_is_hidden_from_the_library():
    proposals = Proposals(always=None, said=[GepaError("no")])
    adapter, _, _ = begun(proposals)
    assert adapter.propose_new_texts(dict(SEED), {}, ["system_prompt"]) == {}
    assert adapter.propose_new_texts(dict(SEED), {}, ["system_prompt"]) == {}
    assert isinstance(adapter.failure, GepaError)
    assert len(proposals.seen) == 1


def test_an_error_in_making_records_is_kept_too():
    def broken(scored, component):
        raise ValueError("no such column")

    adapter, _, _ = begun(make_records=broken)
    batch = adapter.evaluate(TRAIN[:3], dict(SEED))
    with pytest.raises(ValueError, match="column"):
        adapter.make_reflective_dataset(dict(SEED), batch, ["system_prompt"])
    assert isinstance(adapter.failure, ValueError)
