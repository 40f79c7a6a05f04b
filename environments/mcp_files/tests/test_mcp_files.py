import asyncio
import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from mcp.server.mcpserver.exceptions import ToolError

import whet
from mcp_files import FilesEnv, exact_answer, load_environment
from mcp_files.offices import SIZES, make_office
from mcp_files.server import inside, make_server

Look = Generator[tuple[str, dict[str, str]], str, str]


def solve(question: str) -> Look:
    """A solver that understands the question: it reads files, and gives the answer."""
    office, text = re.fullmatch(r"The files of the \w+ office are in (\w+)/\. (.*)", question).groups()

    def note(way: str) -> Look:
        if way.startswith("the deputy of "):
            deputy = re.search("Deputy: (.*)", (yield from note(way.removeprefix("the deputy of "))))[1]
            return (yield from note(deputy))
        if way.startswith("the writer of "):
            letter = yield from letter_about(way.removeprefix("the writer of the letter that says where the ")[:-3])
            return (yield from note(re.search("Written by: (.*)", letter)[1]))
        return (yield "read_file", {"path": f"{office}/notes/{way.lower().replace(' ', '-')}.txt"})

    def letter_about(thing: str) -> Look:
        found = yield "search", {"query": f"the {thing} is on shelf", "path": f"{office}/letters"}
        return (yield "read_file", {"path": found.split(":")[0]})

    if wage := re.fullmatch(r"How many crowns a year is (.*) paid\?", text):
        return re.search(r"Wage: (\d+)", (yield from note(wage[1])))[1]
    if shelf := re.fullmatch(r"On which shelf is the (.*)\?", text):
        return re.search(rf"The {shelf[1]} is on shelf (\d+)", (yield from letter_about(shelf[1])))[1]
    ledger, firm, date = re.fullmatch(r"How many crowns does the (.*) say were paid to (.*) on (.*)\?", text).groups()
    if keeper := re.fullmatch("ledger that (.*) keeps", ledger):
        ledger = re.search("Keeps: the (.*)", (yield from note(keeper[1])))[1]
    goods = ledger.removesuffix(" ledger").replace(" ", "-")
    rows = yield "read_file", {"path": f"{office}/ledgers/{goods}.csv"}
    return re.search(rf"^{date},{re.escape(firm)},(\d+)$", rows, re.MULTILINE)[1]


def solver(prompt: whet.Messages) -> dict[str, object] | str:
    """The next turn: the same way again, with what the tools said so far."""
    looks = solve(next(message["content"] for message in prompt if message["role"] == "user"))
    said = [message["content"] for message in prompt if message["role"] == "tool"]
    try:
        name, arguments = next(looks)
        for text in said:
            name, arguments = looks.send(text)
    except StopIteration as found:
        return f"It is <answer>{found.value}</answer>"
    return call(name, **arguments)


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"content": "", "tool_calls": [{"id": "1", "name": name, "arguments": json.dumps(arguments)}]}


Evaluate = Callable[..., list[dict]]


@pytest.fixture(scope="module")
def run() -> Iterator[Evaluate]:
    """Evaluate a scripted model; an environment, with its server, is kept for the next test with the same arguments."""
    envs: dict[tuple, whet.Environment] = {}
    with asyncio.Runner() as runner:

        def evaluate(script: object, num_examples: int = 1, **args: object) -> list[dict]:
            args = {"difficulty": "medium", "transport": "stdio", "max_turns": 99, **args}
            key = tuple(sorted(args.items()))
            if key not in envs:
                envs[key] = load_environment(num_train=8, num_eval=16, **args)
            env = envs[key]
            client = whet.ScriptedClient(script)
            return runner.run(env.evaluate(client, "scripted", num_examples=num_examples))["outputs"]

        yield evaluate
        for env in envs.values():
            runner.run(env.close())


def tool_texts(output: dict) -> list[str]:
    assert output["error"] is None
    return [message["content"] for message in output["completion"] if message["role"] == "tool"]


@pytest.mark.parametrize(
    ("difficulty", "transport"), [("easy", "stdio"), ("medium", "stdio"), ("hard", "stdio"), ("hard", "http")]
)
def test_who_reads_the_right_files_earns_everything(run: Evaluate, difficulty: str, transport: str) -> None:
    outputs = run(solver, num_examples=-1, difficulty=difficulty, transport=transport)
    assert [output["reward"] for output in outputs] == [1.0] * 16
    assert {output["info"]["hops"] for output in outputs} == set(SIZES[difficulty].hops)
    for output in outputs:
        read = [message for message in tool_texts(output) if ".txt:" not in message]
        assert len(read) == output["info"]["hops"]


def test_a_wrong_answer_earns_nothing(run: Evaluate) -> None:
    output = run([call("list_directory"), "<answer>1</answer>"])[0]
    assert output["reward"] == 0.0
    assert output["metrics"]["answered"] == output["metrics"]["list_directory_calls"] == 1.0


@pytest.mark.parametrize(
    ("last", "reward"),
    [
        ("<answer>1250</answer>", 1.0),
        ("So: <answer> 1,250 </answer>.", 1.0),
        ("", 0.0),
        ("1250", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>12500</answer>", 0.0),
        ("<answer>1250 or 7</answer>", 0.0),
        ("<answer>1250</answer> or <answer>7</answer>", 0.0),
        ("<answer>7</answer> or <answer>1250</answer>", 0.0),
        ("<answer>" + "1250 " * 100_000 + "</answer>", 0.0),
    ],
)
def test_only_the_number_alone_in_the_tags_is_right(last: str, reward: float) -> None:
    completion = [whet.AssistantMessage("<answer>1250</answer>"), whet.AssistantMessage(last)]
    assert exact_answer(completion, "1250", whet.XMLParser(fields=["answer"])) == reward


def test_an_attempt_ends_after_max_turns(run: Evaluate) -> None:
    output = run([call("list_directory")] * 2, max_turns=2)[0]
    assert output["reward"] == 0.0
    assert output["stop_condition"] == "max_turns_reached"


def test_training_and_evaluation_share_no_office_whatever_the_seeds() -> None:
    def offices(seed: int, split: str) -> set[str]:
        env = load_environment(seed=seed)
        return {row["info"]["office"] for row in (env.get_dataset() if split == "train" else env.get_eval_dataset())}

    assert (offices(0, "train") | offices(1, "train")).isdisjoint(offices(0, "eval") | offices(1, "eval"))


def test_a_seed_gives_the_same_tasks_and_the_same_files_again() -> None:
    first, second = load_environment(seed=3), load_environment(seed=3)
    assert list(first.get_dataset()) == list(second.get_dataset())
    assert list(first.get_dataset()) != list(load_environment(seed=4).get_dataset())
    assert make_office("Tarnholm", 3, "hard").files() == make_office("Tarnholm", 3, "hard").files()


def test_no_two_tasks_are_the_same() -> None:
    questions = [row["question"] for row in load_environment().get_dataset()]
    assert len(set(questions)) == len(questions) == 512


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_what_lies_outside_of_the_files_cannot_be_read(run: Evaluate, transport: str) -> None:
    paths = ["../../etc/passwd", "/etc/passwd", "a/../../../etc/passwd", "..", "~/.ssh", "/proc/self/environ", "x\0y"]
    looks = [call(tool, path=path) for path in paths for tool in ("read_file", "list_directory")]
    output = run(
        [*looks, *(call("search", query="root", path=path) for path in paths), "done"],
        difficulty="hard",
        transport=transport,
    )[0]
    texts = tool_texts(output)
    assert len(texts) == len(paths) * 3
    assert all(re.search("is not in these files|there is no|is no path", text) for text in texts), texts


def test_a_link_that_leads_outside_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("hush")
    os.symlink(tmp_path / "secret.txt", root / "link.txt")
    with pytest.raises(ToolError, match="is not in these files"):
        inside(root, "link.txt")
    found = asyncio.run(make_server(root).call_tool("search", {"query": "hush"}))
    assert "no line contains this" in str(found)


def test_mistakes_are_told_to_the_model(run: Evaluate) -> None:
    looks = [call("read_file", path=""), call("search", query=" "), call("list_directory", path="nowhere")]
    texts = tool_texts(run([*looks, "done"])[0])
    for text, hint in zip(
        texts, ["list_directory lists it", "the query is empty", "there is no 'nowhere'"], strict=True
    ):
        assert hint in text


def test_a_search_with_many_matches_says_how_many_more_there_are(run: Evaluate) -> None:
    (text,) = tool_texts(run([call("search", query="1871"), "done"])[0])
    assert re.search(r"\[\d+ more lines\]$", text)
    assert len(text.splitlines()) == 21


def test_the_files_are_removed_with_the_environment() -> None:
    async def go() -> tuple[list[str], bool]:
        env = load_environment(num_train=8, num_eval=8)
        assert isinstance(env, FilesEnv)
        await env.connect()
        before = os.listdir(env.files.name)
        await env.close()
        return before, os.path.exists(env.files.name)

    before, after = asyncio.run(go())
    assert len(before) == 2
    assert not after


@pytest.mark.parametrize(
    "args", [{"difficulty": "impossible"}, {"transport": "pigeon"}, {"num_eval": 0}, {"num_train": 10**6}]
)
def test_arguments_that_make_no_sense_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        load_environment(**args)
