"""Blocks of GGUF files become the numbers that the `gguf` package makes of them."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from whet.errors import ModelLoadError
from whet.inference.weights.gguf_blocks import FORMATS, block_format

ROWS, BLOCKS = 7, 5


def random_rows(name: str, seed: int) -> np.ndarray:
    """Blocks of random bits, scales of every size and sign among them; no NaN, whose bits depend on the processor."""
    size = FORMATS[name].size
    rows = np.random.default_rng(seed).integers(0, 256, (ROWS, BLOCKS * size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name])
    kept = np.isfinite(values).reshape(ROWS * BLOCKS, -1).all(axis=1)
    rows.reshape(ROWS * BLOCKS, size)[~kept] = 0
    return rows


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(20))
def test_equals_the_gguf_package_bit_for_bit(name: str, seed: int) -> None:
    rows = random_rows(name, seed)

    ours = block_format(name).dequantize(torch.from_numpy(rows).T.contiguous()).T.contiguous()

    theirs = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name])
    assert ours.dtype == torch.float32
    assert ours.shape == (ROWS, BLOCKS * FORMATS[name].weights)
    assert np.array_equal(ours.numpy().view(np.int32), theirs.view(np.int32))


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_are_those_of_the_gguf_package(name: str) -> None:
    assert (FORMATS[name].weights, FORMATS[name].size) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ModelLoadError, match="TQ1_0"):
        block_format("TQ1_0")
