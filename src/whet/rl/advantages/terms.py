"""What an advantage is given and gives back: the rewards of all groups of a batch, one array each, of any sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

AdvantageFunction: TypeAlias = Callable[[Sequence[Array]], list[Array]]

STD_FLOOR = 1e-4
"""Added to standard deviations: without it a group of nearly equal rewards would have enormous advantages."""
