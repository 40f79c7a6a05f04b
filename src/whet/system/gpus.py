"""What nvidia-smi says of the GPUs of this machine."""

from __future__ import annotations

import shutil

from whet.system.children import output_of

MIB = 1 << 20


def ask_nvidia(what: str, fields: str, seconds: float) -> list[list[str]]:
    """The rows of `nvidia-smi --query-WHAT=FIELDS`; none where there is no such program, or it says nothing in time."""
    program, count = shutil.which("nvidia-smi"), fields.count(",") + 1
    if program is None:
        return []
    query = [program, f"--query-{what}={fields}", "--format=csv,noheader,nounits"]
    rows = ([field.strip() for field in line.split(",")] for line in (output_of(query, seconds) or "").splitlines())
    return [row for row in rows if len(row) == count]
