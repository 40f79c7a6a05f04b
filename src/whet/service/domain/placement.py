"""What fits where. Pure.

A runner holds a run if its cores, its memory and its devices, less those of what runs there, cover the run's needs.
Devices are not shared; `device_memory` is that of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Amount:
    """Cores, bytes of memory, devices and bytes of each device: what a run needs, or what a runner has."""

    cores: float = 0.0
    memory: int = 0
    devices: int = 0
    device_memory: int = 0

    @staticmethod
    def of(values: Mapping[str, Any]) -> Amount:
        """From the JSON of a row; what is absent is none."""
        return Amount(
            float(values.get("cores") or 0.0),
            int(values.get("memory") or 0),
            int(values.get("devices") or 0),
            int(values.get("device_memory") or 0),
        )

    def holds(self, needs: Amount) -> bool:
        """Whether a runner with this much free holds a run."""
        enough = needs.cores <= self.cores and needs.memory <= self.memory and needs.devices <= self.devices
        return enough and (needs.devices == 0 or needs.device_memory <= self.device_memory)

    def less(self, taken: Iterable[Amount]) -> Amount:
        """What is left of a runner's capacity beside those runs; negative where more runs than it has."""
        cores, memory, devices = self.cores, self.memory, self.devices
        for one in taken:
            cores, memory, devices = cores - one.cores, memory - one.memory, devices - one.devices
        return Amount(cores, memory, devices, self.device_memory)

    def short_of(self, needs: Amount) -> str:
        """What is missing for a run, in words; empty if nothing is."""
        missing = []
        if needs.cores > self.cores:
            missing.append(
                f"{needs.cores:g} {'core' if needs.cores == 1 else 'cores'} (there are {max(0.0, self.cores):g})"
            )
        if needs.memory > self.memory:
            missing.append(f"{needs.memory / GIB:.1f} GiB of memory (there are {max(0, self.memory) / GIB:.1f})")
        if needs.devices > self.devices:
            missing.append(f"{needs.devices} devices (there are {max(0, self.devices)})")
        elif needs.devices and needs.device_memory > self.device_memory:
            wanted, there = needs.device_memory / GIB, self.device_memory / GIB
            missing.append(f"{wanted:.1f} GiB of memory on a device (there are {there:.1f})")
        return ", ".join(missing)


@dataclass(frozen=True, slots=True)
class Place:
    """A runner that takes runs: all that it has, and what is free."""

    runner: str
    capacity: Amount
    free: Amount
