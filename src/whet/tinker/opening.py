"""Open a server: the hub of its folder, the tables, the thread that trains."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from whet.hub.domain.hub import Hub
from whet.hub.opening import UPSTREAM, open_hub
from whet.hub.storage.database import migrate
from whet.inference.architecture import Architecture
from whet.inference.loading import Policy
from whet.inference.model_names import find_local, resolve_model
from whet.inference.plain.family import describe
from whet.rl.learner.adapters.bank import AdapterBank
from whet.rl.learner.config import LearnerConfig, Precision
from whet.rl.learner.make import Base, make_bank
from whet.tinker.sampling import OpenPolicy, Sampling
from whet.tinker.server import ServedBase, TinkerLimits, TinkerServer
from whet.tinker.storage.tables import TINKER_SCHEMA
from whet.tinker.trainer import Trainer
from whet.tinker.wire import TokenLimits


def load_engine(model: str, *, device: str = "auto", dtype: Precision = "auto", held: Base = "dense") -> OpenPolicy:
    """The policy of a model whose adapters are trained in this process; a large base is shared with them.

    Raises `ModelLoadError`.
    """
    from whet.inference.loading import load_policy

    computation = LearnerConfig(device=device, dtype=dtype).settled(adapter=True)
    policy = load_policy(
        model,
        dtype="packed" if held == "packed" else computation.dtype,
        device=device,
        base_dtype=computation.base_dtype,
        batch_invariant=True,
    )

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Policy]:
        try:
            yield policy
        finally:
            await policy.engine.close()

    return opened


def load_base(
    model: str, *, device: str = "auto", dtype: Precision = "auto", held: Base = "dense"
) -> tuple[ServedBase, AdapterBank]:
    """A model, and the adapters over it. Raises `ModelLoadError`, `ConfigError` for a device that is not there."""
    directory = resolve_model(model)
    arch = describe(directory)
    bank = make_bank(directory, computation=LearnerConfig(device=device, dtype=dtype), base=held)
    assert isinstance(arch, Architecture)  # as `make_bank` checks
    local = find_local(model) is not None
    limits = TokenLimits(arch.vocab_size, arch.max_context)
    base = ServedBase(model, limits, **bank.targets, tokenizer=str(directory) if local else model)
    return base, bank


@contextlib.contextmanager
def open_server(
    data: Path,
    base: ServedBase,
    bank: AdapterBank,
    database: str | None = None,
    limits: TinkerLimits | None = None,
    sampled: OpenPolicy | None = None,
) -> Iterator[tuple[TinkerServer, str | None]]:
    """The server of a folder, which resumes what waits in its log; at the first start also the key of its
    administrator.

    Raises `ConfigError` where another server has the folder, or where it cannot be used.
    """
    from whet.tinker.api.call import KEY

    with open_hub(data, database, None, UPSTREAM) as (hub, token):
        migrate(hub.database, TINKER_SCHEMA)
        with start_server(hub, data, base, bank, limits, sampled) as server:
            yield server, KEY + token if token is not None else None


@contextlib.contextmanager
def start_server(
    hub: Hub, data: Path, base: ServedBase, bank: AdapterBank, limits: TinkerLimits | None, sampled: OpenPolicy | None
) -> Iterator[TinkerServer]:
    """The server of a folder with the users and the database of a hub that is open. Raises `ConfigError`."""
    server = TinkerServer(hub, data, base, bank, limits or TinkerLimits())
    trainer = Trainer(server)
    if sampled is not None:
        server.sampling = Sampling(sampled, server.states, server.answers, server.limits)
        server.decode = server.sampling.start().renderer.decode
    try:
        trainer.start()
        try:
            yield server
        finally:
            trainer.stop()
    finally:
        if server.sampling is not None:
            server.sampling.stop()
