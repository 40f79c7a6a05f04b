"""The seed of each rollout of an evaluation."""

from __future__ import annotations

import hashlib


def rollout_seed(seed: int, example_id: object, index: int) -> int:
    """A seed in [0, 2**63) for the rollout in place `index` of a task's group."""
    digest = hashlib.blake2b(f"eval/{seed}/{example_id}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
