"""Several adapters in one pass: each bit for bit what it is alone, whatever the others are."""

import json
import math

import gguf
import numpy as np
import pytest
import torch
from peft import PeftModel
from tests.inference.weights import gguf_files
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig, Phi3Config, Qwen3MoeConfig

from whet.errors import ConfigError, ModelLoadError, RunError, TrainingError
from whet.inference.model_names import resolve_model
from whet.rl.learner.adapters import logits
from whet.rl.learner.adapters.work import AdamParams, AdapterOutput, AdapterSpec, AdapterWork, Datum
from whet.rl.learner.config import LearnerConfig
from whet.rl.learner.make import make_bank

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")
SPECS = {
    "wide": AdapterSpec(8, ALL, seed=1),
    "attention": AdapterSpec(3, ALL[:4], alpha=5.0, seed=2),
    "mlp": AdapterSpec(16, ALL[4:7], seed=3, dropout=0.3),
    "head": AdapterSpec(1, ("lm_head",), seed=4),
    "dropped": AdapterSpec(4, ("q_proj", "lm_head"), seed=5, dropout=0.5),
}
STEP = AdamParams(learning_rate=0.02, weight_decay=0.1, grad_clip_norm=1.0)


def cross_entropy(logprobs, inputs):
    return -(inputs["weights"] * logprobs).sum(), {"tokens": (inputs["weights"] != 0).sum()}


def datum(rng, length, *, targets=None, prefix=()):
    shape = (length, targets) if targets else (length,)
    ids = [*prefix, *rng.integers(0, 61, length).tolist()][:length]
    inputs = {
        "target_tokens": rng.integers(0, 61, shape),
        "weights": rng.normal(size=shape).astype(np.float32),
    }
    return Datum(ids, inputs)


def works_of(seed):
    """One of each adapter: lengths from 1 on, equal beginnings, several targets of a token, negative weights."""
    rng = np.random.default_rng(seed)
    works = []
    for name in SPECS:
        prefix = rng.integers(0, 61, 9).tolist()
        data = [datum(rng, int(n)) for n in rng.integers(1, 40, rng.integers(1, 4))]
        data += [datum(rng, 9 + n, prefix=prefix) for n in range(3)] + [datum(rng, 7, targets=3)]
        works.append(AdapterWork(name, data, cross_entropy))
    return works


@pytest.fixture
def bank(model_dir):
    return new_bank(model_dir)


def new_bank(model_dir, **computation):
    torch.set_num_threads(1)
    return make_bank(model_dir, computation=LearnerConfig(device="cpu", dtype="float32", **computation))


def gradient(bank, name):
    kept = bank._adapters[name].gradient
    return None if kept is None else kept.clone()


def assert_same(left: AdapterOutput, right: AdapterOutput):
    assert isinstance(left, AdapterOutput), left
    assert isinstance(right, AdapterOutput), right
    assert (left.loss, left.sums) == (right.loss, right.sums)
    assert all(map(np.array_equal, left.logprobs, right.logprobs))
    assert [array.shape for array in left.logprobs] == [array.shape for array in right.logprobs]


def trained(bank, rounds, *, together, names=tuple(SPECS), params=STEP):
    """Outputs by adapter and round, and what was trained."""
    for name in names:
        bank.create(name, SPECS[name])
    outputs, gradients = {name: [] for name in names}, {name: [] for name in names}
    for number in range(rounds):
        works = [work for work in works_of(number) if work.adapter in names]
        for calls in [works] if together else [[work] for work in works]:
            for work, output in zip(calls, bank.forward_backward(calls), strict=True):
                outputs[work.adapter].append(output)
        for name in names:
            gradients[name].append(gradient(bank, name))
            assert bank.optim_step(name, params)["grad_norm"] > 0
    return outputs, gradients, {name: bank._adapters[name].flat.detach().clone() for name in names}


@pytest.mark.parametrize("threads", [1, 2])
def test_mixed_work_is_bitwise_what_it_is_alone(model_dir, threads):
    mixed_bank, own_bank = new_bank(model_dir), new_bank(model_dir)
    torch.set_num_threads(threads)
    mixed, alone = trained(mixed_bank, 3, together=True), trained(own_bank, 3, together=False)
    torch.set_num_threads(1)
    for name in SPECS:
        for left, right in zip(mixed[0][name], alone[0][name], strict=True):
            assert_same(left, right)
        assert all(map(torch.equal, mixed[1][name], alone[1][name]))
        assert torch.equal(mixed[2][name], alone[2][name])


def test_work_in_small_pieces_is_bitwise_what_it_is_alone(model_dir):
    small = {"micro_batch_tokens": 48, "activation_checkpointing": True}
    mixed = trained(new_bank(model_dir, **small), 2, together=True)
    alone = trained(new_bank(model_dir, **small), 2, together=False)
    whole = trained(new_bank(model_dir), 2, together=True)
    for name, spec in SPECS.items():
        assert torch.equal(mixed[2][name], alone[2][name])
        if not spec.dropout:  # which is drawn for each piece
            torch.testing.assert_close(mixed[1][name][0], whole[1][name][0], rtol=1e-4, atol=1e-5)


def test_logits_in_chunks_are_bitwise_what_they_are_alone(model_dir, monkeypatch):
    whole = trained(new_bank(model_dir), 2, together=True)
    monkeypatch.setattr(logits, "elements", lambda like: 61 * 48)  # three tiles: some pieces have more
    mixed = trained(new_bank(model_dir), 2, together=True)
    alone = trained(new_bank(model_dir), 2, together=False)
    for name, spec in SPECS.items():
        assert torch.equal(mixed[2][name], alone[2][name])
        if not (spec.dropout and "lm_head" in spec.targets):  # dropped from the hidden states of each chunk
            torch.testing.assert_close(mixed[1][name][0], whole[1][name][0], rtol=1e-4, atol=1e-5)


def test_logprobs_and_gradients_are_those_of_peft(bank, model_dir, tmp_path):
    torch.manual_seed(3)
    bank.create("wide", SPECS["wide"])
    adapter = bank._adapters["wide"]
    with torch.no_grad():
        adapter.flat.add_(0.05 * torch.randn_like(adapter.flat))
    work = works_of(0)[0]
    (output,) = bank.forward_backward([work])
    bank.export("wide", tmp_path / "exported")
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path / "exported", is_trainable=True)
    total = 0.0
    for one, logprobs in zip(work.data, output.logprobs, strict=True):
        targets = torch.tensor(one.inputs["target_tokens"]).view(len(one.ids), -1)
        theirs = model(torch.tensor([one.ids])).logits[0].log_softmax(-1).gather(1, targets)
        np.testing.assert_allclose(logprobs, theirs.detach().view(logprobs.shape).numpy(), atol=1e-5)
        total = total - (torch.tensor(one.inputs["weights"]).view_as(theirs) * theirs).sum()
    total.backward()
    assert output.loss == pytest.approx(total.item(), rel=1e-5)
    named = dict(model.named_parameters())
    for layer, pair in adapter.views(adapter.gradient).items():
        for letter, ours in zip("AB", pair, strict=True):
            theirs = named[f"base_model.model.{layer}.lora_{letter}.default.weight"].grad
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5 * theirs.abs().max().item())


def test_a_step_is_adamw_of_torch(bank):
    bank.create("wide", SPECS["wide"])
    adapter = bank._adapters["wide"]
    theirs = torch.nn.Parameter(adapter.flat.detach().clone())
    theirs_optimizer = torch.optim.AdamW([theirs])
    for number, params in enumerate([STEP, AdamParams(0.5, 0.5, 0.6, 1e-3)]):
        bank.forward_backward(works_of(number)[:1])
        theirs.grad = gradient(bank, "wide")
        norm = theirs.grad.norm()
        if params.grad_clip_norm:
            theirs.grad *= params.grad_clip_norm / norm
        theirs_optimizer.param_groups[0].update(
            lr=params.learning_rate,
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            weight_decay=params.weight_decay,
        )
        theirs_optimizer.step()
        assert bank.optim_step("wide", params) == {"grad_norm": pytest.approx(norm.item())}
        torch.testing.assert_close(adapter.flat, theirs)
        assert bank.version("wide") == number + 1
    before = adapter.flat.detach().clone()
    assert bank.optim_step("wide", STEP) == {"grad_norm": 0.0}  # the gradients were cleared
    assert torch.equal(adapter.flat, before)


def bad_loss(kind):
    def loss(logprobs, inputs):
        if kind == "raises":
            return inputs["advantages"].sum() * logprobs.sum(), {}
        if kind == "infinite gradient":
            return (logprobs - logprobs.detach()).abs().pow(0.5).sum(), {}
        return (logprobs * math.inf).sum(), {}

    return loss


@pytest.mark.parametrize("kind", ["infinite loss", "infinite gradient", "raises", "weights", "tokens", "shape"])
def test_what_is_wrong_with_one_work_touches_no_other(model_dir, kind):
    bank, alone = new_bank(model_dir), new_bank(model_dir)
    names = ("wide", "head", "attention")
    for each in (bank, alone):
        trained(each, 1, together=False, names=names)
    works = [work for work in works_of(5) if work.adapter in names]
    earlier = [works_of(6)[0]]
    bank.forward_backward(earlier)
    before, victim = gradient(bank, "wide"), works[0]
    if kind == "weights":
        bank._adapters["wide"].flat.detach()[::7] = math.nan
    elif kind == "tokens":
        works[0] = AdapterWork("wide", [Datum([1, 61], victim.data[0].inputs)], cross_entropy)
    elif kind == "shape":
        works[0] = AdapterWork("wide", [Datum([1, 2], {"target_tokens": np.array([1, 2, 3])})], cross_entropy)
    else:
        works[0] = AdapterWork("wide", victim.data, bad_loss(kind))
    error, *others = bank.forward_backward(works)
    assert isinstance(error, TrainingError)
    assert "adapter 'wide'" in str(error)
    assert torch.equal(gradient(bank, "wide"), before)
    for work, output in zip(works[1:], others, strict=True):
        assert_same(output, alone.forward_backward([work])[0])
        assert torch.equal(gradient(bank, work.adapter), gradient(alone, work.adapter))


def test_a_pass_that_fails_is_done_again_for_each_work_without_the_others(model_dir, monkeypatch):
    bank, alone = new_bank(model_dir), new_bank(model_dir)
    for each in (bank, alone):
        for name in SPECS:
            each.create(name, SPECS[name])
    works = works_of(0)
    works[0] = AdapterWork("wide", [*works[0].data, datum(np.random.default_rng(9), 300)], cross_entropy)
    backward = torch.autograd.backward

    def failing(outputs, slopes):
        backward(outputs, slopes)  # gradients are there in part
        if sum(len(slope) for slope in slopes) > 300:
            raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "backward", failing)
        error, *others = bank.forward_backward(works)
    assert "RuntimeError: no memory" in str(error)
    assert gradient(bank, "wide") is None
    for work, output in zip(works[1:], others, strict=True):
        assert_same(output, alone.forward_backward([work])[0])
        assert torch.equal(gradient(bank, work.adapter), gradient(alone, work.adapter))


def test_forward_alone_adds_no_gradient_and_has_no_dropout(bank):
    for name in ("wide", "dropped"):
        bank.create(name, SPECS[name])
    wide, *_, dropped = works_of(0)
    only = AdapterWork("dropped", dropped.data, cross_entropy, backward=False)
    _, first = bank.forward_backward([wide, only])
    assert gradient(bank, "dropped") is None
    assert gradient(bank, "wide") is not None
    assert_same(first, bank.forward_backward([only])[0])
    with_dropout = bank.forward_backward([dropped])[0]
    assert with_dropout.loss == pytest.approx(first.loss)  # the adapter adds nothing yet
    bank.optim_step("dropped", STEP)
    assert bank.forward_backward([dropped])[0].loss != bank.forward_backward([dropped])[0].loss


@pytest.mark.parametrize("name", ["dropped", "wide"])
def test_a_saved_adapter_goes_on_bit_for_bit(bank, model_dir, tmp_path, name):
    trained(bank, 2, together=True, names=(name,))
    bank.save(name, tmp_path / "state")
    bank.save(name, tmp_path / "state")  # replaces it
    other = new_bank(model_dir)
    other.load("copy", tmp_path / "state")
    assert other.names == ["copy"]
    for number in range(2, 4):
        (work,) = [work for work in works_of(number) if work.adapter == name]
        (left,) = bank.forward_backward([work])
        (right,) = other.forward_backward([AdapterWork("copy", work.data, work.loss)])
        assert_same(left, right)
        bank.optim_step(name, STEP)
        other.optim_step("copy", STEP)
    assert torch.equal(bank._adapters[name].flat, other._adapters["copy"].flat)
    assert other.version("copy") == 4
    bank.load(name, tmp_path / "state", optimizer=False)
    assert bank.version(name) == 0


def test_damaged_and_foreign_states_are_refused(bank, tmp_path):
    bank.create("wide", SPECS["wide"])
    bank.create("head", SPECS["head"])
    bank.save("wide", tmp_path / "wide", optimizer=False)
    before = bank._adapters["wide"].flat.detach().clone()
    with pytest.raises(RunError, match="without its optimiser"):
        bank.load("wide", tmp_path / "wide")
    with pytest.raises(RunError, match="rank = 8"):
        bank.load("head", tmp_path / "wide", optimizer=False)
    weights = tmp_path / "wide" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(RunError, match="damaged"):
        bank.load("wide", tmp_path / "wide", optimizer=False)
    with pytest.raises(RunError, match="damaged"):
        bank.load("new", tmp_path / "wide", optimizer=False)
    assert bank.names == ["wide", "head"]
    assert torch.equal(bank._adapters["wide"].flat, before)


def test_adapters_that_cannot_be(bank):
    with pytest.raises(ConfigError, match=r"no layer named nothing. Targets are of .*lm_head, o_proj"):
        bank.create("a", AdapterSpec(4, ("q_proj", "nothing")))
    for wrong in ({"rank": 0}, {"alpha": -1.0}, {"alpha": math.nan}, {"dropout": 1.0}, {"targets": ()}):
        with pytest.raises(ConfigError, match="adapter 'a'"):
            bank.create("a", AdapterSpec(**{"rank": 2, "targets": ("q_proj",)} | wrong))
    bank.create("a", SPECS["wide"])
    with pytest.raises(ConfigError, match="already"):
        bank.create("a", SPECS["wide"])
    with pytest.raises(ConfigError, match="beta1 = 1"):
        bank.optim_step("a", AdamParams(beta1=1.0))
    bank.remove("a")
    with pytest.raises(RunError, match="there are: none"):
        bank.optim_step("a", STEP)
    (error,) = bank.forward_backward([AdapterWork("a", [], cross_entropy)])
    assert isinstance(error, RunError)


def test_bytes_are_those_that_training_holds(bank):
    spec = SPECS["wide"]
    trained(bank, 1, together=True, names=("wide",))
    bank.forward_backward(works_of(1)[:1])
    adapter = bank._adapters["wide"]
    held = [adapter.flat, adapter.gradient, *(t for t in adapter._moments().values() if t.numel() > 1)]
    assert bank.bytes_of(spec) == sum(tensor.nbytes for tensor in held)


def test_what_targets_may_be(bank):
    assert bank.targets == {"attention": ALL[:4], "mlp": ALL[4:7], "unembedding": ALL[7:]}


def test_an_export_is_sealed_only_when_saved(bank, tmp_path):
    bank.create("head", SPECS["head"])
    bank.export("head", tmp_path / "exported")
    assert not (tmp_path / "exported" / "manifest.json").exists()
    assert json.loads((tmp_path / "exported" / "adapter_config.json").read_text())["target_modules"] == ["lm_head"]


BASES = {
    "llama with biases": LlamaConfig(**SIZES, tie_word_embeddings=False, attention_bias=True),
    "window": Gemma3TextConfig(**SIZES, sliding_window=8, query_pre_attn_scalar=8, tie_word_embeddings=True),
    "fused": Phi3Config(**SIZES, tie_word_embeddings=False, pad_token_id=0),
    "experts": Qwen3MoeConfig(**SIZES, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2),
}


@pytest.mark.parametrize("kind", BASES)
def test_bases_of_other_families(kind, tmp_path):
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(BASES[kind]).save_pretrained(tmp_path)
    bank, own = new_bank(tmp_path), new_bank(tmp_path)
    everything = [target for targets in bank.targets.values() for target in targets]
    for each in (bank, own):
        each.create("wide", AdapterSpec(4, tuple(everything)))
        each.create("head", AdapterSpec(2, (everything[0], "lm_head")))
    for number in range(2):
        works = [work for work in works_of(number) if work.adapter in ("wide", "head")]
        for work, mixed in zip(works, bank.forward_backward(works), strict=True):
            (alone,) = own.forward_backward([work])
            if kind == "experts":  # whose products have as many rows as are routed to each
                assert mixed.loss == pytest.approx(alone.loss, rel=1e-5)
                torch.testing.assert_close(gradient(bank, work.adapter), gradient(own, work.adapter))
            else:
                assert_same(mixed, alone)
                assert torch.equal(gradient(bank, work.adapter), gradient(own, work.adapter))
            for each in (bank, own):
                each.optim_step(work.adapter, STEP)


def test_adapters_of_stacked_experts_are_refused(tmp_path):
    AutoModelForCausalLM.from_config(BASES["experts"]).save_pretrained(tmp_path)
    bank = new_bank(tmp_path)
    assert bank.targets["mlp"] == ()
    with pytest.raises(ConfigError, match="no layer named down_proj"):
        bank.create("a", AdapterSpec(2, ("down_proj",)))


def test_a_base_in_bfloat16_and_one_in_blocks(bank, model_dir, tmp_path, monkeypatch):
    half = make_bank(model_dir, computation=LearnerConfig(device="cpu", dtype="bfloat16", base_dtype="bfloat16"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gguf_files.write(tmp_path / "model.gguf", "llama", gguf.GGMLQuantizationType.Q4_1, tied=True)
    directory = resolve_model(str(tmp_path / "model.gguf"))
    computation = LearnerConfig(device="cpu", dtype="float32")
    packed, dense = (make_bank(directory, computation=computation, base=base) for base in ("packed", "dense"))
    for one, other, tolerance in ((half, bank, 0.1), (packed, dense, 1e-5)):
        for name in ("wide", "attention"):
            for each in (one, other):
                each.create(name, SPECS[name])
        works = works_of(3)[:2]
        for work, left, right in zip(works, one.forward_backward(works), other.forward_backward(works), strict=True):
            assert left.loss == pytest.approx(right.loss, rel=tolerance, abs=tolerance)
            theirs = gradient(other, work.adapter)
            assert (gradient(one, work.adapter) - theirs).norm() < tolerance * theirs.norm()
            one.optim_step(work.adapter, STEP)


def test_a_family_of_transformers_alone_is_refused(tmp_path):
    AutoModelForCausalLM.from_config(
        GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    ).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="own forward pass"):
        make_bank(tmp_path)
