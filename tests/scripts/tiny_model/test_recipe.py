"""The recipe, on a few demonstrations and steps: what it imitates, that it repeats, and what it leaves behind."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scripts.tiny_model.experts import EXPERTS
from scripts.tiny_model.recipe import (
    RECIPE,
    batches,
    build_tiny,
    demonstrate,
    make_demonstrations,
    train,
    write_untrained,
)
from scripts.tiny_model.tokenizer import build_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

import whet
from whet.errors import WhetError
from whet.models.local_models import describe

TOKENIZER = build_tokenizer()


def quiet(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


SHORT = replace(RECIPE, steps=2, batch_size=4, demonstrations=20, examples=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(tmp_path_factory.mktemp("models") / "tiny", recipe=SHORT)


def asks(text: str, row: dict[str, Any]) -> bool:
    """Whether a conversation is about the task of a dataset row."""
    turns = (row.get("info") or {}).get("turns")
    said = ["\n".join(names) for names in turns] if turns else [row["prompt"][-1]["content"]]
    return all(f"\n{each}<|im_end|>\n<|im_start|>assistant" in text for each in said)


@pytest.mark.parametrize("env_id", EXPERTS)
def test_only_training_tasks_are_demonstrated(env_id: str) -> None:
    env = whet.load_environment(env_id, num_train=40, num_eval=40)
    sequences = demonstrate(env, EXPERTS[env_id], TOKENIZER, stop=40, seed=0)
    shown = [TOKENIZER.decode(sequence.ids) for sequence in sequences]
    assert all(asks(text, row) for text, row in zip(shown, env.get_dataset(), strict=True))
    # A guess-number prompt names the range and not the number, and the same range is drawn on both sides.
    if env_id != "guess-number":
        assert not any(asks(text, row) for text in shown for row in env.get_eval_dataset())


@pytest.mark.parametrize("env_id", EXPERTS)
def test_an_expert_that_never_errs_earns_everything(env_id: str) -> None:
    env = whet.load_environment(env_id, num_train=20)
    expert = replace(EXPERTS[env_id], skill=1.0)
    sequences = demonstrate(env, expert, TOKENIZER, stop=20, seed=0)
    assert len(sequences) == 20  # one unbroken sequence for each rollout


@pytest.mark.parametrize("env_id", EXPERTS)
def test_only_what_the_expert_wrote_carries_loss(env_id: str) -> None:
    env = whet.load_environment(env_id, num_train=10)
    end = TOKENIZER.eos_token_id
    for sequence in demonstrate(env, EXPERTS[env_id], TOKENIZER, stop=10, seed=0):
        text = TOKENIZER.decode(sequence.ids[sequence.trained])
        assert "user" not in text
        assert "<|im_start|>" not in text
        turns = TOKENIZER.decode(sequence.ids).count("<|im_start|>assistant\n")
        assert np.count_nonzero(sequence.ids[sequence.trained] == end) == turns


def test_a_share_of_demonstrations_is_shown_the_empty_thinking_block() -> None:
    env = whet.load_environment("reverse-text", num_train=50)
    sequences = demonstrate(env, EXPERTS["reverse-text"], TOKENIZER, stop=50, seed=0, without_thinking=0.5)
    blocks = [TOKENIZER.decode(sequence.ids).count("<think>\n\n</think>\n\n") for sequence in sequences]
    assert 10 < sum(blocks) < 40


def test_both_stages_hold_their_share_of_every_environment() -> None:
    first, second = make_demonstrations(replace(RECIPE, demonstrations=200), 0, quiet)
    assert (len(first), len(second)) == (100, 100)
    for stage in (first, second):
        named = [sequence.rollout.split()[0] for sequence in stage]
        assert {env_id: named.count(env_id) for env_id in RECIPE.shares} == pytest.approx(
            {env_id: 100 * share for env_id, share in RECIPE.shares.items()}, abs=1
        )


def test_every_pass_over_the_demonstrations_has_a_new_order() -> None:
    env = whet.load_environment("reverse-text", num_train=10)
    sequences = demonstrate(env, EXPERTS["reverse-text"], TOKENIZER, stop=9, seed=0)
    stream = batches(sequences, 4, seed=0)
    passes = [[sequence.rollout for _ in range(2) for sequence in next(stream)] for _ in range(2)]
    assert passes[0] != passes[1]
    assert all(len(set(each)) == 8 for each in passes)


def test_the_same_seed_gives_the_same_weights(built: Path, tmp_path: Path) -> None:
    write_untrained(tmp_path / "begin", seed=0)
    stages = make_demonstrations(SHORT, 0, quiet)
    train(tmp_path / "begin", tmp_path / "again", stages, SHORT, 0, quiet)
    first, second = (load_file(path / "model.safetensors") for path in (built, tmp_path / "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_imitation_changes_the_weights(built: Path, tmp_path: Path) -> None:
    write_untrained(tmp_path, seed=0)
    untrained, trained = (load_file(path / "model.safetensors") for path in (tmp_path, built))
    assert not torch.equal(untrained["model.embed_tokens.weight"].bfloat16(), trained["model.embed_tokens.weight"])


def test_plain_transformers_loads_what_was_built(built: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(built)
    tokenizer = AutoTokenizer.from_pretrained(built)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert model.dtype == torch.bfloat16
    assert model.generate(**ids, max_new_tokens=2).shape[1] == ids["input_ids"].shape[1] + 2


def test_the_card_holds_a_score_for_every_environment(built: Path) -> None:
    scores = json.loads((built / "card.json").read_text())["scores"]
    assert [score["environment"] for score in scores] == list(RECIPE.shares)
    assert describe(built)["scores"] == scores


def test_a_directory_with_files_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(WhetError, match="not an empty directory"):
        build_tiny(tmp_path, recipe=SHORT)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
