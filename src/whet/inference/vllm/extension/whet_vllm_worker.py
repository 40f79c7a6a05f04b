"""Loads new weights inside of a vLLM worker: the class that `--worker-extension-cls` mixes into vLLM's own.

This file runs in the server's Python, which need not have whet; it needs torch, safetensors and vLLM alone. whet calls
`whet_load_weights` through `/collective_rpc` while generation is paused, and refuses to go on where a tensor differs.

vLLM holds other tensors than a checkpoint has: projections are fused, experts stacked, on a CPU matrices are packed,
and ranks hold shards. Of all these the sum over elements, read as whole numbers of as many bits, is that of the
checkpoint's tensors. Where there are more ranks than key heads, several hold the same head, so each rank compares what
it should hold of queries, keys and values. Packed matrices can be read only by multiplying with them: rows of the
identity give back columns, bit for bit. The first load reads every column; each later load a share of them, in turn.

On a CPU vLLM 0.32 does not pack everything again. A head that is tied to the embeddings is no tensor of the checkpoint
and would compute with the weights of the first load for ever; stacks of experts stay as they are in the checkpoint,
and the kernel reads them in another order. So both are packed here, and compared.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from whet_vllm_lifeline import follow_guard  # type: ignore[import-not-found]  # of this folder, on the server's path

follow_guard()
_AS_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EXPERT = re.compile(r"\.experts\.\d+\.(gate|up|down)_proj\.")
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
        runner.reload_weights(weights_iterator=((name, file.get_tensor(name)) for name in names))
        _pack_tied_head(runner.get_model(), names)
        experts_differ = _pack_experts(runner.get_model(), file, names)
        self._whet_loads = getattr(self, "_whet_loads", -1) + 1
        differ, unchecked = _compare(runner.get_model(), file, names, self._whet_loads)
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
        sizes = (getattr(module, name, 0) for name in ("input_size_per_partition", "input_size", "embedding_dim"))
        self._width = next((int(size) for size in sizes if size), 0)

    def columns(self, indices: torch.Tensor) -> torch.Tensor:
        """Columns [rows, len(indices)] of a packed matrix: products with rows of the identity are exact."""
        rows = torch.zeros(len(indices), self._width, dtype=self.value.dtype, device=self.value.device)
        rows[torch.arange(len(indices)), indices] = 1
        columns: torch.Tensor = self.module.quant_method.apply(self.module, rows, None)
        return columns.T


def _compare(model: Any, file: Any, names: list[str], loads: int) -> tuple[list[str], list[str]]:
    held = _Held(model)
    parts: dict[str, list[str]] = {}
    unchecked = []
    for name in names:
        target = held.target(name)
        if target is None:
            unchecked.append(name)
        else:
            parts.setdefault(target, []).append(name)
    if _is_tied(model, names):
        parts[HEAD] = [EMBEDDINGS]
    differ = sorted(held.names - parts.keys())
    ranks = _Ranks()
    for target, sources in parts.items():
        parameter = held.parameter(target)
        same = _packed_equal(parameter, file, sources, loads, ranks) if parameter.packed else None
        if same is None and not parameter.packed:
            sent = [file.get_tensor(name) for name in sources]
            same = ranks.sums_equal(parameter.value, own_heads(parameter.module, sources, sent) or sent)
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


def own_heads(module: Any, sources: list[str], sent: list[torch.Tensor]) -> list[torch.Tensor] | None:
    """Of a projection of queries, keys and values: what this rank should hold of each.

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
        "q": (rank, module.num_heads * size, module.total_num_heads * size),
        "k": (rank // module.num_kv_head_replicas, module.num_kv_heads * size, heads * size),
        "v": (rank // module.num_kv_head_replicas, module.num_kv_heads * values, heads * values),
    }
    modules = [source.split(".")[-2] for source in sources]
    if modules == ["qkv_proj"]:  # a checkpoint that has them in one
        tensors = dict(zip(own, sent[0].split([rows for _, _, rows in own.values()]), strict=True))
    else:
        tensors = {name[0]: tensor for name, tensor in zip(modules, sent, strict=True)}
    if tensors.keys() != own.keys():
        return None
    return [tensors[name][part * rows :][:rows] for name, (part, rows, _) in own.items()]


class _Ranks:
    """Sums over the ranks of tensor parallelism."""

    def __init__(self) -> None:
        from vllm.distributed.parallel_state import get_tp_group

        self._group = get_tp_group()
        self.number = self._group.world_size

    def sums_equal(self, own: torch.Tensor, sent: list[torch.Tensor]) -> bool | None:
        """Whether the bits held sum up to those sent: on this rank, or over all; None where neither fits by size."""
        wanted = torch.stack([_bits(tensor.to(device=own.device, dtype=own.dtype)) for tensor in sent]).sum()
        size, bits = sum(tensor.numel() for tensor in sent), _bits(own)
        if self.number == 1 or own.numel() == size:
            return bool(bits == wanted)
        if own.numel() * self.number < size:
            return None
        torch.distributed.all_reduce(bits, group=self._group.device_group)
        return bool(bits == wanted) if own.numel() * self.number - size < self.number * own.shape[-1] * 64 else None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of all elements' bits as whole numbers; the same for every order, and zeros add nothing."""
    whole = _AS_WHOLE[tensor.element_size()]
    return (tensor + 0).contiguous().view(whole).sum(dtype=torch.int64)  # -0 becomes 0, as it does in a product
