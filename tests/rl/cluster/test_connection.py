"""A cluster that goes away between the checks of a run and its connection: Ray's client itself would not come back."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.parts
CONNECT = """
from whet.errors import ConfigError
from whet.rl.cluster.run_cluster import begun_ray
try:
    with begun_ray("127.0.0.2:9", within_s=0.5):
        print("connected")
except ConfigError as error:
    print(error)
"""


def test_a_cluster_that_does_not_answer_in_time_is_one_message() -> None:
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    done = subprocess.run([sys.executable, "-c", CONNECT], capture_output=True, text=True, timeout=200)
    assert done.stdout == "the Ray cluster 127.0.0.2:9 did not answer within 0.5 s. See `ray status`.\n"
    assert done.returncode == 0, done.stderr
