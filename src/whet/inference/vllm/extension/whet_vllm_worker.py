"""Loads new weights inside of a vLLM worker: the class that `--worker-extension-cls` mixes into vLLM's own.

This file runs in the server's Python, which need not have whet; it needs torch, safetensors and vLLM alone. whet calls
`whet_load_weights` through `/collective_rpc` while generation is paused, and refuses to go on where a tensor differs.

vLLM holds other tensors than a checkpoint has: projections are fused, experts stacked, on a CPU matrices are packed,
and ranks hold shards. Of all these the sum over elements, read as whole numbers of as many bits, is that of the
checkpoint's tensors. Where there are more ranks than key heads, several hold the same head, so each rank compares what
it should hold of queries, keys and values. Packed matrices can be read only by multiplying with them: rows of the
identity give back columns, bit for bit. The first load reads every column; each later load a share of them, in turn.

A rank moves each tensor of a checkpoint to its device once, where it is loaded and summed up. Where a server holds
float8 with one scale for a matrix, what was sent is rounded by that scale with vLLM's own operation, and compared in
float8; this is read a second time, since the scale is known after the load. Other quantised matrices are not compared.

On a CPU vLLM 0.32 does not pack everything again. A head that is tied to the embeddings is no tensor of the checkpoint
and would compute with the weights of the first load for ever; stacks of experts stay as they are in the checkpoint,
and the kernel reads them in another order. So both are packed here, and compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from whet_vllm_lifeline import follow_guard  # type: ignore[import-not-found]  # of this folder, on the server's path

follow_guard()
_AS_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EXPERT = re.compile(r"\.experts\.\d+\.(gate|up|down)_proj\.")
_SCALE = re.compile(r"_scale(_inv)?$")
_SHARE = 16
"""Of a packed matrix one column of so many is read after a load, and all of them after as many loads."""


class WeightReceiver:
    """Methods of vLLM's worker, by names that nothing of vLLM has."""

    def whet_load_weights(self, path: str) -> dict[str, Any]:
        """Load the checkpoint at `path`, a safetensors file or a folder of them, and compare what is held now with it.

        Returns how many tensors the file has (`tensors`), the names of those that differ or that the file lacks
        (`differ`), and of those that could not be compared (`unchecked`), by the names that vLLM has for them.
        """
        runner: Any = self.model_runner  # type: ignore[attr-defined]  # vLLM's worker has it
        file = _Checkpoint(Path(path))
        names = file.names
        sent = _Sent(runner.get_model(), file)
        runner.reload_weights(weights_iterator=sent.tensors())
        _pack_tied_head(runner.get_model(), names)
        experts_differ = _pack_experts(runner.get_model(), file, names)
        self._whet_loads = getattr(self, "_whet_loads", -1) + 1
        differ, unchecked = _compare(runner.get_model(), file, sent, self._whet_loads)
        return {"tensors": len(names), "differ": differ + experts_differ, "unchecked": unchecked}

    def whet_describe(self) -> dict[str, Any]:
        """How the server was started, as far as a run depends on it."""
        config: Any = self.vllm_config  # type: ignore[attr-defined]  # vLLM's worker has it
        model, lora = config.model_config, config.lora_config
        return {
            "model": model.model,
            "config": {key: value for key, value in model.hf_config.to_dict().items() if isinstance(value, int | str)},
            "dtype": str(model.dtype).removeprefix("torch."),
            "max_model_len": model.max_model_len,
            "logprobs_mode": str(model.logprobs_mode),
            "lora_rank": 0 if lora is None else lora.max_lora_rank,
            "routed_experts": bool(getattr(model, "enable_return_routed_experts", False)),
        }

    def whet_free_bytes(self) -> dict[str, int]:
        """`free`: bytes of this worker's GPU; 0 on a CPU, where vLLM's sleep mode frees nothing.

        A dict, since the server answers with the text of anything else.
        """
        device: torch.device = self.device  # type: ignore[attr-defined]  # vLLM's worker has it
        return {"free": torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0}


class _Checkpoint:
    """The tensors of a safetensors file, or of a folder's."""

    def __init__(self, path: Path) -> None:
        paths = sorted(path.glob("model*.safetensors")) if path.is_dir() else [path]
        if not paths:
            raise FileNotFoundError(f"{path} holds no model*.safetensors")
        files: list[Any] = [safe_open(one, "pt") for one in paths]
        self._file_of: dict[str, Any] = {name: file for file in files for name in file.keys()}  # noqa: SIM118  # it is no mapping
        self.names = sorted(self._file_of)

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        return tensor


HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


def _is_tied(model: Any, names: list[str]) -> bool:
    return HEAD not in names and EMBEDDINGS in names and getattr(model, "lm_head", None) is not None


def _pack_tied_head(model: Any, names: list[str]) -> None:
    """Let a head that shares the embeddings' matrix compute with what it is now."""
    if _is_tied(model, names) and hasattr(model.lm_head, "quant_method"):
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)


def _pack_experts(model: Any, file: Any, names: list[str]) -> list[str]:
    """Pack stacks of experts that a CPU's kernel reads packed and that are not; the names of those that then differ."""
    differ = []
    for path, module in model.named_modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        experts: Any = getattr(kernel, "fused_experts", None)
        if not hasattr(experts, "isa") or module.w13_weight.device.type != "cpu":
            continue
        from vllm._custom_ops import cpu_prepack_moe_weight

        sent = _stacks(file, names, path[: path.index(".experts")] + ".experts.", module.w13_weight.dtype)
        if all(torch.equal(getattr(module, kind), stack) for kind, stack in sent.items()):
            experts.process_weights_after_loading(module)
        for kind, stack in sent.items():
            if not torch.equal(getattr(module, kind), cpu_prepack_moe_weight(stack, experts.isa)):
                differ.append(f"{path}.{kind}")
    return differ


def _stacks(file: Any, names: list[str], stem: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The matrices of a layer's experts as vLLM stacks them, [experts, rows, columns]."""

    def of(expert: int, part: str) -> torch.Tensor:
        matrix: torch.Tensor = file.get_tensor(f"{stem}{expert}.{part}_proj.weight")
        return matrix.to(dtype)

    numbers = sorted({int(name.removeprefix(stem).partition(".")[0]) for name in names if name.startswith(stem)})
    return {
        "w13_weight": torch.stack([torch.cat([of(number, "gate"), of(number, "up")]) for number in numbers]),
        "w2_weight": torch.stack([of(number, "down") for number in numbers]),
    }


class _Held:
    """The parameters of a model, found by the names that a checkpoint has for their parts."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._parameters = {name.replace(".base_layer.", "."): name for name, _ in model.named_parameters()}
        fused = getattr(model, "packed_modules_mapping", None) or {}
        self._whole = {part: whole for whole, parts in fused.items() for part in parts}

    def target(self, name: str) -> str | None:
        """Under which name vLLM holds the checkpoint's tensor `name`."""
        if match := _EXPERT.search(name):
            stacked = "w2" if match[1] == "down" else "w13"
            beginning = name[: match.start()] + ".experts."
            return next((own for own in self._parameters if _is_stack(own, beginning, stacked)), None)
        *path, module, kind = name.split(".")
        candidate = ".".join([*path, self._whole.get(module, module), kind])
        return candidate if candidate in self._parameters else None

    @property
    def names(self) -> set[str]:
        return set(self._parameters)

    def parameter(self, target: str) -> _Parameter:
        module, _, kind = self._parameters.get(target, target).rpartition(".")  # a tied head is no parameter
        return _Parameter(self._model.get_submodule(module), kind)


def _is_stack(name: str, beginning: str, stacked: str) -> bool:
    return name.startswith(beginning) and name.endswith(f".{stacked}_weight")


class _Parameter:
    """One parameter of a module: its values, or (packed) what the module computes with."""

    def __init__(self, module: Any, kind: str) -> None:
        self.module = module
        self.value: torch.Tensor = getattr(module, kind).data
        self.packed = kind == "weight" and (hasattr(module, "cpu_linear") or self.value.numel() == 0)  # no bias is
        scales = (getattr(module, f"{kind}_{end}", None) for end in ("scale", "scale_inv"))
        self._scale: torch.Tensor | None = next((scale for scale in scales if scale is not None), None)
        sizes = (getattr(module, name, 0) for name in ("input_size_per_partition", "input_size", "embedding_dim"))
        self._width = next((int(size) for size in sizes if size), 0)

    @property
    def quantised(self) -> bool:
        return self._scale is not None

    def _as_held(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """In the dtype that is held; None for a quantised form that is not known here."""
        scale = self._scale
        if scale is None:
            return tensor.to(self.value.dtype)
        if not str(self.value.dtype).startswith("torch.float8") or scale.numel() != 1 or tensor.ndim != 2:
            return None
        from vllm import _custom_ops

        loaded = tensor.to(getattr(self.module, "orig_dtype", torch.bfloat16))
        rounded: torch.Tensor = _custom_ops.scaled_fp8_quant(loaded.contiguous(), scale=scale.view(1))[0]
        return rounded

    def sum_of(self, name: str, tensor: torch.Tensor) -> _Sum | None:
        """What the checkpoint's tensor `name` adds to the bits that this rank, or all ranks together, hold; None where
        it is held in a form that is not known here."""
        parts = own_heads(self.module, name, tensor) or [tensor]
        held = [rounded for part in parts if (rounded := self._as_held(part)) is not None]
        if len(held) < len(parts):
            return None
        return _Sum(torch.stack([_bits(part) for part in held]).sum(), sum(part.numel() for part in held))

    def columns(self, indices: torch.Tensor) -> torch.Tensor:
        """Columns [rows, len(indices)] of a packed matrix: products with rows of the identity are exact."""
        rows = torch.zeros(len(indices), self._width, dtype=self.value.dtype, device=self.value.device)
        rows[torch.arange(len(indices)), indices] = 1
        columns: torch.Tensor = self.module.quant_method.apply(self.module, rows, None)
        return columns.T


class _Sum(NamedTuple):
    """Of tensors in the dtype that vLLM holds: their bits as whole numbers, and how many elements they have."""

    bits: torch.Tensor
    size: int


class _Sent:
    """The tensors of a checkpoint on their way into a model, and their sums by the parameters that hold them."""

    def __init__(self, model: Any, file: _Checkpoint) -> None:
        held, self._file = _Held(model), file
        self.unknown: list[str] = []
        self.sources: dict[str, list[str]] = {}
        """By vLLM's name of a parameter those of the checkpoint's tensors in it."""
        for name in file.names:
            target = held.target(name)
            if target is None:
                self.unknown.append(name)
            else:
                self.sources.setdefault(target, []).append(name)
        if _is_tied(model, file.names):
            self.sources[HEAD] = [EMBEDDINGS]
        self._targets: dict[str, list[str]] = {}
        self._parameters = {target: held.parameter(target) for target in self.sources}  # on no device during a load
        for target, names in self.sources.items():
            for name in names:
                self._targets.setdefault(name, []).append(target)
        self._sums: dict[tuple[str, str], _Sum] = {}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor, on the device of what holds it; what it adds up to there is kept."""
        for name in self._file.names:
            tensor = self._file.get_tensor(name)
            for target in self._targets.get(name, ()):
                parameter = self._parameters[target]
                tensor = tensor.to(parameter.value.device)
                if not (parameter.packed or parameter.quantised) and (added := parameter.sum_of(name, tensor)):
                    self._sums[target, name] = added
            yield name, tensor

    def sum_in(self, target: str, parameter: _Parameter) -> _Sum | None:
        """Of all that was sent for a parameter; None where that is not known here."""
        sums = []
        for name in self.sources[target]:
            known = self._sums.get((target, name))
            if known is None:
                known = parameter.sum_of(name, self._file.get_tensor(name).to(parameter.value.device))
            if known is None:
                return None
            sums.append(known)
        return _Sum(torch.stack([one.bits for one in sums]).sum(), sum(one.size for one in sums))


def _compare(model: Any, file: Any, sent: _Sent, loads: int) -> tuple[list[str], list[str]]:
    held, unchecked = _Held(model), [*sent.unknown]
    lacking = sorted(held.names - sent.sources.keys())
    differ = [name for name in lacking if not _SCALE.search(name)]  # a scale is compared with what it scales
    ranks = _Ranks()
    for target, sources in sent.sources.items():
        parameter = held.parameter(target)
        if parameter.packed:
            same = _packed_equal(parameter, file, sources, loads, ranks)
        else:
            wanted = sent.sum_in(target, parameter)
            same = None if wanted is None else ranks.sums_equal(parameter.value, wanted)
        if same is None:
            unchecked.append(target)
        elif not same:
            differ.append(target)
    return differ, unchecked


def _packed_equal(parameter: _Parameter, file: Any, sources: list[str], loads: int, ranks: _Ranks) -> bool | None:
    """Whether columns of a packed matrix are those of the checkpoint's; None where ranks hold parts of it."""
    if ranks.number > 1:
        return None
    tensors = [file.get_tensor(name) for name in sources]
    width = tensors[0].shape[-1]
    first, step = (0, 1) if loads == 0 else (loads % _SHARE, _SHARE)
    indices = torch.arange(first, width, step)
    columns = parameter.columns(indices)
    if columns.shape[0] < sum(tensor.shape[0] for tensor in tensors):  # a vocabulary is padded with zeros
        return None
    sent = sum(int(_bits(tensor[:, indices].to(columns.dtype))) for tensor in tensors)
    return int(_bits(columns)) == sent


def own_heads(module: Any, source: str, tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """Of a tensor of queries, keys, values or all three: what this rank should hold of each.

    None for other modules, and for names and layouts that are not known here. Queries are divided among the ranks, and
    so are keys and values, unless there are more ranks than heads of them: then each has a whole head, and as many
    ranks in a row hold the same (`num_kv_head_replicas`).
    """
    heads = getattr(module, "total_num_kv_heads", None)
    if heads is None:
        return None
    size, rank = module.head_size, module.tp_rank
    values = getattr(module, "v_head_size", size)
    own = {
        "q_proj": (rank, module.num_heads * size, module.total_num_heads * size),
        "k_proj": (rank // module.num_kv_head_replicas, module.num_kv_heads * size, heads * size),
        "v_proj": (rank // module.num_kv_head_replicas, module.num_kv_heads * values, heads * values),
    }
    name = source.split(".")[-2]
    if name == "qkv_proj":  # a checkpoint that has them in one
        tensors = dict(zip(own, tensor.split([rows for _, _, rows in own.values()]), strict=True))
    elif name in own:
        tensors = {name: tensor}
    else:
        return None
    return [part[own[name][0] * own[name][1] :][: own[name][1]] for name, part in tensors.items()]


class _Ranks:
    """Sums over the ranks of tensor parallelism."""

    def __init__(self) -> None:
        from vllm.distributed.parallel_state import get_tp_group

        self._group = get_tp_group()
        self.number = self._group.world_size

    def sums_equal(self, own: torch.Tensor, wanted: _Sum) -> bool | None:
        """Whether the bits held sum up to those sent: on this rank, or over all; None where neither fits by size."""
        bits = _bits(own)
        if self.number == 1 or own.numel() == wanted.size:
            return bool(bits == wanted.bits)
        if own.numel() * self.number < wanted.size:
            return None
        torch.distributed.all_reduce(bits, group=self._group.device_group)
        padding = own.numel() * self.number - wanted.size
        return bool(bits == wanted.bits) if padding < self.number * own.shape[-1] * 64 else None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all elements' bits as whole numbers; the same for every order, and zeros add nothing."""
    whole = _AS_WHOLE[tensor.element_size()]
    if tensor.is_floating_point() and tensor.element_size() == 1:  # float8, which torch adds nothing to
        return tensor.contiguous().view(whole).sum(dtype=torch.int64)
    return (tensor + 0).contiguous().view(whole).sum(dtype=torch.int64)  # -0 becomes 0, as it does in a product
