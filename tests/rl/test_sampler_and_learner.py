"""Sampler and learner are one policy: a dense model and a mixture of experts through whole runs of real steps."""

import asyncio
import json
import shutil
import zlib

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from scripts.tiny_model.tokenizer import build_tokenizer
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from whet.errors import ConfigError
from whet.inference.embedded import EmbeddedEngine
from whet.inference.protocol import SampleRequest, SamplingParams, Scoring
from whet.inference.weights import frozen_base
from whet.rl.config import RunConfig
from whet.rl.data.batch import TokenSequence, pack, sequences_of
from whet.rl.data.metrics import without_clock
from whet.rl.learner.config import OptimizerConfig
from whet.rl.learner.forward import decoder
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.run import run_training
from whet.rl.sections.algorithm import LossConfig
from whet.rollouts.token_rows import read_rollouts

SIZES = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
CONFIGS = {"dense": Qwen3Config(**SIZES), "experts": Qwen3MoeConfig(**SIZES, **EXPERTS)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    found = {}
    for kind, config in CONFIGS.items():
        torch.manual_seed(0)
        tokenizer = build_tokenizer()
        found[kind] = tmp_path_factory.mktemp(kind)
        AutoModelForCausalLM.from_config(config).save_pretrained(found[kind])
        tokenizer.save_pretrained(found[kind])
    return found


@pytest.fixture
def run(tmp_path, warm):
    def run(model, *, resume=False, sections=None, **algorithm):
        config = RunConfig.model_validate(
            {
                "name": "r",
                "model": str(model),
                "max_steps": 2,
                "batch_size": 8,
                "rollouts_per_example": 4,
                "learning_rate": 1e-3,
                "runs_directory": tmp_path,
                "sampling": {"max_tokens": 12},
                "algorithm": algorithm,
                "env": [{"id": "reverse-text"}],
                "eval": {"before": False, "after": False},
                "deployment": {"threads": 1},
                "checkpointing": {"save_every_n_steps": 1},
                **(sections or {}),
            }
        )
        if config.max_async_level:  # its engine and its learner start at once there
            (tmp_path / "config.toml").write_text(config.to_toml())
            warm.run("train", "run", tmp_path / "config.toml")
        else:
            assert run_training(config, resume=resume, json_output=True).state == "finished"
        lines = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
        return tmp_path / "r", [json.loads(line) for line in lines]

    return run


@pytest.mark.parametrize(
    ("model", "algorithm"),
    [("whet/tiny", {}), ("dense", {}), ("experts", {}), ("experts", {"router_replay": True})],
    ids=["whet/tiny", "dense", "experts", "experts, replayed"],
)
def test_sampler_and_learner_agree_to_rounding_before_and_after_an_update(run, models, model, algorithm):
    directory, metrics = run(models.get(model, model), **algorithm)
    assert len(metrics) == 2
    assert all(abs(line["policy/kl"]) < 1e-6 for line in metrics)
    assert all(line["policy/clip_frac"] == 0 for line in metrics)
    AutoModelForCausalLM.from_pretrained(directory / "model")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_synchronously_all_of_the_kl_is_the_engines(run, dtype):
    _, metrics = run("whet/tiny", sections={"inference": {"dtype": dtype}})
    for line in metrics:
        assert line["policy/fresh_frac"] == 1
        assert "policy/kl_stale" not in line
        assert line["policy/kl_engine"] == pytest.approx(line["policy/kl"], rel=1e-3, abs=1e-10)
        assert 0 < line["policy/logprob_diff_mean"] < line["policy/logprob_diff_max"]
        if dtype == "float32":
            assert line["policy/logprob_diff_max"] < 1e-4
        else:
            assert line["policy/kl_engine"] > 1e-6


@pytest.mark.parts
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_asynchronously_the_engines_share_stays_what_it_is_and_the_rest_is_staleness(run, dtype):
    # Few at once: weights change while a batch is sampled.
    slow = {"batch_size": 32, "max_concurrent": 8}
    sections = {"max_async_level": 1, "max_steps": 8, "inference": {"dtype": dtype}, **slow}
    _, metrics = run("whet/tiny", sections=sections)
    split = [line for line in metrics if "policy/kl_stale" in line]
    assert split, "no step had both older tokens and fresh ones to compare with"
    for line in split:
        assert line["policy/kl_engine"] + line["policy/kl_stale"] == pytest.approx(line["policy/kl"])
    for line in metrics:
        assert (line["policy/fresh_frac"] > 0) == ("policy/kl_engine" in line)
    found = [line["policy/kl_engine"] for line in metrics if "policy/kl_engine" in line]
    if dtype == "float32":  # what one of the learner's steps changes is many times as much
        assert max(found) < 1e-9 < 1e-5 < max(line["policy/kl_stale"] for line in split)
    else:
        assert max(found) > 1e-6


def test_over_a_base_that_engine_and_learner_share_they_agree_as_over_a_merged_one(run, monkeypatch):
    monkeypatch.setattr(frozen_base, "COPIED", 0)
    _, metrics = run("whet/tiny", sections={"lora": {"rank": 4}, "learning_rate": 1e-2})
    assert all(abs(line["policy/kl_engine"]) < 1e-10 for line in metrics)
    assert metrics[-1]["policy/logprob_diff_max"] < 1e-4


def test_limits_of_ratios_act_on_what_the_engine_rounded(run):
    limits = {"loss": "importance_sampling", "tis_limit": 1.0, "mis_limit": 1.01}
    _, metrics = run("whet/tiny", sections={"inference": {"dtype": "bfloat16"}}, **limits)
    for line in metrics:
        assert line["policy/tis_frac"] > 0
        assert line["policy/mis_frac"] > 0
        assert line["policy/clip_frac"] == pytest.approx(line["policy/tis_frac"] + line["policy/mis_frac"])


def test_an_adapter_of_a_mixture_of_experts_is_sampled_as_it_was_learned(run, models):
    lora = {"rank": 4, "target_modules": ["q_proj", "v_proj"], "merge": True}
    directory, metrics = run(models["experts"], sections={"lora": lora, "learning_rate": 1e-2})
    assert all(abs(line["policy/kl"]) < 1e-6 for line in metrics)
    whole, base = (AutoModelForCausalLM.from_pretrained(path) for path in (directory / "model", models["experts"]))
    moved = {name for name, p in whole.named_parameters() if not torch.equal(p, base.get_parameter(name))}
    assert moved == {f"model.layers.{i}.self_attn.{part}.weight" for i in (0, 1) for part in ("q_proj", "v_proj")}


EVERYTHING = {
    "advantage": "rloo",
    "loss": "ppo",
    "kl_coef": 0.1,
    "entropy_coef": 0.01,
    "reward_clip": (0.0, 0.1),
    "length_penalty": 0.2,
    "length_penalty_full": 12,
    "repetition_penalty": 0.1,
    "repetition_ngram": 1,
    "reward_norm": "running",
}


PASSES = {
    "minibatches": 2,
    "epochs": 2,
    "old_logprobs": "recomputed",
    "tis_limit": 2.0,
    "aggregation": "sequence_mean",
    "kl_in": "reward",
    "kl_target": 0.01,
}


FOLLOWING = {
    "loss": "clip_cov",
    "cov_share": 0.1,
    "cov_low": -9.0,
    "entropy_target": 9.0,
    "reset_reference": 1,
    "reset_optimizer": True,
}


CRITIC = {"advantage": "gae", "reward_norm": "none"}


@pytest.mark.parametrize(
    "passes",
    [{}, PASSES, FOLLOWING, CRITIC],
    ids=["one step", "several steps a batch", "a reference that follows", "a critic"],
)
def test_with_everything_switched_on_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(run, models, passes):
    """The reference and the running statistics are those of the first step, not those of the checkpoint."""
    settings = EVERYTHING | passes
    sections = {
        "optimizer": {"type": "muon", "schedule": "cosine", "min_lr_ratio": 0.1, "max_grad_norm": 0},
        "learner": {"micro_batch_tokens": 64, "activation_checkpointing": True},
    }
    directory, expected = run(models["dense"], sections=sections, **settings)
    assert expected[0]["policy/kl_ref"] == pytest.approx(0, abs=1e-9 if passes else 0)
    follows = "reset_reference" in passes
    assert all(("value/loss" in line) == (passes is CRITIC) for line in expected)
    assert [line.get("policy/kl_coef") for line in expected] == (
        [0.1, 0.1 * 0.98] if passes is PASSES else [None, None]
    )
    assert [line.get("policy/entropy_coef") for line in expected] == ([0.01, 0.015] if follows else [None, None])
    assert (expected[1]["policy/kl_ref"] > 0) != follows
    assert min(line["policy/clip_frac"] for line in expected) > 0.05 or not follows
    assert abs(expected[0]["policy/kl_engine"]) < 1e-6
    assert {"reward/length_penalty", "reward/repetition_penalty", "reward/shaped_mean"} <= expected[0].keys()
    shutil.rmtree(directory / "checkpoints" / "step_2")
    _, resumed = run(models["dense"], resume=True, sections=sections, **settings)
    assert [without_clock(line) for line in resumed] == [without_clock(line) for line in expected]


OWN_SAMPLING = """
import whet

class Own(whet.MultiTurnEnv):
    async def setup_state(self, state):
        if "rollout" in {which}:
            warm = int(state["trajectory_id"].rpartition("-")[2]) % 2
            state["sampling_args"] = {{**state["sampling_args"], "temperature": 1.5 if warm else 0.5}}

    async def get_model_response(self, state, prompt, **given):
        if "turn" in {which}:
            changes = [{turns}][len(state["trajectory"])]
            given["sampling_args"] = {{**state["sampling_args"], **changes}}
        return await super().get_model_response(state, prompt, **given)

    async def add_trajectory_step(self, state, step):
        if "pushed" in {which} and state["trajectory"]:
            step["advantage"] = 100.0
        if "earned" in {which}:
            step["reward"] = float(len(str(step["completion"])) % 5)
        await super().add_trajectory_step(state, step)

    async def env_response(self, messages, state, **kwargs):
        return [{{"role": "user", "content": "Again."}}]

def reward(completion, **kwargs):
    return 1.0 if "pushed" in {which} or "earned" in {which} else float(len(str(completion)) % 7)

def load_environment():
    rows = [{{"question": f"Say {{i}}", "answer": ""}} for i in range({rows})]
    return Own(dataset=rows, rubric=whet.Rubric(funcs=[reward]), max_turns=2)
"""


@pytest.fixture
def own_sampling(tmp_path):
    """An environment whose rollouts, or whose turns, bring sampling arguments of their own."""

    def make(*which, turns='{"temperature": 0.4}, {"temperature": 1.6}', rows=4):
        path = tmp_path / f"own_sampling_{zlib.crc32(str((tmp_path, which, turns, rows)).encode())}.py"
        path.write_text(OWN_SAMPLING.format(which=which, turns=turns, rows=rows))
        return {"env": [{"id": str(path), "name": "own"}]}

    return make


@pytest.mark.parametrize("which", ["rollout", "turn"])
def test_a_rollout_or_a_turn_is_learned_at_the_temperature_it_was_sampled_at(run, own_sampling, which):
    directory, metrics = run("whet/tiny", sections=own_sampling(which))
    assert all(abs(line["policy/kl"]) < 1e-6 for line in metrics)
    assert all(0.4 < line["sampling/temperature"] < 1.6 for line in metrics)
    row = next(read_rollouts(directory / "rollouts" / "step_000001.jsonl"))
    expected = [0.5, 0.5] if which == "rollout" else [0.4, 1.6]
    assert [turn["sampling"]["temperature"] for turn in row["turns"]] == expected


def test_groups_of_one_task_that_began_at_different_temperatures_are_learned_as_they_were_sampled(run, own_sampling):
    """Half of each batch began a version earlier, at the temperature of then; the learner has all of it at once."""
    sections = own_sampling(rows=1) | {
        "max_steps": 5,
        "rollouts_per_example": 2,
        "max_async_level": 1,
        "oversampling_factor": 0.5,
        "learning_rate": 1e-12,
        "sampling": {"max_tokens": 12, "temp_scheduler": {"start": 0.3, "end": 3.0}},
    }
    directory, metrics = run("whet/tiny", sections=sections, reward_norm="batch")
    assert all(abs(line["policy/kl"]) < 1e-6 for line in metrics)
    found = [read_rollouts(path) for path in sorted((directory / "rollouts").glob("step_*.jsonl"))]
    steps = [{turn["sampling"]["temperature"] for row in rows for turn in row["turns"]} for rows in found]
    assert max(map(len, steps)) > 1, "no batch held two temperatures"


CUTS = {"max_tokens": 12, "temperature": 1.3, "top_p": 0.7, "top_k": 20, "min_p": 0.02}


@pytest.mark.parametrize("engine_process", [False, True])
def test_within_its_cuts_the_learner_computes_what_the_sampler_drew_from(run, engine_process):
    sections = {"sampling": CUTS}
    if engine_process:  # the sets cross the wire
        sections |= {"max_async_level": 1, "learning_rate": 1e-12}
    directory, metrics = run("whet/tiny", sections=sections, renormalise_cuts=True, kl_coef=0.01)
    assert all(0.05 < line["policy/cut_mass"] < 0.5 for line in metrics)
    assert all(abs(line["policy/kl"]) < 1e-6 for line in metrics)
    rows = list(read_rollouts(directory / "rollouts" / "step_000001.jsonl"))
    turn = next(turn for row in rows for turn in row["turns"] if min(turn["kept_mass"]) < 0.9)
    within = np.array(turn["completion_logprobs"]) - np.log(turn["kept_mass"])
    np.testing.assert_allclose(turn["learner_logprobs"], within, atol=1e-4)


def test_without_renormalising_only_the_metric_tells_of_cuts(run):
    directory, metrics = run("whet/tiny", sections={"sampling": CUTS})
    assert all(line["policy/cut_mass"] > 0.05 for line in metrics)
    (row, *_) = read_rollouts(directory / "rollouts" / "step_000001.jsonl")
    np.testing.assert_allclose(row["turns"][0]["learner_logprobs"], row["turns"][0]["completion_logprobs"], atol=1e-4)


def test_a_greedy_turn_has_one_token_to_draw_and_teaches_nothing_within_it(run, own_sampling):
    directory, metrics = run(
        "whet/tiny",
        sections=own_sampling("turn", turns='{"temperature": 0}, {"temperature": 1.0}'),
        renormalise_cuts=True,
    )
    assert all(line["policy/cut_mass"] > 0 for line in metrics)
    (row, *_) = read_rollouts(directory / "rollouts" / "step_000001.jsonl")
    greedy, sampled = row["turns"]
    assert set(greedy["learner_logprobs"]) == {0.0}
    assert min(sampled["learner_logprobs"]) < -0.01


def test_advantages_of_turns_are_trained_with_and_on_record(run, own_sampling):
    """A push of a hundred on the second turn alone, in groups whose rewards teach nothing."""
    sections = own_sampling("pushed") | {"optimizer": {"max_grad_norm": 0}}
    directory, metrics = run("whet/tiny", sections=sections)
    assert metrics[0]["groups/zero_variance_frac"] == 1.0
    assert metrics[0]["optim/grad_norm"] > 1
    for row in read_rollouts(directory / "rollouts" / "step_000001.jsonl"):
        assert (row["advantage"], [turn.get("advantage") for turn in row["turns"]]) == (0.0, [None, 100.0])


def test_rewards_of_turns_are_learned_from_and_on_record(run, own_sampling):
    """In groups whose rollouts all earn the same, and sooner or later."""
    directory, metrics = run("whet/tiny", sections=own_sampling("earned"), advantage="step_returns", discount=0.5)
    assert metrics[0]["groups/zero_variance_frac"] == 1.0
    assert metrics[0]["optim/grad_norm"] > 1e-3
    rows = list(read_rollouts(directory / "rollouts" / "step_000001.jsonl"))
    earned = [[turn["reward"] for turn in row["turns"]] for row in rows]
    assert all(len(rewards) == 2 for rewards in earned)
    for start in range(0, len(rows), 4):  # a group: a return is r + (1 - r) / 2 at the first turn, 1 - r at the last
        firsts = [rewards[0] + (1 - rewards[0]) / 2 for rewards in earned[start : start + 4]]
        for row, (first, _), value in zip(rows[start : start + 4], earned[start : start + 4], firsts, strict=True):
            lengths = [len(turn["completion_ids"]) for turn in row["turns"]]
            lasts = [1 - rewards[0] for rewards in earned[start : start + 4]]
            turns = [value - np.mean(firsts), 1 - first - np.mean(lasts)]
            assert row["advantage"] == pytest.approx(np.average(turns, weights=lengths), abs=1e-6)


def test_replay_is_refused_for_a_model_without_experts(run):
    with pytest.raises(ConfigError, match="whet/tiny has no experts"):
        run("whet/tiny", router_replay=True)


def test_with_replay_the_learner_takes_the_samplers_experts_however_far_its_weights_have_moved(
    models, tmp_path, monkeypatch
):
    engine = EmbeddedEngine.from_directory(models["experts"], record_experts=True)
    prompt = list(range(50, 70))
    sample = asyncio.run(engine.sample(SampleRequest(prompt, SamplingParams(max_tokens=24, seed=1))))
    tokens = {
        "prompt_ids": prompt,
        "completion_ids": sample.ids,
        "completion_mask": [1] * len(sample.ids),
        "completion_logprobs": sample.logprobs,
        "routed_experts": sample.experts,
    }
    replayed = pack(sequences_of([{"tokens": tokens}], temperature=1.0, rollout="r"))
    tokens.pop("routed_experts")
    free = pack(sequences_of([{"tokens": tokens}], temperature=1.0, rollout="r"))
    learner = make_learner(
        models["experts"],
        optimizer=OptimizerConfig(),
        lora=None,
        max_steps=9,
        seed=0,
        publish_directory=tmp_path,
        threads=1,
    )
    chosen = []
    mix = decoder.mix_experts
    monkeypatch.setattr(decoder, "mix_experts", lambda x, which, *rest: chosen.append(which) or mix(x, which, *rest))

    def experts(batch):
        chosen.clear()
        learner.token_logprobs(batch)
        return [np.sort(which.numpy()) for which in chosen]

    recorded = np.sort(sample.experts)
    expected = [recorded[:, 0], recorded[len(prompt) - 1 :, 1]]  # the last layer runs where a token is predicted
    assert all(np.array_equal(f, e) for f, e in zip(experts(free), expected, strict=True))
    for _ in range(4):
        learner.forward_backward(free, LossConfig(loss="cross_entropy"))
        learner.optim_step(OptimParams(learning_rate=0.05, denominator=free.trained_tokens))
    assert not all(np.array_equal(f, e) for f, e in zip(experts(free), expected, strict=True))
    assert all(np.array_equal(f, e) for f, e in zip(experts(replayed), expected, strict=True))


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_logprobs_of_a_prompt_are_those_that_the_learner_computes(models, tmp_path, kind) -> None:
    prompt = [3 + (7 * number) % 500 for number in range(60)]
    request = SampleRequest(prompt, SamplingParams(max_tokens=1), scoring=Scoring(prompt=True))
    scores = asyncio.run(EmbeddedEngine.from_directory(models[kind]).sample(request)).prompt_scores
    sequence = TokenSequence(
        ids=np.array(prompt, np.int32),
        trained=np.arange(60) > 0,
        logprobs=np.zeros(60, np.float32),
        versions=np.where(np.arange(60) > 0, 0, -1).astype(np.int32),
        rollout="r",
    )
    learner = make_learner(
        models[kind],
        optimizer=OptimizerConfig(),
        lora=None,
        max_steps=1,
        seed=0,
        publish_directory=tmp_path,
        threads=1,
    )
    learned = learner.token_logprobs(pack([sequence]))
    np.testing.assert_allclose(scores.logprobs[1:], learned[1:], atol=1e-5, rtol=0)
