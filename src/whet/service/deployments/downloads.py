"""Weights of any checkpoint of a run, made for one download as a deployment's are.

    DATA/deployments/{random}/      goes once it is sent; one that a kill left, as it has no row, goes with the orphans

The process that exports holds the whole model for a moment, so there is one at a time.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from whet.dashboard.errors import DashboardError, no_such
from whet.dashboard.library import What
from whet.service.deployments.folder import DeploymentFolder, source_of, take

WAIT_S = 60.0
"""How long a download waits for the one before it to be exported."""
_exporting = threading.Lock()


@contextmanager
def exported(data: Path, run: str, model: str, config: str, step: int, what: What) -> Iterator[Path]:
    """The directory of the adapter, or of the whole model, of a checkpoint of a run with this model and config.

    Raises `DashboardError`.
    """
    found = source_of(data, run, model, config, step)
    if isinstance(found, list) or not found.checkpoint:
        raise no_such(f"checkpoint of step {step}")
    source = replace(found, own_base=what == "model")  # with its own base the weights are whole
    try:
        folder = take(data, secrets.token_hex(8), source)
    except FileNotFoundError:
        raise no_such(f"checkpoint of step {step} with weights") from None
    try:
        if not _exporting.acquire(timeout=WAIT_S):
            raise DashboardError("busy", "other weights are being exported. Try again in a minute.")
        try:
            _export(folder, step)
        finally:
            _exporting.release()
        yield folder.weights
    finally:
        folder.remove()


def _export(folder: DeploymentFolder, step: int) -> None:
    command = [sys.executable, "-m", "whet.service.deployments.prepare", str(folder.path)]
    # It ends with this process, whose end of the pipe closes then.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        said = process.stdout.read().decode("utf-8", "replace").strip()
        code = process.wait()
    if code < 0:
        said = "its process was killed, perhaps for lack of memory"
    if code:
        raise DashboardError("unreadable", f"step {step} cannot be exported: {said.rpartition(chr(10))[2] or code}")
