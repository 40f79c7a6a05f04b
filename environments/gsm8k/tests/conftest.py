"""A small data set in the form of `openai/gsm8k`, and a Hugging Face hub on loopback that has it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

WriteSplit = Callable[[Path, str, Sequence[tuple[str, str]]], None]

README = """\
---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
---
"""
TRAIN = [
    ("Ann has 2 pens and buys 3. How many has she?", "She has 2+3=<<2+3=5>>5 pens.\n#### 5"),
    ("A town of 1,000 grows by 200 twice.", "It grows <<2*200=400>>400.\nThat is <<1000+400=1400>>1400.\n#### 1,400"),
    ("Of  10 birds 4 fly away. How many stay?", "10-4=<<10-4=6>>6 birds stay.\n#### 6"),
]
TEST = [("Of 10 birds 4 fly away. How many STAY?", "10-4=<<10-4=6>>6 birds stay.\n#### 6")]
SHA = "740312add88f781978c0658806c59bc2815b9866"


@pytest.fixture
def folder(tmp_path: Path, write_split: WriteSplit) -> Path:
    """The data set as a directory."""
    root = tmp_path / "data"
    for config in ("main", "socratic"):
        (root / config).mkdir(parents=True)
    (root / "README.md").write_text(README)
    (root / "socratic" / "train-00000-of-00001.parquet").write_bytes(b"not asked for")
    write_split(root, "train", TRAIN)
    write_split(root, "test", TEST)
    return root


@pytest.fixture
def write_split() -> WriteSplit:
    """Writes questions and solutions as one split."""
    import pyarrow
    import pyarrow.parquet

    def write(root: Path, split: str, rows: Sequence[tuple[str, str]]) -> None:
        table = pyarrow.table({"question": [q for q, _ in rows], "answer": [a for _, a in rows]})
        pyarrow.parquet.write_table(table, root / "main" / f"{split}-00000-of-00001.parquet")

    return write


@pytest.fixture(autouse=True)
def hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Empty caches, and a hub address without a server."""
    import datasets
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    look_for_the_hub_at(monkeypatch, "http://127.0.0.1:9")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets-cache")
    return monkeypatch


def look_for_the_hub_at(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """What HF_ENDPOINT does, which is only read when the library is imported."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


class Hub(ThreadingHTTPServer):
    """Speaks as much of the hub's protocol as a download takes, about one data set."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.folder = folder
        self.asked: list[str] = []


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        files = {str(file.relative_to(self.server.folder)): file for file in self.server.folder.rglob("*.*")}
        if path.startswith("/api/datasets/openai/gsm8k/tree/"):
            tree = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": oid_of(file)}
                for name, file in files.items()
            ]
            self._send(json.dumps(tree).encode())
        elif path.startswith("/api/datasets/openai/gsm8k"):
            siblings = [{"rfilename": name} for name in files]
            self._send(json.dumps({"id": "openai/gsm8k", "sha": SHA, "siblings": siblings}).encode())
        elif path.startswith(f"/datasets/openai/gsm8k/resolve/{SHA}/"):
            file = files[path.split(SHA)[1].lstrip("/")]
            self._send(file.read_bytes(), {"ETag": f'"{oid_of(file)}"', "X-Repo-Commit": SHA})
        else:
            self._send(b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"}, status=404)

    def _send(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def oid_of(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@pytest.fixture
def hub(folder: Path, hugging_face: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running hub, which is where the hub is looked for."""
    server = Hub(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    look_for_the_hub_at(hugging_face, f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
