"""How many tokens a prefill pass computes at once."""

from __future__ import annotations

from dataclasses import replace

from whet.inference.architecture import read_architecture
from whet.inference.decoding.prefill import CUDA_PREFILL_TOKENS, PREFILL_TOKENS, Fill, prefill_batches, tokens_at_once
from whet.inference.model_names import resolve_model


def test_a_wide_model_computes_fewer_tokens_at_once_on_a_cpu() -> None:
    tiny = read_architecture(resolve_model("whet/tiny"))
    wide = replace(tiny, intermediate_size=4864)
    assert tokens_at_once(tiny, on_cuda=False) == PREFILL_TOKENS
    most = tokens_at_once(wide, on_cuda=False)
    assert most * 2 * wide.intermediate_size * 4 <= 32 << 20
    assert tokens_at_once(wide, on_cuda=True) == CUDA_PREFILL_TOKENS
    batches = prefill_batches([Fill(slot, 0, [1] * 100, None) for slot in range(32)], most)
    assert max(sum(len(fill.tokens) for fill in batch) for batch in batches) <= most
    assert sum(map(len, batches)) == 32
