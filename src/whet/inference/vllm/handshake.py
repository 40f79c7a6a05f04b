"""What a run needs of a vLLM server that it did not start, compared with how that was started.

A server with another model, fewer tokens or other logprobs answers as any other does, and what is learned from it is
wrong or cut short. So it is found before the first sample, and each line names the flag to add. Weights are not
compared here: they are loaded, and compared then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.errors import EndpointDownError, EngineError, RequestRefusedError
from whet.inference.vllm.completions import LogprobsMode

Ask = Callable[..., Awaitable[Any]]
"""Method, path and body of a request: the answer, read from JSON."""

SIZES = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
"""Keys of a model's config.json in which two models of different weights' shapes differ."""
PROBE = "Whet 3.14: naïve Σ\n\tdef f(x): return 'é'  # 27 * 43"
"""A text that tokenizers divide differently."""
EXTENSION_FLAGS = (
    "--worker-extension-cls whet_vllm_worker.WeightReceiver, with PYTHONPATH set to the folder that "
    'python -c "from whet.inference.vllm.members import EXTENSION; print(EXTENSION)" prints'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run needs of a server."""

    model: str  # as the run names it
    config: Mapping[str, Any]  # the model's config.json
    probe_ids: list[int]  # of `PROBE`, by the model's tokenizer
    dtype: str
    logprobs_mode: LogprobsMode
    lora_rank: int | None = None
    record_experts: bool = False
    base: Path | None = None  # the weights that an adapter is trained on, which the server must hold


async def described(ask: Ask, body: bytes) -> dict[str, Any]:
    """What the server's workers say of it. Raises `EngineError` where it was started without whet's extension."""
    try:
        answer = await ask("POST", "/collective_rpc", body)
    except RequestRefusedError as error:
        raise EngineError(
            "it was started without VLLM_SERVER_DEV_MODE=1, so it takes no weights. Set this variable, and start it "
            f"with {EXTENSION_FLAGS}. ({error})"
        ) from None
    except EndpointDownError as error:
        raise EngineError(
            f"it was started without the extension that takes weights. Start it with {EXTENSION_FLAGS}. ({error})"
        ) from None
    description: dict[str, Any] = answer["results"][0]
    return description


def mistakes(server: Mapping[str, Any], ids: list[int] | None, needs: Needs) -> list[str]:
    """What of a server, as `described`, and of its ids of `PROBE` (None: not known) does not fit, a line each."""
    texts, own = [], server["config"]
    if other := [key for key in SIZES if key in own and key in needs.config and own[key] != needs.config[key]]:
        shown = ", ".join(f"{key} {own[key]} and not {needs.config[key]}" for key in other)
        texts.append(f"its model {server['model']} is not {needs.model} ({shown}): --model")
    elif ids is not None and ids != needs.probe_ids:
        texts.append(f"its tokenizer is not that of {needs.model}: --tokenizer")
    if server["dtype"] != needs.dtype:
        texts.append(
            f"it computes in {server['dtype']} and [inference] dtype is {needs.dtype}: --dtype {needs.dtype}, or "
            f'inference.dtype = "{server["dtype"]}"'
        )
    if server["logprobs_mode"] != needs.logprobs_mode:
        texts.append(
            f"its logprobs are {server['logprobs_mode']}, which a learner cannot use with this [sampling]: "
            f"--logprobs-mode {needs.logprobs_mode}"
        )
    if needs.lora_rank is not None and server["lora_rank"] < needs.lora_rank:
        has = f"of rank {server['lora_rank']} at most" if server["lora_rank"] else "none"
        texts.append(f"it takes adapters {has}: --enable-lora --max-lora-rank {needs.lora_rank}")
    if needs.record_experts and not server["routed_experts"]:
        texts.append("it does not report experts: --enable-return-routed-experts")
    return texts
