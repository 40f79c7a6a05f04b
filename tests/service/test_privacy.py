"""What other processes may learn of the service's."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import ctypes
from whet.service.privacy import undumpable
get = lambda: ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
before = get()
undumpable()
print(before, get())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has it")
def test_an_undumpable_process_says_so_to_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]
