"""What the parts of a run hold in memory, in bytes. Pure, but for sizes of files.

    parameters    V H (twice where the head is not tied) + L (H (2 W + 2 K) + 3 H I + norms) + H    + biases
    weights       sampler: P x 4 bytes (2 in bfloat16); learner: P x 4 (2 with weights_dtype, or of an adapter's base
                  with base_dtype bfloat16), and 4 for each of an adapter; handed over in files: three of them, two to
                  an embedded engine. One that computes on a CPU samples from the newest, so one comes on top
    masters       with weights_dtype bfloat16 4 x trained parameters
    gradients     4 x trained parameters
    optimiser     adamw 8, sgd 4 x trained parameters; muon 4 of matrices in layers, 8 of the rest
    KV cache      sampler: rollouts in flight x (prompt + max_tokens) x 2 L K x 4 bytes (2 in bfloat16); later turns
                  come on top. The prompt is the longest of the training tasks, where they are loaded
    taking turns  with colocate the device holds what learning or what sampling takes, whichever is more. A learner on a
                  GPU moves weights, masters and optimiser to host memory meanwhile; one on a CPU keeps them. Files are
                  handed over once
    adapters      an embedded engine samples with the learner's base, which a process of its own shares where the file
                  has base_dtype; ranks, which divide it, share nothing of it. A small base, one of experts, and one
                  that takes turns: it keeps the file mapped, merges in float32 (4 x parameters of layers) and packs new
                  weights while the old ones sample; a learner whose base is bfloat16 maps it once more. Of a packed
                  base engine and learner have the GGUF file mapped, and nothing else of it; of one in nf4 4.5 bits a
                  parameter of layers (int8: 8), and the file's own embeddings
    processes     Python, torch and other libraries with what malloc keeps: 235 MiB of the run, 85 more with the
                  learner in it; 205 of an engine, 255 of a learner, 32 of a worker of environments, each in a process
                  of its own; files of libraries, which all of them share, 115; 1.4 GiB of a vLLM server on its host
    heaps         on a CPU: of the learner 0.1 x activations with an adapter on a dense base, 1.2 on one of experts or a
                  tiny one (16 M), 0.33 on one in blocks, 0.4 where all weights learn; of an embedded engine 3 x KV
                  cache, at most 256 MiB (128 beside an adapter's learner). In one process both use the same heap in
                  turn: of cache and activations, each with its heap, the larger counts
    loading       nothing more: ranks read their own rows, adapters' bases come tensor by tensor, and the float32 that a
                  learner of all weights on a GPU reads on its host is gone when the first files are handed over
    activations   learner: tokens of a micro-batch x (L (4 H + 4 I + 4 W + 3 K + heads x length) + 2 H) x 4 bytes; with
                  activation checkpointing x (L H + that of one layer + 2 H). The length is that of prompt and
                  max_tokens, or in fine-tuning that of the longest sequence. Where tokens x V are few enough for one
                  piece, 2 V more. Each rank has its own. With experts, 2 H more in a layer for each that a token goes
                  to. In bfloat16 it is half, but for 3 H of a layer's 4 H, and the ends

Each vLLM server that is started holds weights of its own; those of base_url are not counted. Where the config asks for
more GPUs than are here, it is estimated for a machine that has them.

V tokens of the vocabulary, H hidden size, I intermediate size (of all experts for parameters, of those that a token
goes to for activations), L layers, W and K the widths of all query and of all key heads. The scores of attention, heads
x length, are held up to a length of 1024. Data of environments is not in it. Fine-tuning is estimated in
`plan.py`, by the same parts. docs/design/log.md has what runs used.
"""

from __future__ import annotations

from collections.abc import Mapping

from whet.inference.architecture import COPIED, Architecture
from whet.inference.loading import base_of_adapter, shares_base
from whet.inference.model_names import on_this_machine
from whet.inference.weights.gguf_cache import source_of
from whet.rl.config import RunConfig
from whet.rl.learner.config import EAGER_KEYS, LOGITS_AT_ONCE, LoraConfig
from whet.rl.sections.inference import InferenceConfig
from whet.rl.sections.training import TrainingConfig
from whet.rl.sft.config import SftConfig

WEIGHTS, CACHE, HANDED_OVER = "sampler: weights", "sampler: KV cache", "handed over"
MAPPED, MERGED, MOVED = "base, mapped", "adapter merged in", "learner while the engine has the device"
MOST_FILES = 3
"""Of published weights at once: the newest, the one before it, and the next one while it is written."""
LEARNER_HEAP, ENGINE_HEAP = "kept free in the learner's heap", "working memory of the engine"
IN_TURN = "engine and learner in turn"
HEAP_OF_TINY, HEAP_OF_ADAPTER, HEAP_OF_QUANTISED, HEAP_OF_ALL = 1.2, 0.1, 0.33, 0.4
"""Of a learner on a CPU: heap beyond activations, as a share of them. Of a tiny base, and where all weights learn, with
gradients and optimiser in it, glibc gives none of it back (`learner/make.py`). Measured with SmolLM2-135M."""
ENGINE_TIMES, ENGINE_MOST = 3, 256 << 20
"""Of an embedded engine on a CPU: prompts, prefill and copies of its cache, in sizes of the cache, and at most; half of
that in the process of a learner that gives its arrays back at once."""
BYTES_QUANTISED = {"nf4": 0.5625, "int8": 1.0}
"""Of a weight, with its scale (`quantised_base.py`)."""
PROCESSES, OTHER_RANKS = "Python and libraries", "activations of other ranks"
ACTIVATIONS, OTHER_GROUPS = "learner: activations", "other groups of ranks"
LIBRARIES, RUN, WITH_LEARNER, WORKER, SERVER = (mib << 20 for mib in (115, 235, 85, 32, 1434))
ENGINE_PROCESS, LEARNER_PROCESS = 205 << 20, 255 << 20
"""Bytes of host memory after the imports: of files that all processes map, of the run, of what a learner adds to it, of
a worker, of vLLM, and of processes for engine and learner."""


def learner_apart(config: RunConfig | SftConfig) -> bool:
    """Whether the learner is in a process, or in ranks, of its own."""
    return config.learner_process or (isinstance(config, RunConfig) and config.asynchronous)


def process_bytes(config: RunConfig | SftConfig) -> dict[str, int]:
    """Host memory of the processes of a run, without models and data, by the names of `by_process`."""
    sizes = {"shared": LIBRARIES, "main": RUN}
    if learner_apart(config):
        sizes["learner"] = config.ranks * LEARNER_PROCESS
    else:
        sizes["main"] += WITH_LEARNER
    if isinstance(config, RunConfig):
        sizes["engine"] = ENGINE_PROCESS * config.engine_process
        workers = len(config.env) * config.workers_per_env if config.workers_per_env > 1 else 0
        servers = config.gpus.servers if config.engine == "vllm" and not config.inference.base_url else 0
        sizes["others"] = workers * WORKER + servers * SERVER
    return {name: size for name, size in sizes.items() if size}


def host_parts(
    arch: Architecture, config: RunConfig | SftConfig, devices: Mapping[str, str], memory: Mapping[str, int]
) -> dict[str, int]:
    """What comes on top of the model's parts in `memory`, in the memory of the host."""
    parts = {PROCESSES: sum(process_bytes(config).values())}
    on_gpu = devices["learner"].startswith("cuda")
    if config.ranks > 1 and not on_gpu:
        parts[OTHER_RANKS] = (config.ranks - 1) * memory[ACTIVATIONS]
        divided = sum(size for name, size in memory.items() if name.startswith("learner: ")) - memory[ACTIVATIONS]
        parts[OTHER_GROUPS] = (config.ranks // (config.learner.shard_ranks or config.ranks) - 1) * divided
    share = _heap_share(arch, config)
    if not on_gpu:
        parts[LEARNER_HEAP] = int(config.ranks * share * memory[ACTIVATIONS])
    if config.inference.engine != "vllm" and devices.get("sampler") == "cpu":
        together = not (on_gpu or learner_apart(config))
        most = ENGINE_MOST // 2 if together and share in (HEAP_OF_ADAPTER, HEAP_OF_QUANTISED) else ENGINE_MOST
        parts[ENGINE_HEAP] = min(ENGINE_TIMES * memory.get(CACHE, 0), most)
        if together and not config.deployment.colocate:
            sampling = memory.get(CACHE, 0) + parts[ENGINE_HEAP]
            parts[IN_TURN] = -min(sampling, memory[ACTIVATIONS] + parts[LEARNER_HEAP])
    if on_gpu and config.deployment.colocate:
        parts[MOVED] = staying_bytes(memory)
    return {name: size for name, size in parts.items() if size}


def _heap_share(arch: Architecture, config: RunConfig | SftConfig) -> float:
    """Of activations; see `heaps` above and `_stays_small` of `learner/make.py`."""
    if config.lora is None:
        return HEAP_OF_ALL
    if config.quantised_base:
        return HEAP_OF_QUANTISED
    tiny = arch.experts is not None or parameter_count(arch) <= COPIED
    return HEAP_OF_TINY if tiny and _held_bytes(config) == 4 else HEAP_OF_ADAPTER


def by_process(config: RunConfig | SftConfig, devices: Mapping[str, str], memory: Mapping[str, int]) -> dict[str, int]:
    """What `memory` is on the host, by the process that has it: main, learner, engine, others; what is shared apart."""
    sizes = process_bytes(config)
    learner, engine = "learner" if learner_apart(config) else "main", "main"
    if isinstance(config, RunConfig):
        engine = "others" if config.engine == "vllm" else "engine" if config.engine_process else "main"
    for name, size in memory.items():
        part = name.partition(":")[0]
        if name == PROCESSES or devices.get(part, "").startswith("cuda"):
            continue
        role = engine if part == "sampler" or name in (MERGED, ENGINE_HEAP) else learner
        if name in (HANDED_OVER, MAPPED) or (name == WEIGHTS and engine != "others" and config.lora is None):
            role = "shared"
        sizes[role] = sizes.get(role, 0) + size
    if config.deployment.colocate and not devices["learner"].startswith("cuda"):
        sizes[learner] -= min(_sampling(memory), _passing(memory))
    return sizes


PASSING = ("learner: gradients", ACTIVATIONS)
"""What a learner holds between two updates only."""


def turns_peak(memory: Mapping[str, int], *, on_cpu: bool) -> int | None:
    """Most bytes of a device on which engine and learner take turns; None where the model is not known."""
    if not memory:
        return None
    sampling, passing, staying = _sampling(memory), _passing(memory), staying_bytes(memory)
    return staying + max(sampling, passing) if on_cpu else max(sampling, staying + passing)


def staying_bytes(memory: Mapping[str, int]) -> int:
    """What a learner holds from one step to the next."""
    return sum(size for key, size in memory.items() if key.startswith("learner: ") and key not in PASSING)


def _sampling(memory: Mapping[str, int]) -> int:
    return sum(size for key, size in memory.items() if key.startswith("sampler: "))


def _passing(memory: Mapping[str, int]) -> int:
    return sum(memory.get(key, 0) for key in PASSING)


def parameter_count(arch: Architecture) -> int:
    """Of the whole model."""
    hidden, query, keys = _widths(arch)
    attention = hidden * (2 * query + 2 * keys)
    attention += {None: 0, "head": 2 * arch.head_dim, "width": query + keys}[arch.qk_norm]
    attention += (query + 2 * keys if arch.qkv_bias else 0) + (hidden if arch.output_bias else 0)
    dense = 3 * hidden * arch.intermediate_size + (2 * arch.intermediate_size + hidden if arch.mlp_bias else 0)
    mixed = sparse = 0
    if arch.experts is not None:
        mixed = len(arch.experts.layers)
        sparse = arch.experts.count * (3 * hidden * arch.experts.intermediate_size + hidden)
    norms = hidden * sum(name is not None for name in arch.norms)
    layers = arch.num_layers * (attention + norms) + (arch.num_layers - mixed) * dense + mixed * sparse
    return layers + hidden + arch.vocab_size * hidden * (1 if arch.tied_embeddings else 2)


def trained_count(arch: Architecture, lora: LoraConfig | None) -> int:
    """All of them, or those of the adapter: rank x (in + out) of every layer that has one."""
    if lora is None:
        return parameter_count(arch)
    hidden, query, keys = _widths(arch)
    apart = {"q_proj": query, "k_proj": keys, "v_proj": keys}
    widths = ({"qkv_proj": query + 2 * keys} if arch.fused_qkv else apart) | {"o_proj": query}
    if arch.experts is None:  # with experts there are adapters at attention alone
        inner = arch.intermediate_size
        widths |= {"gate_up_proj": 2 * inner} if arch.fused_gate_up else {"gate_proj": inner, "up_proj": inner}
        widths |= {"down_proj": inner}
    own = widths if not lora.differs("target_modules") else [name for name in lora.target_modules if name in widths]
    head = hidden + arch.vocab_size if "lm_head" in lora.target_modules else 0
    return lora.rank * (arch.num_layers * sum(hidden + widths[name] for name in own) + head)


def _widths(arch: Architecture) -> tuple[int, int, int]:
    """Of the hidden states, of all query heads and of all key heads."""
    return arch.hidden_size, arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim


def memory_parts(arch: Architecture, config: RunConfig, *, prompt: int = 0, on_gpu: bool = False) -> dict[str, int]:
    """Bytes, by the formulas above; `prompt` in tokens, `on_gpu` says whether engines are on one."""
    in_flight = min(config.max_concurrent, round(config.batch_size * max(1.0, config.oversampling_factor)))
    most = prompt + config.sampling.max_tokens
    engines = config.gpus.servers
    files = handed_files(config, on_gpu=on_gpu)
    parts = sampler_parts(arch, config.inference, config.lora, tokens=in_flight * most, engines=engines, files=files)
    if config.lora is not None and config.engine == "embedded":
        parts |= merging_parts(arch, config, config.inference)
    parts |= learner_parts(arch, config, tokens=config.learner.tokens_at_once, length=most)
    parts |= reference_parts(arch, config)
    lora = config.lora
    if lora is not None and (config.algorithm.reset_reference or config.algorithm.reference_decay):
        parts["learner: reference"] = 2 * trained_count(arch, lora) * 4  # the adapter that is lent, the one put aside
    return parts


def run_memory(arch: Architecture, config: RunConfig, devices: Mapping[str, str], prompt: int = 0) -> dict[str, int]:
    """All that a run holds, by what it is for."""
    parts = memory_parts(arch, config, prompt=prompt, on_gpu=devices["sampler"].startswith("cuda"))
    return parts | host_parts(arch, config, devices, parts)


def handed_files(config: RunConfig, *, on_gpu: bool) -> int:
    """Files of weights on their way, at most; not the one that an embedded engine on a CPU samples from."""
    files = 1 if config.deployment.colocate else 2 if config.engine == "embedded" else MOST_FILES
    return files - (config.engine == "embedded" and config.lora is None and not on_gpu)


def sampler_parts(
    arch: Architecture,
    inference: InferenceConfig,
    lora: LoraConfig | None,
    *,
    tokens: int,
    engines: int = 1,
    files: int = 1,
) -> dict[str, int]:
    """Of engines that hold so many tokens at once, all together, and `files` that they are handed; 0 engines are
    elsewhere."""
    sampled = 2 if inference.dtype == "bfloat16" else 4
    handed = handed_bytes(arch, inference, lora)
    held = {
        WEIGHTS: parameter_count(arch) * sampled * engines,
        CACHE: tokens * arch.kv_values_per_token * sampled,
    }
    return {**(held if engines else {}), HANDED_OVER: files * handed}


def merging_parts(arch: Architecture, config: TrainingConfig, inference: InferenceConfig) -> dict[str, int]:
    """Of an embedded engine that adapters are merged into, and of the base's files."""
    count, directory = parameter_count(arch), on_this_machine(config.model)
    if config.quantised_base == "packed":
        source = None if directory is None else source_of(directory)
        return {WEIGHTS: 0, MAPPED: 0 if source is None else source.stat().st_size}
    files = () if directory is None else list((base_of_adapter(directory) or directory).glob("*.safetensors"))
    embeddings = arch.vocab_size * arch.hidden_size * (1 if arch.tied_embeddings else 2)
    if config.quantised_base:
        as_stored = sum(file.stat().st_size for file in files) * embeddings // count
        return {WEIGHTS: 0, MAPPED: as_stored + int((count - embeddings) * BYTES_QUANTISED[config.quantised_base])}
    if arch.experts is None and count > COPIED and not config.deployment.colocate:  # see `frozen_base.py`
        base = count * _held_bytes(config)
        as_it_is = abs(sum(file.stat().st_size for file in files) - base) < base // 8  # then processes share it
        ranks = config.ranks > 1  # each has its own rows, none of which it shares
        if not isinstance(config, RunConfig) or not (ranks or (config.engine_process and not as_it_is)):
            return {WEIGHTS: 0}
        return {WEIGHTS: 0, MAPPED: base} if as_it_is else {WEIGHTS: base}
    return {
        "sampler: next weights": count * (2 if inference.dtype == "bfloat16" else 4),
        MAPPED: sum(file.stat().st_size for file in files) * (2 if _held_bytes(config) == 2 else 1),
        MERGED: (count - embeddings) * 4,
    }


def handed_bytes(arch: Architecture, inference: InferenceConfig, lora: LoraConfig | None) -> int:
    """Of the weights that engines are given for a step."""
    if lora is not None:
        return trained_count(arch, lora) * 4
    return parameter_count(arch) * (2 if inference.dtype == "bfloat16" else 4)


def learner_parts(arch: Architecture, config: TrainingConfig, *, tokens: int, length: int) -> dict[str, int]:
    """Of a learner whose micro-batches have so many tokens, in sequences of this length."""
    trained = trained_count(arch, config.lora)
    adapter = 0 if config.lora is None else trained
    held = _held_bytes(config)
    return {
        "learner: weights": parameter_count(arch) * held + adapter * 4,
        **({"learner: masters": trained * 4} if config.learner.weights_dtype == "bfloat16" else {}),
        "learner: gradients": trained * 4,
        "learner: optimiser": optimiser_bytes(arch, config, trained),
        ACTIVATIONS: tokens * _kept_per_token(arch, config, tokens, length) * 4,
    }


def reference_parts(arch: Architecture, config: RunConfig | SftConfig) -> dict[str, int]:
    """Of a reference with weights of its own, where there is one."""
    reference = config.reference
    if reference is None or (config.lora and (reference == "initial" or shares_base(reference, config.model))):
        return {}
    return {"learner: reference": parameter_count(arch) * _held_bytes(config)}


def _held_bytes(config: TrainingConfig) -> int:
    """Of a parameter that the model computes with; of a quantised base none is held."""
    if config.quantised_base:
        return 0
    dtype = config.learner.weights_dtype if config.lora is None else config.learner.base_dtype
    return 2 if dtype == "bfloat16" else 4


def optimiser_bytes(arch: Architecture, config: TrainingConfig, trained: int) -> int:
    """Of the optimiser's states of so many trained parameters."""
    kind = config.optimizer.type
    if kind != "muon":
        return trained * (8 if kind == "adamw" else 4)
    rest = 0 if config.lora is not None else arch.vocab_size * arch.hidden_size * (1 if arch.tied_embeddings else 2)
    return (trained - rest) * 4 + rest * 8


def _kept_per_token(arch: Architecture, config: TrainingConfig, tokens: int, length: int) -> int:
    """Numbers that one token leaves for the backward pass."""
    chosen = 0 if arch.experts is None else arch.experts.per_token
    inner = arch.intermediate_size if arch.experts is None else arch.experts.intermediate_size * chosen
    widths = (4 * arch.num_heads + 3 * arch.num_kv_heads) * arch.head_dim
    computed = 4 * inner + widths + (arch.num_heads * length if length <= EAGER_KEYS else 0)
    computed += 2 * chosen * arch.hidden_size
    half = config.learner.dtype == "bfloat16"
    layer = 3 * arch.hidden_size + computed // 2 if half else 4 * arch.hidden_size + computed
    one_piece = tokens * arch.vocab_size <= LOGITS_AT_ONCE and not config.quantised_base
    ends = 2 * arch.hidden_size + (2 * arch.vocab_size if one_piece else 0)
    if config.learner.activation_checkpointing:
        inputs = arch.num_layers * arch.hidden_size
        return (inputs // 2 if half else inputs) + layer + ends
    return arch.num_layers * layer + ends


def size_text(size: int) -> str:
    """`1.50 GiB`."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
