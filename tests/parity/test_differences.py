"""The list of differences in docs/design/environments.md and the one that the comparison goes by are the same."""

import re

from differences import ENVIRONMENTS, FUNCTIONS, PACKAGES
from sides import ROOT

# Of threads and signals, of code that imports whet, of how permits are counted: they do not show in what a run gives.
NOT_SEEN_IN_RESULTS = {6, 7, 9, 27}


def documented():
    text = (ROOT / "docs" / "design" / "environments.md").read_text()
    return [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]


def test_they_are_numbered_in_order():
    assert documented() == list(range(1, len(documented()) + 1))


def test_each_number_is_documented_and_each_documented_one_shows():
    shown = {entry.number for entry in (*ENVIRONMENTS, *FUNCTIONS, *PACKAGES)}
    assert shown == set(documented()) - NOT_SEEN_IN_RESULTS
