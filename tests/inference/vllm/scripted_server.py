"""A program in a vLLM server's place: the same kinds of processes, shared memory and sockets, in a tenth of the time.

Called as vLLM is, it answers `/health` on the Unix socket that `--uds` names. Its EngineCore and Worker outlive it, as
vLLM's do; its Worker follows the guard where `PYTHONPATH` has the means. Variables of its environment:

* `MADE`: a path for the names of the shared memory that it has made, written before it answers.
* `LENT`: a file that its Worker maps.
* `FAIL`: it fails instead of answering, as vLLM does without memory.
* `IGNORE`: it is deaf to SIGTERM.
"""

import json
import mmap
import multiprocessing
import os
import signal
import socket
import sys
import time
import uuid
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

CONTEXT = multiprocessing.get_context("spawn")


def bind(path):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening


def ipc():
    return bind(Path(os.environ["VLLM_RPC_BASE_PATH"], str(uuid.uuid4())))


def hold():
    while True:
        time.sleep(3600)


def called(name):
    Path("/proc/self/comm").write_text(name)


def worker(ring, lock, word):
    called("VLLM::Worker")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mapped, own, _listening = SharedMemory(ring), SharedMemory(create=True, size=1 << 20), ipc()
    if os.environ.get("PYTHONPATH"):
        __import__("whet_vllm_lifeline").follow_guard()
    word.send(own.name)
    mapped.buf[0] = 1
    if path := os.environ.get("LENT"):
        with open(path, "rb") as file:
            lent = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert lent
    hold()


def engine_core(lock, word):
    called("VLLM::EngineCore")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ring, _listening = SharedMemory(create=True, size=1 << 20), ipc()
    ours, theirs = CONTEXT.Pipe()
    CONTEXT.Process(target=worker, args=(ring.name, lock, theirs)).start()
    word.send([ring.name, ours.recv()])
    hold()


def main():
    if os.environ.get("IGNORE"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    path = sys.argv[sys.argv.index("--uds") + 1]
    listening = bind(path)
    Path(os.environ["TMPDIR"], "vllm_dist_1").touch()
    lock = CONTEXT.Lock()
    ours, theirs = CONTEXT.Pipe()
    core = CONTEXT.Process(target=engine_core, args=(lock, theirs))
    core.start()
    names = [*ours.recv(), f"sem.{lock._semlock.name.lstrip('/')}"]
    Path(os.environ["MADE"]).write_text(json.dumps(names))
    if os.environ.get("FAIL"):
        print("(Worker pid=1) ERROR 11-25 16:07:09 [worker.py:1] ValueError: 400 GiB are more than there is")
        print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
        os._exit(1)
    while True:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


if __name__ == "__main__":
    main()
