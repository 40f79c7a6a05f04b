"""The terminal that tests of the live view and the viewer look at."""

from __future__ import annotations

import sys
import termios
from typing import Any

import pytest

ECHO = """
import shutil, signal, sys
def show(*_):
    size = shutil.get_terminal_size()
    print(f"size {size.columns}x{size.lines}", flush=True)
signal.signal(signal.SIGWINCH, show)
show()
try:
    for line in sys.stdin:
        print("got", line.strip(), flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_keys_a_new_size_and_ctrl_c_reach_the_command(terminals: Any) -> None:
    terminal = terminals.open([sys.executable, "-c", ECHO], columns=50, rows=7)
    terminal.wait_for("size 50x7")
    terminal.send("hello\r")
    terminal.wait_for("got hello")
    terminal.resize(44, 9)
    terminal.wait_for("size 44x9")
    assert len(terminal.lines()) == 9
    terminal.send("\x03")
    assert terminal.wait() == 130


def test_what_never_comes_is_told_with_the_screen(terminals: Any) -> None:
    terminal = terminals.open([sys.executable, "-c", "print('only this')"])
    with pytest.raises(AssertionError, match=r"never showed 'that' .*\nonly this"):
        terminal.wait_for("that")


def test_a_keyboard_protocol_is_not_taken_for_text(terminals: Any) -> None:
    wrote = r"import sys; sys.stdout.write('\x1b[>1u\x1b[<u\x1b[=0;1u'); print('a\x1b[1mb\x1b[0mc')"
    terminal = terminals.open([sys.executable, "-c", wrote])
    assert terminal.wait() == 0
    assert terminal.text().strip() == "abc"


def test_the_settings_tell_whether_keys_are_echoed(terminals: Any) -> None:
    quiet = "import termios, tty; tty.setcbreak(0); print('ready', flush=True); input()"
    terminal = terminals.open([sys.executable, "-c", quiet])
    terminal.wait_for("ready")
    assert not terminal.settings()[3] & termios.ECHO
