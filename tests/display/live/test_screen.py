"""A region of a terminal that one thread draws while others print."""

from __future__ import annotations

import sys
from typing import Any

LINES = 120
PROGRAM = f"""
import sys, threading
from rich.console import Console
from rich.text import Text
from whet.display.live.screen import Screen

sys.setswitchinterval(1e-6)
screen = Screen(Console(highlight=False))
screen.open()
printed = threading.Event()

def draw():
    number = 0
    while not printed.is_set():
        number += 1
        screen.draw(Text("\\n".join(["picture"] * (1 + number % 5))))

thread = threading.Thread(target=draw)
thread.start()
for number in range({LINES}):
    print("line", number)
printed.set()
thread.join()
screen.draw(Text("the last picture"))
screen.close()
"""


def test_lines_of_another_thread_stand_above_the_picture_once(terminals: Any) -> None:
    terminal = terminals.open([sys.executable, "-c", PROGRAM], rows=LINES + 10)
    assert terminal.wait() == 0
    shown = [line for line in terminal.lines() if line]
    assert shown == [*(f"line {number}" for number in range(LINES)), "the last picture"]
