from pathlib import Path

import pytest

from whet.inference.remote.http_connection import HttpPool
from whet.inference.vllm.engine import VllmEngine


@pytest.fixture
def engine():
    return VllmEngine(HttpPool(Path("/tmp/vllm/s.sock"), {"content-type": "application/json"}), max_context=512)
