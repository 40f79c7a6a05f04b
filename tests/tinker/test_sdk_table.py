"""The guide's table of what works, against the methods that the SDK has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import tinker

GUIDE = Path(__file__).parents[2] / "docs" / "tinker.md"


def test_the_share_of_methods_that_work() -> None:
    methods = {
        (client.__name__, name.removesuffix("_async"))
        for client in (tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient)
        for name, member in inspect.getmembers(client)
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }
    text = GUIDE.read_text()
    row = next(line for line in text.splitlines() if line.startswith("| `RestClient.whoami`"))
    refused = re.findall(r"`(?:RestClient\.)?(\w+)`", row.split(" | ")[0])
    assert {("RestClient", name) for name in refused} <= methods
    works = len(methods) - len(refused)
    assert f"Of the {len(methods)} public methods" in text
    assert f"{works} work, {len(refused)} of `RestClient` are refused" in text
    assert works >= 0.9 * len(methods)
