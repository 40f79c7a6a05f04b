"""The models of evaluations: run in this process, or reached at an endpoint. Torch is imported only for the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from whet.clients.client import Client
from whet.clients.config import ClientConfig, EndpointConfig
from whet.clients.endpoints import read_endpoints
from whet.clients.make import make_client
from whet.errors import ConfigError, ModelLoadError
from whet.evals.config import EvalConfig
from whet.inference.devices import check_device
from whet.inference.protocol import sampling_text
from whet.inference.sampling_args import read_sampling_args
from whet.system.files import expanded
from whet.system.terminal import duration

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Sampling arguments that limit an answer; the last is what the Responses interface of endpoints calls it."""
MEASURED_S = 10.0
"""Seconds over which the speed of sampling is measured."""
AnyClient = Client[Any, Any, Any, Any]
EndpointT = TypeVar("EndpointT", bound=EndpointConfig)


@asynccontextmanager
async def open_model(
    config: EvalConfig, *, max_rows: int | None = None, processes: int = 1
) -> AsyncIterator[Client[Any, Any, Any, Any]]:
    """A client for `config.model`, closed in the end. Raises `WhetError` where the model cannot be had.

    Args:
        config: names the model, and where it is.
        max_rows: rollouts that a model of this process decodes together; `config.max_concurrent` if absent.
        processes: how many processes share what the endpoint allows at once.
    """
    if config.base_url is None:
        from whet.inference.loading import load_policy

        rows = config.max_concurrent if max_rows is None else max_rows
        how: dict[str, Any] = {
            "dtype": config.dtype,
            "device": config.device,
            "threads": config.threads,
            "max_rows": rows,
        }
        if config.engine == "vllm":
            from whet.inference.vllm.policy import mode_for, open_vllm_policy

            mode = mode_for(read_sampling_args(config.resolved_sampling({})))
            async with open_vllm_policy(config.model, logprobs_mode=mode, **how) as served:
                yield served.client
            return
        policy = load_policy(config.model, **how)
        try:
            yield policy.client
        finally:
            await policy.engine.close()
        return
    client = make_client(_shared(endpoint_of(config), processes))
    try:
        yield client
    finally:
        await client.close()


def endpoint_of(config: EvalConfig) -> ClientConfig:
    """Where the model of an evaluation is, for one that is not run here."""
    assert config.base_url is not None
    return config.endpoint or ClientConfig(api_base_url=config.base_url, api_key_var=config.api_key_var)


def _shared(endpoint: ClientConfig, processes: int) -> ClientConfig:
    """What one of several processes may have of an endpoint."""

    def part(one: EndpointT) -> EndpointT:
        most = one.max_concurrent
        return one if most is None else one.model_copy(update={"max_concurrent": max(1, most // processes)})

    return part(endpoint).model_copy(update={"endpoint_configs": [part(one) for one in endpoint.endpoint_configs]})


def limit_of(sampling: Mapping[str, Any]) -> Any:
    """The most tokens of an answer; None where nothing ends it but the model itself."""
    extra = sampling.get("extra_body")
    given = {**sampling, **(extra if isinstance(extra, Mapping) else {})}
    return next((given[key] for key in _LIMITS if given.get(key) is not None), None)


def about_length(config: EvalConfig, sampling: Mapping[str, Any], rollouts: int, option: str) -> str:
    """A line about answers that nothing ends but the model itself, or whose limit is above its context; or "".

    `option` is what sets the limit. The time is not known before the first tokens are there: see `report_speed`.
    """
    limit = limit_of(sampling)
    if not config.local:
        if limit is not None:
            return ""
        return f"no max_tokens: the endpoint decides how long an answer may be; {option} limits it"
    from whet.inference.loading import context_of, over_context

    context = context_of(config.model)
    if limit is not None:
        return "".join(over_context(option, limit, context)) if isinstance(limit, int) else ""
    if context is None:
        return f"no max_tokens: an answer may go on until the model's context is full; {option} limits it"
    return (
        f"no max_tokens: an answer that does not end goes on until the context of {context:,} tokens is full, for "
        f"{rollouts:,} rollouts up to {rollouts * context:,} tokens; {option} limits an answer"
    )


def most_tokens(config: EvalConfig, sampling: Mapping[str, Any], rollouts: int) -> int:
    """Tokens of that many rollouts where no answer ends before the context is full; 0 where that is not known."""
    if not config.local or limit_of(sampling) is not None:
        return 0
    from whet.inference.loading import context_of

    return rollouts * (context_of(config.model) or 0)


async def report_speed(
    models: Models, most: int, note: Callable[[str], None], *, seconds: float = MEASURED_S, pause: float = 0.5
) -> None:
    """Say once how long `most` tokens would take, measured over `seconds` from the first token that is sampled here."""
    began: tuple[float, int] | None = None
    while True:
        now, tokens = time.monotonic(), models.sampled_tokens()
        if began is None and tokens:
            began = now, tokens
        elif began is not None and now - began[0] >= seconds and tokens > began[1]:
            break
        await asyncio.sleep(pause)
    speed = (tokens - began[1]) / (now - began[0])
    note(
        f"no max_tokens: {speed:,.0f} tokens a second were sampled in the first {now - began[0]:.0f} s; all rollouts "
        f"take about {duration(most / speed)} if no answer ends before its context is full, and less if answers end"
    )


def check_models(configs: Sequence[EvalConfig]) -> None:
    """Raise `ModelLoadError` for a model that is missing here, as far as this is known without a download, and
    `ConfigError` for a device that is not here, or that no model is run on, and `EngineError` for missing vLLM."""
    from whet.inference.loading import check_model

    for config in configs:
        if config.engine == "vllm" and not config.local:
            raise ConfigError(
                f'engine = "vllm" would have no effect: {config.model} is behind an endpoint, {config.base_url}. '
                "Remove engine."
            )
    named = [config for config in configs if config.device != "auto"]
    for config in named:
        if config.local:
            check_device(config.device, "device")
    if any(config.engine == "vllm" for config in configs):
        from whet.inference.vllm.interpreter import find_vllm

        find_vllm(None)
    if named and not any(config.local for config in named):
        raise ConfigError(
            f'device = "{named[0].device}" would have no effect: {named[0].model} is behind an endpoint, '
            f"{named[0].base_url}, which computes where its server does. Remove device."
        )
    _each_local(configs, check_model)


def find_models(configs: Sequence[EvalConfig]) -> None:
    """See that every model to be run here is there, and download what is not, before anything is paid for.

    Raises `ModelLoadError` for one that cannot be had.
    """
    from whet.inference.model_names import resolve_model

    _each_local(configs, resolve_model)


def _each_local(configs: Sequence[EvalConfig], act: Callable[[str], object]) -> None:
    """`act` on the name of each model to be run here; its error says how a model behind an endpoint is named."""
    for config in {config.model: config for config in configs if config.local}.values():
        try:
            act(config.model)
        except ModelLoadError as error:
            if expanded(config.model).exists():
                raise
            raise ModelLoadError(f"{error} {_endpoint_hint(config)}") from None


def _endpoint_hint(config: EvalConfig) -> str:
    """How the model is named if it is behind an endpoint, with the short names that the file has."""
    hint = "For a model behind an endpoint, give the endpoint's URL with -b, or"
    known = read_endpoints(config.endpoints) if config.endpoints.exists() else {}
    same = [name for name, endpoint in known.items() if endpoint.model == config.model.rpartition("/")[2]]
    if not known:
        return f"{hint} add it to {config.endpoints}."
    return f"{hint} a short name from {config.endpoints}: -m {' or '.join(same or known)}."


class Models:
    """The models of several evaluations: each opened when it is first needed, and closed after its last evaluation."""

    def __init__(self, configs: Sequence[EvalConfig], *, processes: int = 1) -> None:
        """Of evaluations with these configs, which are named by their place here."""
        self._configs, self._processes = list(configs), processes
        self._keys = [_key(config) for config in configs]
        self._users: dict[Hashable, set[int]] = {}
        for number, key in enumerate(self._keys):
            self._users.setdefault(key, set()).add(number)
        self._open: dict[Hashable, tuple[AsyncExitStack, AnyClient]] = {}

    async def client(self, evaluation: int) -> AnyClient:
        """The client of an evaluation. Raises `WhetError` where its model cannot be had."""
        config, key = self._configs[evaluation], self._keys[evaluation]
        if key not in self._open:
            most = max(self._configs[user].max_concurrent for user in self._users[key])
            stack = AsyncExitStack()
            opening = open_model(config, max_rows=most, processes=self._processes)
            self._open[key] = stack, await stack.enter_async_context(opening)
        return self._open[key][1]

    def sampling(self) -> str:
        """What the models run here are sampling, in words; "" for nothing. May be called from another thread."""
        texts = [sampling_text(getattr(client, "engine", None)) for _, client in list(self._open.values())]
        return ", ".join(text for text in texts if text)

    def sampled_tokens(self) -> int:
        """Tokens that the models run here have sampled, as far as their engines count them."""
        engines: list[Any] = [getattr(client, "engine", None) for _, client in list(self._open.values())]
        return sum(engine.stats.generated_tokens for engine in engines if hasattr(engine, "stats"))

    async def release(self, evaluation: int) -> None:
        """An evaluation needs its model no more."""
        key = self._keys[evaluation]
        self._users[key].discard(evaluation)
        if not self._users[key] and key in self._open:
            stack, _ = self._open.pop(key)
            await stack.aclose()

    async def close(self) -> None:
        """Close every model."""
        while self._open:
            _, (stack, _) = self._open.popitem()
            await stack.aclose()


def _key(config: EvalConfig) -> Hashable:
    """Evaluations with equal keys share a model."""
    if config.local:
        sampling = tuple(sorted(map(str, config.sampling_args.items()))) if config.engine == "vllm" else ()
        return "here", config.engine, config.model, config.dtype, config.device, config.threads, sampling
    return "endpoint", endpoint_of(config).model_dump_json()
