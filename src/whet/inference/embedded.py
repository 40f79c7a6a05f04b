"""The embedded engine: continuous batching of one torch model in the event loop's own thread.

Torch runs inline, between awaits: with one thread, the same requests in the same order give bit-identical ids and
logprobs, and new weights can only ever arrive between two decode steps. The driver task lives while there is work. It
alternates one decode step with a few turns of the event loop, in which finished rollouts request their next turn.

This file only joins the parts. In `decoding/`: the slots of rows and the width of the cache (`scheduler.py`),
prompts (`prefill.py`), the arithmetic (`decoder.py`), drawing (`sampling.py`), stop strings and listeners
(`followers.py`). In `weights/`: loading new weights (`weight_loader.py`). For families that `decoder.py` does
not know, `plain/` has a decoder, a cache and a form of weights that take the place of these.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import torch

from whet.errors import ModelError, ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.decoding.adapter_rows import AdapterRows, adapters_of_steps
from whet.inference.decoding.cache import BatchRows, KVCache
from whet.inference.decoding.followers import Followers, OnDrawn
from whet.inference.decoding.parts import WholeModel, engine_parts, free_all, give_back, read_whole
from whet.inference.decoding.prefill import Prefill
from whet.inference.decoding.sampling import draw, note_kept
from whet.inference.decoding.scheduler import LoadedAdapter, SampleJob, Scheduler, Settle, columns_read, let_others_run
from whet.inference.decoding.scoring import answer, note_likeliest, scorer_of
from whet.inference.limits import EngineLimits, EngineStats, device_memory
from whet.inference.plain.family import OtherFamily
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, WeightUpdate
from whet.inference.requests import check_adapter, check_request
from whet.inference.stops import StopWatcher, TextDecoder

_PATIENCE = 4
"""Decode steps that a few new requests wait for more, while many rows run: a prefill of one row costs half a step."""


class EmbeddedEngine(Engine):
    """An `Engine` over one checkpoint on the CPU or one CUDA device. See `loading.load_policy` to make one."""

    recomputes = False  # rows run through an update with the keys and values they have

    def __init__(
        self,
        arch: Architecture | OtherFamily,
        named: WholeModel,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        limits: EngineLimits | None = None,
        decode_text: TextDecoder | None = None,
        seed: int | None = None,
        record_experts: bool = False,
        record_kept: bool = False,
        repeatable: bool = True,
        batch_invariant: bool = False,
        adapter: Path | None = None,
    ) -> None:
        """`named` are the model's weights; of another family it is the model, which becomes the engine's own. With
        `adapter`, the directory of one, they are those of the base that it is put onto. `decode_text` is needed for
        stop strings only; `seed` fixes the draws of requests that bring none.

        Where it is not `repeatable`, memory keeps its shape from one burst of requests to the next: less work where
        they come one by one, but in the last bits of a logprob an answer may depend on earlier requests.

        With `batch_invariant` an answer of a dense model in float32 on a CPU has the same bits whatever else is in the
        batch, other adapters included; few rows are computed as four, which takes one row up to four times as long.

        With `record_experts` samples of a mixture of experts record which experts their tokens went to, with
        `record_kept` those of requests that cut record which tokens were left to draw from.
        """
        limits = limits or EngineLimits()
        self.arch, self.dtype, self.device = arch, dtype, torch.device(device)
        self.max_context = min(limits.max_context or arch.max_context, arch.max_context)
        self.version = 0
        self.settle: Settle = let_others_run  # between decode steps; another one makes batches independent of timing
        self.stats = EngineStats()
        self._merged = adapter is not None  # whether the weights in use are the base with an adapter in it
        self._adapters: dict[str, LoadedAdapter] = {}
        self._decode_text = decode_text
        self._seed = secrets.randbits(63) if seed is None else seed
        kv_bytes = limits.kv_bytes or device_memory(self.device) // 4
        self._cache, self._bytes_per_token, self._weight_loader, self._decoder = engine_parts(
            arch,
            named,
            dtype=dtype,
            device=self.device,
            record_experts=record_experts,
            adapter=adapter,
            batch_invariant=batch_invariant,
        )
        self._token_budget = kv_bytes // self._bytes_per_token
        self._scheduler = Scheduler(
            max_rows=limits.max_rows, token_budget=self._token_budget, keep_columns=not repeatable
        )
        self._records_experts = record_experts and arch.experts is not None
        self._records_kept = record_kept
        self._rows = BatchRows(self.device, arch.vocab_size)
        self._prefill = Prefill(self._scheduler, self._rows, self._decoder, self.stats, arch, self._token_budget)
        self._followers = Followers()
        self._row_adapters: AdapterRows | None = None  # of the rows that run, as long as any has one
        self._began: dict[SampleJob, int] = {}  # decode step a running job was admitted at
        self._held_back = 0
        self._reach = 0  # columns in use at step n are n + reach
        self._driver: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._asleep = self._closed = False

    @classmethod
    def from_directory(cls, directory: Path, **options: Any) -> EmbeddedEngine:
        """From a `transformers` checkpoint; `options` are those of the class.

        Raises `ModelLoadError` for files that are missing, torn or unsupported.
        """
        return cls(*read_whole(directory, options.get("dtype", torch.float32)), **options)

    async def sample(
        self, request: SampleRequest, *, on_tokens: OnTokens | None = None, on_drawn: OnDrawn | None = None
    ) -> Sample:
        """See `Engine`; `on_drawn` takes the place of `on_tokens`."""
        self._check(request, listens=on_tokens is not None or on_drawn is not None)
        seed = request.params.seed
        if seed is None:
            self._seed += 1
            seed = self._seed
        waiter: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        adapter = None if request.adapter is None else self._adapters[request.adapter]
        job = SampleJob(request=request, seed=seed, waiter=waiter, adapter=adapter)
        job.scorer = scorer_of(job)
        self._scheduler.submit(job)
        self._followers.listen(job, on_tokens, on_drawn)
        self.stats.requests += 1
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive(), name="whet embedded engine")
        try:
            return await waiter
        except BaseException:
            self._drop(job)
            raise

    @property
    def requests_in_flight(self) -> int:
        """Requests that are being answered or wait for a row."""
        return len(self._scheduler.jobs)

    def answer_lengths(self) -> list[int]:
        """Tokens so far of each answer that is being sampled; may be called from another thread."""
        steps = self.stats.decode_steps
        return [max(0, steps - began) for began in self._began.copy().values()]

    @property
    def adapters(self) -> dict[str, int]:
        """The adapters that requests may name, and the version of each."""
        return {name: adapter.version for name, adapter in self._adapters.items()}

    async def load_weights(self, update: WeightUpdate) -> None:
        """See `Engine`. An adapter without a name is merged onto the last whole model; KV of finished turns is dropped.

        Raises `ModelLoadError`, and changes nothing, for files that are missing, torn or of another model, where
        adapters with a name would lose their base, and for an adapter after packed weights.
        """
        async with self._loading:
            if update.kind == "adapter" and update.adapter is not None:
                await self._load_adapter(update.adapter, update)
            else:
                await self._load_whole(update)

    async def sleep(self) -> int:
        """See `Engine`. The weights that an adapter was merged onto stay, for the next adapter."""
        async with self._loading:
            if self._scheduler.jobs or self._adapters:
                raise ModelError("an engine that answers requests, or serves adapters with a name, cannot sleep")
            self._scheduler.clear()
            self._asleep = True
            return free_all(self._cache, self._decoder, self._weight_loader, keep_base=self._merged)

    async def wake(self, update: WeightUpdate) -> None:
        """See `Engine`."""
        await self.load_weights(update)

    async def _load_whole(self, update: WeightUpdate) -> None:
        if self._adapters or any(job.adapter is not None for job in self._scheduler.jobs):
            names = ", ".join(self._adapters) or "one that was unloaded and is still being answered with"
            raise ModelLoadError(f"the engine's weights cannot change under its adapters ({names}); unload them first")
        # Running requests continue; what was read is taken between two decode steps.
        busy = bool(self._scheduler.running)
        loader, in_use = self._weight_loader, self._decoder.weights
        base, weights = await asyncio.to_thread(loader.read, update, in_use) if busy else loader.read(update, in_use)
        retired: list[object] = [loader.base, in_use]
        loader.base, self._decoder.weights = base, weights
        del in_use
        self.version, self._merged, self._asleep = update.version, update.kind == "adapter", False
        self._scheduler.set_version(update.version)
        self._mark_version(None)
        if busy:  # giving gigabytes back to the system takes as long as a step
            await asyncio.to_thread(retired.clear)

    async def _load_adapter(self, name: str, update: WeightUpdate) -> None:
        """Requests continue while the files are read; what was read is taken between two decode steps."""
        if self._merged:
            raise ModelLoadError(
                f"adapter {name!r} cannot be served with weights that have an adapter merged into them; serve the base"
            )
        packed = await asyncio.to_thread(self._weight_loader.read_adapter, update.path)
        known = self._adapters.get(name)
        if known is None:
            self._adapters[name] = LoadedAdapter(name, update.version, packed)
            return
        known.version, known.packed = update.version, packed
        self._scheduler.forget(known)
        self._mark_version(known)
        self._place_adapters()

    async def unload_adapter(self, name: str) -> None:
        """See `Engine`."""
        check_adapter(name, self._adapters)
        adapter = self._adapters.pop(name)
        adapter.served = False
        self._scheduler.forget(adapter)

    def _mark_version(self, adapter: LoadedAdapter | None) -> None:
        """Running rows of an adapter, or of the engine's own weights, draw from another version from here on."""
        for job in self._scheduler.running:
            if job.adapter is adapter:
                job.marks.append((self._scheduler.version_of(adapter), self._next_position(job)))

    async def release(self, rollout_key: str) -> None:
        self._scheduler.release(rollout_key)
        if not self._scheduler.jobs:
            give_back(self._cache, self._scheduler, self._bytes_per_token)

    async def close(self) -> None:
        """Stop; requests in progress fail with a `ModelError`."""
        self._closed = True
        self._fail_all(ModelError("the engine was closed while requests were waiting"))
        if self._driver is not None and not self._driver.done():
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)

    def _check(self, request: SampleRequest, *, listens: bool) -> None:
        if self._closed or self._asleep:
            raise ModelError(f"the engine {'is closed' if self._closed else 'sleeps'}")
        check_request(
            request,
            vocab_size=self.arch.vocab_size,
            max_context=self.max_context,
            token_budget=self._token_budget,
            decodes_text=self._decode_text is not None,
            adapters=self._adapters,
            listens=listens,
        )

    async def _drive(self) -> None:
        try:
            await self.settle(True)
            while True:
                self._admit()
                if not self._began:
                    assert not self._scheduler.waiting, "a request that fits is waiting and nothing runs"
                    give_back(self._cache, self._scheduler, self._bytes_per_token)
                    return
                finished = self._step()
                await self.settle(finished)
        except asyncio.CancelledError:
            self._fail_all(ModelError("the engine's event loop is shutting down"))
            raise
        except Exception as error:
            self._fail_all(ModelError(f"the engine failed: {type(error).__name__}: {error}"), cause=error)

    @torch.inference_mode()
    def _admit(self) -> None:
        scheduler = self._scheduler
        if not scheduler.waiting:
            return
        if len(scheduler.waiting) * 8 < len(self._began) and self._held_back < _PATIENCE:
            self._held_back += 1
            return
        self._held_back = 0
        afresh = scheduler.empty
        admissions = scheduler.admit(by_rollout=self.settle is not let_others_run)
        if admissions:
            self._prefill.admit(admissions, afresh=afresh)
            jobs = [admission.job for admission in admissions]
            self._rows.start(jobs)
            for job in jobs:
                self._began[job] = self.stats.decode_steps
                if job.request.params.stop:
                    assert self._decode_text is not None
                    self._followers.watch(job, StopWatcher(job.request.params.stop, self._decode_text))
            self._rows_changed()

    @torch.inference_mode()
    def _step(self) -> bool:
        """One decode step of all running rows; True when some are done."""
        rows, scheduler = self._rows, self._scheduler
        count = scheduler.rows
        needed = self.stats.decode_steps + self._reach
        if needed >= self._cache.columns:
            self._cache.resize(self._cache.slots, self._prefill.columns_held(needed), kept=len(scheduler.slots))
        width = columns_read(needed, self._cache.columns, on_cpu=self.device.type == "cpu")
        places_B = rows.next_places(count)
        logits_BV = self._decoder.decode(
            rows.tokens_ST.view(-1).index_select(0, places_B), rows.position_S[:count], width, self._row_adapters
        )
        places_B += 1
        drawn = draw(
            logits_BV,
            rows.uniforms_ST.view(-1).index_select(0, places_B),
            inverse_temperature_B=rows.inverse_temperature(count),
            greedy_B=rows.greedy(count),
            cuts=rows.cuts(count),
        )
        done_B = rows.advance(places_B, drawn)
        jobs_B = [slot.job for slot in scheduler.slots[:count]]
        if self._records_kept:
            note_kept(jobs_B, drawn)
        note_likeliest(jobs_B, drawn)
        self.stats.decode_steps += 1
        self.stats.generated_tokens += len(self._began)
        done = set(done_B.nonzero().flatten().tolist()) if bool(done_B.any()) else set()
        done |= self._followers.push(drawn)
        for slot in sorted(done):
            job = scheduler.slots[slot].job
            assert job is not None
            self._finish(job, slot)
        if done:
            rows.stop(sorted(done))
            self._rows_changed()
        return bool(done)

    def _finish(self, job: SampleJob, slot: int) -> None:
        params, prompt = job.request.params, job.request.prompt_ids
        end = self._next_position(job)
        ids, logprobs, kept_mass = self._rows.drawn(slot, len(prompt), end)
        experts = None
        if self._records_experts and isinstance(self._cache, KVCache):
            experts = self._cache.experts[:, slot, : end - 1].transpose(0, 1).contiguous().cpu().numpy()
        stopped = self._followers.stopped(job) or ids[-1] in params.stop_token_ids
        self._scheduler.finish(job, prompt + ids[:-1])
        self._forget(job)
        sample = Sample(ids, logprobs, job.versions(end), "stop" if stopped else "length", experts)
        sample.kept_mass = kept_mass if params.cuts else None
        answer(job, sample)

    def _next_position(self, job: SampleJob) -> int:
        """The position of the next token that `job` draws."""
        return len(job.request.prompt_ids) + self.stats.decode_steps - self._began[job]

    @torch.inference_mode()
    def _rows_changed(self) -> None:
        """After rows came or went: close gaps, and recompute what the next steps take for granted."""
        self._reach = max((len(job.request.prompt_ids) - began for job, began in self._began.items()), default=0)
        pairs = self._scheduler.compaction()
        if pairs:
            sources, targets = (list(side) for side in zip(*pairs, strict=True))
            parked = max(len(self._scheduler.slots[slot].ids) for slot in sources)
            self._cache.swap(sources, targets, max(parked, self.stats.decode_steps + self._reach))
            self._rows.swap(sources, targets)
        self._rows.note_params([job.request.params for job in self._began])
        self._place_adapters()

    def _place_adapters(self) -> None:
        self._row_adapters = adapters_of_steps(self._scheduler, self._began, self._row_adapters, self.device)

    @torch.inference_mode()
    def _drop(self, job: SampleJob) -> None:
        """The request was cancelled or has failed: free its slot."""
        slot = job.slot
        self._scheduler.cancel(job)
        self._forget(job)
        if slot is not None:
            self._rows.stop([slot])
            self._rows_changed()

    def _forget(self, job: SampleJob) -> None:
        self._began.pop(job, None)
        self._followers.forget(job)

    @torch.inference_mode()
    def _fail_all(self, error: ModelError, *, cause: Exception | None = None) -> None:
        error.__cause__ = cause
        for job in self._scheduler.clear():
            self._forget(job)
            if not job.waiter.done():
                job.waiter.set_exception(error)
        self._rows.stop(list(range(self._rows.slots)))
