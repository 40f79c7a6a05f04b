"""Training a LoRA adapter through PEFT: the base weights stay as they are, only two thin matrices per projection learn.

Source of the method: Hu et al. 2021 (arXiv:2106.09685). PEFT makes the layers and defines the files; an exported or
published adapter is a plain PEFT directory that `peft` and vLLM load as it is.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from whet.config import validate
from whet.errors import ConfigError, ModelLoadError
from whet.inference.architecture import read_json
from whet.inference.model_names import ADAPTER_CONFIG, ADAPTER_WEIGHTS, resolve_model
from whet.inference.plain.weights import projections
from whet.inference.protocol import WeightUpdate
from whet.inference.weights.adapters import UNEMBEDDING
from whet.inference.weights.safetensors_files import TensorStream, write_tensors
from whet.rl.learner.config import LoraConfig
from whet.rl.learner.optim import put_in
from whet.rl.learner.packed_base import dense, described
from whet.rl.learner.weights import Weights, checkpoint_stream, copy_tokenizer, forget_older, write_aside, write_model
from whet.rl.learner.whole import Whole, WholeTensors
from whet.rl.storage.checkpoints import ADAPTER as ADAPTER_FILE


@contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """For the length of the block Python does not find the library, unless it is imported already.

    PEFT imports it wherever it is installed, and torch's compiler with it: 41 MiB. Here layers in few bits are whet's
    own (`packed_base.py`). What PEFT has found out about it is forgotten, so that other code is not affected.
    """
    modules: dict[str, Any] = sys.modules
    imported = modules.setdefault("bitsandbytes", None) is not None  # of which `import` makes an ImportError
    try:
        yield
    finally:
        if not imported:
            del modules["bitsandbytes"]
        if (answers := modules.get("peft.import_utils")) is not None:
            answers.is_bnb_available.cache_clear()
            answers.is_bnb_4bit_available.cache_clear()


with without_bitsandbytes():
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from peft.tuners.lora import LoraLayer

ADAPTER = "default"
HEAD_WEIGHT = f"{UNEMBEDDING}.weight"
OF_EXPERTS = ("gate_proj", "up_proj", "down_proj", "gate_up_proj")


class LoraWeights(Weights):
    """The adapter's parameters; gradients flow through the frozen model."""

    FILE = ADAPTER_FILE

    def __init__(
        self,
        model: PreTrainedModel,
        source: Path,
        config: LoraConfig,
        base_dtype: torch.dtype = torch.float32,
        whole: Whole | None = None,
        base: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Wraps `model` in place, its frozen matrices in `base_dtype`. `base` has tensors, by name, that take the
        places of its parameters once the adapter is made: peft rounds a new one to the dtype of what it is for.

        Raises `ConfigError` for a target that the model does not have.
        """
        config = config.model_copy(update={"target_modules": targets_of(model, config)})
        layers = PeftLoraConfig(
            task_type="CAUSAL_LM",
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            use_rslora=config.use_rslora,
            target_modules=list(config.target_modules),
            fan_in_fan_out=any(isinstance(part, Conv1D) for part in projections(model).values()),
            base_model_name_or_path=str(source),
        )
        with warnings.catch_warnings(), without_bitsandbytes():
            warnings.simplefilter("ignore", FutureWarning)  # between peft and transformers, nothing a user could mend
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")  # see `export_merged`
            self._peft: Any = get_peft_model(model, layers)
        put_in(model, base, base_dtype)
        super().__init__(self._peft.get_base_model(), source, whole)
        if config.path is not None:
            begin_with(self._peft, resolve_model(config.path), config)

    @contextmanager
    def base(self) -> Iterator[PreTrainedModel]:
        """The model without its adapter, for the length of the block."""
        with self._peft.disable_adapter():
            yield self.model

    @contextmanager
    def with_adapter(self, adapter: Mapping[str, Tensor]) -> Iterator[PreTrainedModel]:
        """The model with other numbers in its adapter, and without dropout, for the length of the block."""
        parameters = dict(self.parameters())
        now = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        dropouts = [part for part in self.model.modules() if isinstance(part, nn.Dropout) and part.training]
        for dropout in dropouts:
            dropout.eval()
        self.fill(parameters, adapter)
        try:
            yield self.model
        finally:
            self.fill(parameters, now)
            for dropout in dropouts:
                dropout.train()

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self._peft.named_parameters() if p.requires_grad]

    def publish(self, directory: Path, version: int) -> WeightUpdate:
        path, stream = directory / f"adapter-{version:08d}", self._adapter(torch.float32)

        def write() -> None:
            write_aside(path, lambda aside: self._write(aside, stream))
            forget_older(directory, "adapter-*")

        self._whole.write(write, stream.tensors, "publishing the adapter")
        # Without a name: the policy itself, which the engine merges (docs/design/inference.md).
        return WeightUpdate(version=version, path=path, kind="adapter")

    def export(self, directory: Path, dtype: torch.dtype) -> None:
        stream = self._adapter(dtype)

        def write() -> None:
            self._write(directory, stream)
            copy_tokenizer(self._source, directory)

        self._whole.write(write, stream.tensors, "exporting the adapter")

    def export_merged(self, directory: Path, dtype: torch.dtype) -> None:
        """The whole model with the adapter added in; what is trained stays as it is. An output matrix that has an
        adapter is one apart from the embedding."""
        names = {
            name.replace(".base_layer.", "."): name for name, _ in self.model.named_parameters() if ".lora_" not in name
        }
        parameters = described(self.model)
        named = {merged: parameters[name] for merged, name in names.items()}
        head = self.model.get_output_embeddings()
        untied = HEAD_WEIGHT not in named and isinstance(head, LoraLayer)
        if untied:
            names[HEAD_WEIGHT] = f"{UNEMBEDDING}.base_layer.weight"
            named[HEAD_WEIGHT] = torch.empty(head.out_features, head.in_features, device="meta")
        stream = checkpoint_stream(self.model, named, lambda merged: self._merged(names[merged]), dtype, self._source)
        self._whole.write(
            lambda: write_model(directory, self.model, stream, dtype, self._source, untied=untied),
            stream.tensors,
            "exporting weights",
        )

    def _merged(self, name: str) -> Tensor:
        """A whole parameter of the model, with what the adapter adds to it."""
        module_name, _, kind = name.rpartition(".")
        with self._whole.gathered(self.model, name) as writes:
            if not writes:
                meta: Tensor = self.model.get_parameter(name).detach().to("meta")
                return meta
            tensor = dense(self.model, name)
            module = self.model.get_submodule(module_name.removesuffix(".base_layer"))
            if kind == "weight" and isinstance(module, LoraLayer):
                tensor = tensor + module.get_delta_weight(ADAPTER).detach()
            return tensor.clone() if self._whole.divided else tensor

    def _adapter(self, dtype: torch.dtype) -> TensorStream:
        named = get_peft_model_state_dict(self._peft, adapter_name=ADAPTER, save_embedding_layers=False)
        return self._stream(WholeTensors(named, self._gather(named), dtype=dtype))

    def _write(self, directory: Path, tensors: TensorStream) -> None:
        """A PEFT adapter directory: its configuration and its tensors."""
        write_adapter(directory, copy(self._peft.peft_config[ADAPTER]), tensors)


def write_adapter(directory: Path, config: PeftLoraConfig, tensors: TensorStream) -> None:
    """Takes the configuration over."""
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / ADAPTER_WEIGHTS, tensors)
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules or ())  # a set, whose order differs between processes
    config.save_pretrained(str(directory))


def targets_of(model: nn.Module, config: LoraConfig) -> tuple[str, ...]:
    """Which linear layers get an adapter: of a family with other names, where none are set, all that its layers have.

    Raises `ConfigError` for a target that the model does not have.
    """
    linear, targets = {name.rpartition(".")[2] for name in projections(model)}, config.target_modules
    stacked = any(name.endswith(".experts") for name, _ in model.named_modules())
    head = {UNEMBEDDING} if isinstance(getattr(model, UNEMBEDDING, None), nn.Linear) else set[str]()
    unknown = sorted(set(targets) - linear - head)
    if (unknown or stacked) and not config.differs("target_modules"):
        targets = tuple(sorted(linear.difference(OF_EXPERTS if stacked else ())))
    elif unknown:
        raise ConfigError(
            f"[lora] target_modules: this model has no layer named {', '.join(unknown)}. "
            f"It has {', '.join(sorted(linear | head))}."
        )
    if stacked and (beyond := [*filter(OF_EXPERTS.__contains__, targets)]):
        # PEFT would wrap the experts' stacked matrices as well
        raise ConfigError(
            f"[lora] target_modules: this model's {', '.join(beyond)} are those of experts too, which get no "
            f"adapter here. It takes {', '.join(sorted(linear.difference(OF_EXPERTS)))}."
        )
    return targets


BEYOND_LORA = ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "target_parameters")
"""Settings of a PEFT adapter that `[lora]` has no keys for."""


def stored_adapter(
    model: PreTrainedModel,
    source: Path,
    directory: Path,
    key: str,
    dtype: torch.dtype,
    base: Mapping[str, Tensor] | None,
) -> PreTrainedModel:
    """`model`, that of `source`, with the adapter in `directory`; `dtype` and `base` as in `LoraWeights`.

    `key` of the config named it. Raises what `begin_with` does.
    """
    said = read_json(directory / ADAPTER_CONFIG, "an adapter")
    names = {"rank": "r", "alpha": "lora_alpha", "use_rslora": "use_rslora", "target_modules": "target_modules"}
    given = {name: said[theirs] for name, theirs in names.items() if said.get(theirs) is not None}
    config = validate(LoraConfig, given, f"{key}: {directory / ADAPTER_CONFIG}")
    adapted = LoraWeights(model, source, config, dtype, base=base)
    begin_with(adapted._peft, directory, config, key)
    return adapted.model


def frozen_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Those of a model with an adapter that are not trained, by their names without it."""
    return {name.replace(".base_layer.", "."): p for name, p in model.named_parameters() if ".lora_" not in name}


def begin_with(model: Any, directory: Path, config: LoraConfig, key: str = "[lora] path") -> None:
    """Fill the adapter of a PEFT `model` from `directory`, which has to be exactly what `[lora]` describes.

    Raises `ModelLoadError` where the files cannot be read, and `ConfigError` where the adapter is of another kind or
    shape than `config` says.
    """
    if not (directory / ADAPTER_CONFIG).is_file():
        raise ConfigError(f"{key}: {directory} is not an adapter: it has no {ADAPTER_CONFIG}.")
    described = read_json(directory / ADAPTER_CONFIG, "an adapter")
    beyond = [name for name in BEYOND_LORA if described.get(name)]
    if described.get("peft_type") != "LORA" or described.get("bias", "none") != "none" or beyond:
        what = ", ".join(beyond) or f"peft_type {described.get('peft_type')!r}, bias {described.get('bias')!r}"
        raise ConfigError(f"{key}: {directory} is not a plain LoRA adapter ({what}), and only those are trained on.")
    theirs = {"rank": described.get("r"), "alpha": described.get("lora_alpha")}
    wrong = [f"{name} = {value}" for name, value in theirs.items() if value != getattr(config, name)]
    if (stable := bool(described.get("use_rslora"))) != config.use_rslora:
        wrong.append(f"use_rslora = {json.dumps(stable)}")
    targets = described.get("target_modules")
    if not isinstance(targets, list) or set(targets) != set(config.target_modules):
        wrong.append(f"target_modules = {json.dumps(sorted(targets) if isinstance(targets, list) else targets)}")
    if wrong:
        raise ConfigError(f"{key}: {directory} is an adapter of another shape. Set {', '.join(wrong)}.")
    try:
        tensors = load_file(directory / ADAPTER_WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{directory / ADAPTER_WEIGHTS}: cannot read the adapter: {error}") from None
    expected = {name: tuple(tensor.shape) for name, tensor in get_peft_model_state_dict(model).items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != expected:
        first = min(name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name))
        raise ConfigError(
            f"{key}: {directory} was trained on another model: {first} is {shapes.get(first, 'absent')} there "
            f"and {expected.get(first, 'absent')} here."
        )
    set_peft_model_state_dict(model, tensors)
