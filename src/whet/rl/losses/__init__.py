"""Losses over sampled tokens, one file each. `LossConfig` is torch-free; the functions are found through `registry`."""

from whet.rl.losses.config import AlgorithmConfig, LossConfig

__all__ = ["AlgorithmConfig", "LossConfig"]
