"""Find answers in files that only an MCP server can see: list, read and search, then answer with a number.

The server is `server.py`, a program of its own. MCPEnv starts it, speaks to it over its pipes (`transport="stdio"`) or
over streamable HTTP on a free port of the loopback interface ("http"), and ends it. The files are written to a
temporary directory before the first rollout and removed with the environment.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal, get_args

import whet
from mcp_files.offices import (
    QUESTIONS_PER_OFFICE,
    Difficulty,
    Office,
    Split,
    make_offices,
    office_names,
    pick_questions,
)

Transport = Literal["stdio", "http"]

SERVER = Path(__file__).with_name("server.py")
SYSTEM_PROMPT = """You answer questions about the files of several offices. Every office has a directory with notes on
its staff, letters and ledgers. Use the tools to find what you need; one file may lead you to the next.

When you know the answer, write it as a plain number in answer tags, for example:
<answer>412</answer>"""


def make_tasks(offices: list[Office], size: int, seed: int, difficulty: Difficulty) -> list[dict[str, Any]]:
    """The first `size` questions about these offices."""
    tasks = [
        {
            "question": f"The files of the {office.name} office are in {office.directory}/. {question.text}",
            "answer": question.answer,
            "info": {"hops": question.hops, "office": office.name},
        }
        for office in offices
        for question in pick_questions(office, seed, difficulty)
    ]
    return tasks[:size]


def final_answer(completion: whet.Messages, parser: whet.XMLParser) -> str | None:
    """What stands in the answer tags of the last message, where that is the model's and gives one answer only."""
    last = completion[-1] if completion else None
    if last is None or last["role"] != "assistant":
        return None
    text = parser.text_of(last)
    first_answer, last_answer = (parser.parse(text, last=end).answer for end in (False, True))
    return str(last_answer) if last_answer is not None and first_answer == last_answer else None


def exact_answer(completion: whet.Messages, answer: str, parser: whet.XMLParser) -> float:
    """1 if the last message gives the right number, as 1250 or as 1,250."""
    given = final_answer(completion, parser)
    return float(given is not None and given.replace(",", "") == answer)


def answered(completion: whet.Messages, parser: whet.XMLParser) -> float:
    """1 if the last message gives an answer in tags, and only one."""
    return float(final_answer(completion, parser) is not None)


class FilesEnv(whet.MCPEnv):
    """Questions about offices, whose files a server of its own serves."""

    def __init__(self, offices: dict[Split, list[Office]], transport: Transport, **kwargs: Any) -> None:
        """
        Args:
            offices: what there is to be served.
            transport: how the server is spoken to.
            kwargs: arguments of `whet.MCPEnv`.
        """
        self.offices = offices
        # Removed when this environment is closed, collected or left behind at exit.
        self.files = tempfile.TemporaryDirectory(prefix="mcp-files-", ignore_cleanup_errors=True)
        self._are_written = False
        self._writing = threading.Lock()
        server: dict[str, Any] = {"name": "files", "command": sys.executable, "args": [SERVER, self.files.name]}
        if transport == "http":
            server["args"] += ["--port", "{port}"]
            server["url"] = "http://127.0.0.1:{port}/mcp"
        super().__init__(mcp_servers=[server], **kwargs)

    def write_files(self) -> None:
        with self._writing:
            if not self._are_written:
                for office in (office for offices in self.offices.values() for office in offices):
                    office.write(Path(self.files.name))
            self._are_written = True

    async def connect(self) -> None:
        """Write the files, the first time, and start the server."""
        if not self._are_written:
            await asyncio.to_thread(self.write_files)
        await super().connect()

    @whet.teardown(priority=-1)
    async def remove_files(self) -> None:
        self.files.cleanup()


def load_environment(
    num_train: int = 512,
    num_eval: int = 64,
    seed: int = 0,
    difficulty: Difficulty = "medium",
    transport: Transport = "stdio",
    max_turns: int = 10,
) -> whet.Environment:
    """
    Args:
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Draws the offices, what stands in their files, and the questions.
        difficulty: easy: one file answers a question; medium: one or two files; hard: two or three, among more files.
        transport: How the MCP server is spoken to: stdio or http.
        max_turns: Turns after which an attempt ends, tool calls included.
    """
    for name, given, known in (("difficulty", difficulty, Difficulty), ("transport", transport, Transport)):
        if given not in get_args(known):
            raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {given!r}")
    sizes: dict[Split, int] = {"train": num_train, "eval": num_eval}
    for split, size in sizes.items():
        most = QUESTIONS_PER_OFFICE * len(office_names(split))
        if not 0 < size <= most:
            raise ValueError(f"num_{split} must be between 1 and {most}, got {size}")
    offices = {split: make_offices(split, size, seed, difficulty) for split, size in sizes.items()}
    parser = whet.XMLParser(fields=["answer"])
    rubric = whet.Rubric(funcs=[exact_answer], parser=parser)
    rubric.add_metric(answered)
    return FilesEnv(
        offices,
        transport,
        dataset=lambda: make_tasks(offices["train"], num_train, seed, difficulty),
        eval_dataset=lambda: make_tasks(offices["eval"], num_eval, seed, difficulty),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        max_turns=max_turns,
    )
