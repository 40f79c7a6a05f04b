"""The model that ships with the package: small, loadable by anyone, and as good as its card should say it is."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scripts.tiny_model.card import readme
from scripts.tiny_model.recipe import ARCHITECTURE, RECIPE
from scripts.tiny_model.tokenizer import build_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from whet.models.local_models import describe
from whet.models.tiny import path

SCORES = {score["environment"]: score for score in describe("whet/tiny")["scores"]}


def test_asking_where_it_is_imports_nothing_heavy() -> None:
    code = "import sys; from whet.models.tiny import path; path(); print({'torch', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_it_is_at_most_4_megabytes() -> None:
    assert sum(file.stat().st_size for file in path().iterdir()) <= 4_000_000


def test_plain_transformers_loads_it() -> None:
    model = AutoModelForCausalLM.from_pretrained(path())
    assert model.dtype == torch.bfloat16
    assert {name: getattr(model.config, name) for name in ("vocab_size", "hidden_size")} == {
        name: ARCHITECTURE[name] for name in ("vocab_size", "hidden_size")
    }
    assert model.generation_config.eos_token_id == AutoTokenizer.from_pretrained(path()).eos_token_id


def test_its_tokenizer_is_the_one_this_package_builds(tmp_path: Path) -> None:
    build_tokenizer().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (path() / name).read_bytes()


def test_its_card_is_written_from_what_was_measured() -> None:
    described = {**describe("whet/tiny"), "model": str(path())}
    assert (path() / "README.md").read_text() == readme(described)


@pytest.mark.parametrize("environment", RECIPE.shares)
def test_sampling_at_temperature_1_is_right_only_part_of_the_time(environment: str) -> None:
    assert 0.15 <= SCORES[environment]["reward"] <= 0.70
    assert SCORES[environment]["examples"] == 256


@pytest.mark.parametrize("environment", RECIPE.shares)
def test_greedy_is_better_than_sampling(environment: str) -> None:
    assert SCORES[environment]["greedy_reward"] >= SCORES[environment]["reward"] + 0.1


@pytest.mark.parametrize("environment", ["reverse-text", "alphabet-sort"])
def test_greedy_leaves_something_to_learn(environment: str) -> None:
    assert SCORES[environment]["greedy_exact_match"] <= 0.85


def test_the_four_tasks_of_the_quickstart_begin_at_or_below_0_6() -> None:
    four = [score["reward"] for name, score in SCORES.items() if name != "arithmetic"]
    assert sum(four) / 4 <= 0.60
