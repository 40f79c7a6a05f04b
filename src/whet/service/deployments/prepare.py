"""Export the weights of a deployment from its checkpoint, in a process of its own:

    python -m whet.service.deployments.prepare FOLDER        exit code 1 and a line on stdout where it cannot be done

It holds the whole model for a moment; if that is too much, the process that answers requests survives it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from whet.config import validate
from whet.errors import ConfigError, WhetError
from whet.parsing import parse_json
from whet.rl.learner.config import LoraConfig
from whet.rl.storage.checkpoints import copy_verified
from whet.rl.stored.export import export_checkpoint
from whet.service.deployments.folder import DeploymentFolder, base_directory, digest_of
from whet.system.children import when_closed
from whet.system.files import replace_directory, write_whole


def prepare(folder: DeploymentFolder) -> None:
    """Write `folder.weights` from `folder.checkpoint`, and remove that. Raises `WhetError` with the reason.

    What is exported is a copy whose hash was verified: the run could write to the original, which is linked.
    """
    source = folder.source()
    base = base_directory(source)
    if source.adapter:
        write_whole(folder.base_digest, digest_of(base))
    if not source.checkpoint:
        replace_directory(folder.weights, lambda directory: _copy_adapter(folder, base, directory))
        shutil.rmtree(folder.checkpoint, ignore_errors=True)
        return
    lora = None if source.lora is None else validate(LoraConfig, source.lora, "[lora]")
    with tempfile.TemporaryDirectory(prefix=".checkpoint-", dir=folder.path) as name:
        copy = Path(name)
        copy_verified(folder.checkpoint, source.file, copy / source.file)
        kind: Literal["model", "peft", "merged"] = "model" if lora is None else "peft" if source.adapter else "merged"
        export_checkpoint(base, lora, copy, folder.weights, kind)
    shutil.rmtree(folder.checkpoint, ignore_errors=True)


def _copy_adapter(folder: DeploymentFolder, base: Path, target: Path) -> None:
    """The adapter that the run wrote, of the base model of its config, whichever it names."""
    config, weights = (folder.checkpoint / name for name in folder.source().files)
    try:
        described = parse_json(config.read_bytes(), 1 << 20)
        described["base_model_name_or_path"] = str(base)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the adapter cannot be used: its {config.name} is damaged ({error})") from None
    shutil.copyfile(weights, target / weights.name, follow_symlinks=False)
    (target / config.name).write_text(json.dumps(described), encoding="utf-8")


def main() -> int:
    folder = Path(sys.argv[1])
    when_closed(0, lambda: os._exit(3))  # with the process that started this one
    for left in folder.glob(".*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        prepare(DeploymentFolder(folder.parent.parent, folder.name))
    except WhetError as error:
        print(error)
        return 1
    except MemoryError:
        print("out of memory while the weights were exported.")
        return 1
    except OSError as error:
        print(f"the weights cannot be written: {error.strerror or error}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
