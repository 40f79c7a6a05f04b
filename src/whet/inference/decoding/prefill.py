"""Prompts of new rows on their way into the KV cache: in which order, in which batches, and the passes themselves.

`waves` and `prefill_batches` are pure decisions; `Prefill` carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from whet.inference.architecture import Architecture
from whet.inference.decoding.adapter_rows import AdapterRows
from whet.inference.decoding.cache import BatchRows
from whet.inference.decoding.decoder import Decoder
from whet.inference.decoding.scheduler import Admission, LoadedAdapter, Scheduler, columns_held
from whet.inference.decoding.scoring import PromptScorer
from whet.inference.limits import EngineStats
from whet.inference.plain.family import OtherFamily

if TYPE_CHECKING:
    from whet.inference.plain.decoder import PlainDecoder

PREFILL_TOKENS, CUDA_PREFILL_TOKENS = 1 << 13, 1 << 15
"""Padded tokens of one prefill pass at most; on CUDA enough to keep its matrix units busy with a small model."""
_CPU_NUMBERS = 1 << 23
"""What a pass computes of one layer at most on a CPU, which a wide model gains nothing from: 32 MiB in float32."""


def tokens_at_once(arch: Architecture | OtherFamily, *, on_cuda: bool) -> int:
    """Of one prefill pass."""
    if on_cuda:
        return CUDA_PREFILL_TOKENS
    width = 2 * arch.intermediate_size if isinstance(arch, Architecture) else 1
    return min(PREFILL_TOKENS, max(1, _CPU_NUMBERS // width))


class Fill(NamedTuple):
    """Tokens to compute from position `start` of a slot on."""

    slot: int
    start: int
    tokens: list[int]
    adapter: LoadedAdapter | None
    scorer: PromptScorer | None = None


def fills_of(wave: list[Admission]) -> list[Fill]:
    """What is left to compute of each prompt: all but what is reused, and but the last token."""
    return [
        Fill(each.slot, each.reused, each.job.request.prompt_ids[each.reused : -1], each.job.adapter, each.job.scorer)
        for each in wave
    ]


def waves(admissions: list[Admission]) -> list[list[Admission]]:
    """Admissions in the order they must be filled: a copy from another admission comes one wave later."""
    level: dict[int, int] = {}
    by_wave: list[list[Admission]] = []
    for admission in admissions:
        wave = level.get(admission.donor, -1) + 1 if admission.donor is not None else 0
        level[admission.slot] = wave
        while len(by_wave) <= wave:
            by_wave.append([])
        by_wave[wave].append(admission)
    return by_wave


def prefill_batches(fills: list[Fill], most: int = PREFILL_TOKENS) -> list[list[Fill]]:
    """Rows in batches of similar length, so that little is padding and little is held at once; scored ones apart."""
    batches: list[list[Fill]] = []
    filled = [fill for fill in fills if fill.tokens]
    for fill in sorted(filled, key=lambda fill: (fill.scorer is not None, -len(fill.tokens), fill.slot)):
        if batches and (fill.scorer is None) == (batches[-1][0].scorer is None):
            longest = len(batches[-1][0].tokens)
            fits = (len(batches[-1]) + 1) * longest <= most
            if fits and 4 * len(fill.tokens) + 32 >= 3 * longest:
                batches[-1].append(fill)
                continue
        batches.append([fill])
    return batches


def adapter_rows(adapters: Sequence[LoadedAdapter | None], device: torch.device) -> AdapterRows | None:
    """The adapters of a batch as the decoder takes them; None where no row has one."""
    return AdapterRows.of([None if adapter is None else adapter.packed for adapter in adapters], device)


class Prefill:
    """Makes room for new rows and computes their prompts."""

    def __init__(
        self,
        scheduler: Scheduler,
        rows: BatchRows,
        decoder: Decoder | PlainDecoder,
        stats: EngineStats,
        arch: Architecture | OtherFamily,
        token_budget: int,
    ) -> None:
        self._scheduler, self._rows, self._decoder, self._stats = scheduler, rows, decoder, stats
        self._cache = decoder.cache
        self._device = self._cache.index.device
        self._token_budget = token_budget
        self._at_once = tokens_at_once(arch, on_cuda=self._device.type == "cuda")

    def admit(self, admissions: list[Admission], *, afresh: bool) -> None:
        """Bring the prompts of `admissions` into the cache; with `afresh`, nothing that it holds is kept."""
        self._fit_tensors(max(len(admission.job.request.prompt_ids) for admission in admissions), afresh=afresh)
        for wave in waves(admissions):
            self._fill(wave)

    def columns_held(self, needed: int) -> int:
        """Columns that the cache is to hold while rows need `needed`."""
        # One more than is needed: a finished row stays at the column after its last.
        return columns_held(needed + 1, self._scheduler.columns, on_cpu=self._device.type == "cpu")

    def _fit_tensors(self, longest: int, *, afresh: bool) -> None:
        """Room for rows with prompts of up to `longest` tokens."""
        scheduler, rows, cache = self._scheduler, self._rows, self._cache
        needed, columns, slots = len(scheduler.slots), scheduler.columns, rows.slots
        if afresh and not scheduler.keep_columns:
            slots, held = needed, 0  # so that nothing depends on earlier requests
        else:
            grown = 2 * slots if needed > slots else slots
            slots, held = max(needed, min(grown, self._token_budget // columns)), min(cache.columns, columns)
        if (slots, columns) != (rows.slots, rows.columns):
            rows.resize(slots, columns)
        held = max(held, self.columns_held(longest))
        if (slots, held) != (cache.slots, cache.columns):
            cache.resize(slots, held, kept=0 if afresh else needed)

    def _fill(self, wave: list[Admission]) -> None:
        """Bring the prompts of one wave into the cache: first what can be copied, then what must be computed."""
        copies = [(a.donor, a.slot, a.reused) for a in wave if a.donor is not None]
        if copies:
            donors, targets, lengths = zip(*copies, strict=True)
            self._cache.copy_prefix(list(donors), list(targets), max(lengths))
        fills = fills_of(wave)
        for batch in prefill_batches(fills, self._at_once):
            slots, starts, tokens, adapters, scorers = zip(*batch, strict=True)
            rows = adapter_rows(adapters, self._device)
            self._decoder.prefill(list(slots), list(starts), list(tokens), rows, [one for one in scorers if one])
        self._stats.prefill_tokens += sum(len(fill.tokens) for fill in fills)
        self._stats.reused_tokens += sum(admission.reused for admission in wave)
