"""A closed terminal (SIGHUP) ends a command as SIGTERM does."""

import json
import os
import signal
import subprocess
import sys

import pytest

RUN = """
name = "run"
max_steps = 1000
batch_size = 4
rollouts_per_example = 2
[sampling]
max_tokens = 4
[[env]]
id = "reverse-text"
[eval]
before = false
after = false
[checkpointing]
save_every_n_steps = 500
[deployment]
threads = 1
"""

COMMAND = """
import os, signal, sys, time
from whet.cli import main

def work(arguments):
    try:
        print("working", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        return 7
    return 0

def stop(*_):
    raise KeyboardInterrupt

class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGHUP):
        kill(process, number)

late = Late()  # goes when Python has taken its handlers back
signal.signal(signal.SIGTERM, stop)
main._run = work
sys.exit(main.main([]))
"""


def test_closed_terminal_saves_a_checkpoint(terminals, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    command = ["whet", "train", "run", "run.toml", "--runs_directory", tmp_path / "runs"]
    terminal = terminals.open(command, cwd=tmp_path, columns=100)
    run = tmp_path / "runs" / "run"
    terminal.wait_for(lambda lines: (run / "metrics.jsonl").exists())
    terminal.hang_up()
    assert terminal.process.wait(timeout=120) == 130
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert (run / "checkpoints" / f"step_{status['step']}").is_dir()


@pytest.mark.parametrize(("ignored", "code"), [(False, 7), (True, -signal.SIGKILL)])
def test_hangup_is_sigterm_once_also_at_the_end_and_stays_ignored_under_nohup(ignored, code):
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL),
    )
    assert process.stdout.readline() == b"working\n"
    os.kill(process.pid, signal.SIGHUP)
    os.kill(process.pid, signal.SIGHUP)
    if ignored:
        with open(f"/proc/{process.pid}/status") as status:
            assert "State:\tZ" not in status.read()
        process.kill()
    assert process.wait(timeout=60) == code
    process.stdout.close()
