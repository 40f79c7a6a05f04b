"""The real problems: from a directory, the local Hugging Face cache, or the Hugging Face hub.

The data set does not change, so a copy in the cache is used without asking the network. Where there is none, one short
request finds out whether the hub can be reached at all: its own libraries would try for about half a minute.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from whet.errors import DatasetError

CONFIG = "main"
FILES = ["README.md", f"{CONFIG}/*"]
PROBE_SECONDS = 5.0

Rows = list[dict[str, Any]]


class UnreachableError(DatasetError):
    """The data set is not in the cache, and the hub does not answer."""


def read_splits(dataset: str) -> tuple[Rows, Rows]:
    """The rows (question, answer) of the splits train and test.

    Args:
        dataset: a directory, or owner/name on the hub; laid out like `openai/gsm8k`: a README.md that names the
            files of a config `main`, which are in `main/`.

    Raises `UnreachableError`, or another `DatasetError` where there is no such data set.
    """
    try:
        import datasets
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise DatasetError(f"reading {dataset} needs the package datasets: pip install datasets") from error
    folder = Path(dataset).expanduser()
    if not folder.is_dir():
        if dataset.startswith((".", "/", "~")) or dataset.count("/") != 1:
            raise DatasetError(f"dataset '{dataset}' is neither a directory nor owner/name on the Hugging Face hub.")
        folder = _cached(dataset) or _downloaded(dataset)
    try:
        splits = datasets.load_dataset(str(folder), CONFIG)
        train, test = (splits[name].select_columns(["question", "answer"]).to_list() for name in ("train", "test"))
    except (ValueError, KeyError, OSError) as error:
        raise DatasetError(
            f"dataset '{dataset}' (in {folder}) is not laid out like openai/gsm8k, with question and answer in the "
            f"splits train and test of a config '{CONFIG}': {_line(error)}"
        ) from error
    return train, test


def _cached(dataset: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(dataset, repo_type="dataset", allow_patterns=FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    # What another program has put there may be a part of it.
    whole = all(any(folder.glob(f"{CONFIG}/{split}*")) for split in ("train", "test"))
    return folder if whole else None


def _downloaded(dataset: str) -> Path:
    from huggingface_hub import snapshot_download

    _probe(dataset)
    try:
        return Path(snapshot_download(dataset, repo_type="dataset", allow_patterns=FILES))
    except Exception as error:  # of whichever HTTP library huggingface_hub uses
        raise UnreachableError(f"the download of {dataset} from the Hugging Face hub failed: {_line(error)}") from error


def _probe(dataset: str) -> None:
    """Ask the hub for the data set; in a thread, because looking up a host's name knows no time-out."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    failures: list[Exception | None] = []

    def ask() -> None:
        try:
            HfApi().dataset_info(dataset, timeout=PROBE_SECONDS)
        except Exception as error:  # of whichever HTTP library huggingface_hub uses; raised again below
            failures.append(error)
        else:
            failures.append(None)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    failure = failures[0] if failures else TimeoutError(f"no answer within {PROBE_SECONDS:g} seconds")
    if isinstance(failure, RepositoryNotFoundError):
        raise DatasetError(f"the Hugging Face hub has no data set {dataset}, or not for you: {_line(failure)}")
    if failure is not None:
        raise UnreachableError(
            f"{dataset} is not in the Hugging Face cache, and the hub does not give it: {_line(failure)}"
        ) from failure


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
