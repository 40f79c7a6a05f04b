"""Attention by a GPU's kernel for runs of many lengths, held to the padded blocks: on a GPU by the kernel itself, on a
CPU by one that computes what torch says the kernel does."""

from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from tests.rl.learner.test_memory import Allocations, long_sequences
from torch.nn.attention import varlen as torch_varlen
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from whet.rl.data.batch import pack
from whet.rl.learner.config import LearnerConfig, LoraConfig, OptimizerConfig
from whet.rl.learner.forward import attention
from whet.rl.learner.forward.layout import micro_batches
from whet.rl.learner.make import _Made, make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.sections.algorithm import LossConfig

CROSS_ENTROPY = LossConfig(loss="cross_entropy")


def reference_kernel(q, k, v, query_ends, key_ends, most_q, most_k, *, scale, window_size, enable_gqa):
    """`varlen_attn`, run by run: causal from the last query and the last key on, a window counted back from there."""
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert (q.dtype, k.dtype) == (v.dtype, v.dtype)
    (left, right), out = window_size, []
    assert right == 0
    spans = zip(pairwise(query_ends.tolist()), pairwise(key_ends.tolist()), strict=True)
    for (first_q, last_q), (first_k, last_k) in spans:
        queries, keys = last_q - first_q, last_k - first_k
        assert 0 < queries <= keys <= most_k
        assert queries <= most_q
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        if left >= 0:
            seen &= ~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - left - 1)
        one = [x.transpose(0, 1) for x in (q[first_q:last_q], k[first_k:last_k], v[first_k:last_k])]
        mixed = F.scaled_dot_product_attention(*one, attn_mask=seen.to(q.device), scale=scale, enable_gqa=enable_gqa)
        out.append(mixed.transpose(0, 1))
    assert (first_q, first_k) < (last_q, last_k) == (len(q), len(k))
    return torch.cat(out)


@pytest.fixture
def by_kernel(device, monkeypatch):
    """The kernel of a GPU, or what stands for it on a CPU, from when it is called on. Counts calls of the kernel."""

    def by_kernel():
        if device == "cpu":
            monkeypatch.setattr(attention, "has_kernel", lambda *_: True)
        return counted(monkeypatch, reference_kernel if device == "cpu" else torch_varlen.varlen_attn)

    return by_kernel


def counted(monkeypatch, kernel):
    calls = []

    def counting(*given, **named):
        calls.append(named)
        return kernel(*given, **named)

    monkeypatch.setattr(torch_varlen, "varlen_attn", counting)
    return calls


def by_blocks(monkeypatch):
    monkeypatch.setattr(attention, "has_kernel", lambda *_: False)


def gradients_of(learner, batch):
    output = learner.forward_backward(batch, CROSS_ENTROPY)
    return output.loss, {name: p.grad.float().cpu() for name, p in learner.weights.parameters()}


def agree(ours, theirs, most):
    assert ours[0] == pytest.approx(theirs[0], rel=most)
    for name, gradient in theirs[1].items():
        assert (ours[1][name] - gradient).norm() <= most * gradient.norm(), name


PARTS = {
    "prompts that groups share": ((3, 9), (2, 5), (1, 6)),
    "runs that share nothing": ((1, 9), (1, 5), (1, 6)),
    "one rollout": ((1, 40),),
    "a long prompt": ((4, 1500), (2, 30)),
}


@pytest.mark.parametrize("groups", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("options", [{}, {"activation_checkpointing": True}], ids=["", "recomputed"])
def test_gradients_are_those_of_padded_blocks(groups, options, device, make, make_rollouts, by_kernel, monkeypatch):
    batch = pack(make_rollouts(groups=groups))
    options = {**options, "device": device, "micro_batch_tokens": 4096}
    exact = gradients_of(make(dtype="float32", **options), batch)
    calls = by_kernel()
    if device == "cpu":
        agree(gradients_of(make(dtype="float32", **options), batch), exact, 1e-5)
        assert calls
        return
    half = {**options, "dtype": "bfloat16", "weights_dtype": "bfloat16"}
    by_the_kernel = gradients_of(make(**half), batch)
    assert calls
    agree(by_the_kernel, exact, 0.05)
    by_blocks(monkeypatch)
    agree(by_the_kernel, gradients_of(make(**half), batch), 0.02)


@pytest.mark.parametrize("window", [1, 7, 64])
@pytest.mark.parametrize("groups", PARTS.values(), ids=PARTS)
def test_a_window_ends_where_that_of_padded_blocks_does(window, groups, device, make_rollouts, by_kernel):
    (layout,) = micro_batches(pack(make_rollouts(groups=groups)), 4096)
    tokens, dtype = len(layout.tokens), torch.float32 if device == "cpu" else torch.bfloat16
    torch.manual_seed(1)
    q, k, v = (torch.randn(tokens, heads, 8).to(device, dtype) for heads in (4, 2, 2))
    blocks = (*layout.silent, *layout.speaking)
    padded = attention.planner(tokens, 4, 2, 8, torch.device("cpu"))(blocks, window)
    expected = attention.attention(*(x.cpu().float() for x in (q, k, v)), padded)
    by_kernel()
    runs = attention.Runs.of(blocks, tokens, torch.device(device), window)
    found = attention.attention(q, k, v, runs)
    torch.testing.assert_close(found.float().cpu(), expected, atol=1e-5 if device == "cpu" else 0.03, rtol=0)


def test_runs_that_share_nothing_are_read_where_they_are(make_rollouts):
    (layout,) = micro_batches(pack(make_rollouts(groups=PARTS["one rollout"])), 4096)
    tokens = len(layout.tokens)
    whole = attention.Runs.of(layout.silent, tokens, torch.device("cpu"), None)
    x = torch.randn(tokens, 2, 8)
    assert whole.read(x).data_ptr() == x.data_ptr()


def test_padding_behind_the_runs_attends_to_nothing(device, make_rollouts, by_kernel):
    by_kernel()
    (layout,) = micro_batches(pack(make_rollouts()), 4096)
    tokens = len(layout.tokens)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v = (torch.randn(tokens + 5, heads, 8).to(device, dtype) for heads in (4, 2, 2))
    runs = attention.Runs.of((*layout.silent, *layout.speaking), tokens + 5, torch.device(device), None)
    found = attention.attention(q, k, v, runs)
    assert found.shape == (tokens + 5, 32)
    assert (found[tokens:] == 0).all()


def test_torch_aligns_a_causal_kernel_at_the_last_query_and_key():
    """What the reference kernel assumes, by torch's own words for it."""
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 5, 8)
    aligned = F.scaled_dot_product_attention(q, k, k, attn_mask=causal_lower_right(3, 5), scale=1.0)
    flat = [x[0].transpose(0, 1) for x in (q, k, k)]
    ends = [torch.tensor([0, n], dtype=torch.int32) for n in (3, 5)]
    ours = reference_kernel(*flat, *ends, 3, 5, scale=1.0, window_size=(-1, 0), enable_gqa=False)
    torch.testing.assert_close(ours.transpose(0, 1)[None], aligned)


def test_the_kernel_is_for_half_precision_on_a_gpu():
    cuda = torch.device("cuda", 0)
    assert not attention.has_kernel(torch.device("cpu"), torch.bfloat16, 64)
    assert not attention.has_kernel(cuda, torch.float32, 64)
    assert not attention.has_kernel(cuda, torch.bfloat16, 260)
    assert not attention.has_kernel(cuda, torch.bfloat16, 30)


@pytest.mark.gpu
def test_a_gpu_of_today_has_the_kernel():
    if torch.cuda.get_device_capability() < attention.AMPERE:
        pytest.skip("this GPU is older than the kernel")
    assert attention.has_kernel(torch.device("cuda", 0), torch.bfloat16, 128)


@pytest.mark.parametrize("prompt", [100, 16_000])
def test_no_tensor_of_a_step_over_16k_tokens_is_as_large_as_scores_of_them(
    prompt, tmp_path, stand_in_device, monkeypatch
):
    shape = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 1 << 15}
    monkeypatch.setattr(attention, "has_kernel", lambda *_: True)  # torch says what it returns without a GPU
    monkeypatch.setattr("whet.rl.learner.make.choose_device", lambda *_: "meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # there is none for meta
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    options = {"optimizer": OptimizerConfig(type="sgd"), "lora": None, "max_steps": 1, "seed": 0}
    tokens = 16_384
    calls = counted(monkeypatch, torch_varlen.varlen_attn)
    batch = long_sequences([tokens - prompt] * (1 if prompt == 100 else 4), prompt)
    with stand_in_device():
        with _disable_current_modes():
            AutoModelForCausalLM.from_config(Qwen3Config(**shape, **heads)).save_pretrained(tmp_path)
        computation = LearnerConfig(micro_batch_tokens=1 << 15)
        learner = make_learner(tmp_path, computation=computation, publish_directory=tmp_path, **options)
        with Allocations() as allocations:
            output = learner.forward_backward(batch, LossConfig())
            learner.optim_step(OptimParams(learning_rate=1e-4, denominator=output.tokens))
    assert calls
    read = 4 * tokens  # at most: by four answers to one prompt
    widest = max(61, 24, 2 * 8)  # words, the feed-forward layer, heads
    assert 4 * tokens <= allocations.largest <= 4 * max(tokens * widest, read * 2 * 8) < 4 * tokens * tokens / 100


QWEN2_05B = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}


@pytest.mark.parts
@pytest.mark.parametrize(("recompute", "most"), [(False, 41.5), (True, 5.5)], ids=["kept", "recomputed"])
def test_the_peak_of_16k_tokens_with_lora_at_the_shape_of_half_a_billion_parameters(
    recompute, most, tmp_path, stand_in_device, monkeypatch
):
    """Activations and gradients beside the model, in GiB; measured: 40.8 and 5.4. Computed as on a GPU, but in float32,
    by a device without numbers: sizes are exact, and nothing is held."""
    monkeypatch.setattr(attention, "has_kernel", lambda *_: True)
    monkeypatch.setattr("whet.rl.learner.make.choose_device", lambda *_: "meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    tokens = 16_384
    batch = long_sequences([tokens - 100], 100)
    config = Qwen2Config(**QWEN2_05B)
    config.save_pretrained(tmp_path)
    with stand_in_device():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config).requires_grad_(False)
        monkeypatch.setattr("whet.rl.learner.make._made", lambda *_, **__: _Made(model))
        learner = make_learner(
            tmp_path,
            optimizer=OptimizerConfig(type="sgd"),
            lora=LoraConfig(rank=16),
            max_steps=1,
            seed=0,
            publish_directory=tmp_path,
            computation=LearnerConfig(micro_batch_tokens=tokens, activation_checkpointing=recompute),
        )
        with Allocations() as allocations:
            output = learner.forward_backward(batch, LossConfig())
            learner.optim_step(OptimParams(learning_rate=1e-4, denominator=output.tokens))
    assert not [shape for shape in allocations.shapes if sum(size >= tokens // 2 for size in shape) > 1]
    largest_matrix = 4 * QWEN2_05B["vocab_size"] * QWEN2_05B["hidden_size"]  # the output layer's, read in parts
    assert allocations.largest <= largest_matrix
    assert allocations.peak <= most * 2**30
