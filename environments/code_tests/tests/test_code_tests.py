"""What a program earns: its share of tests it has never seen, in three languages, whatever else it tries."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

import code_tests
import whet
from code_tests import families, hard_families, load_environment
from code_tests.families import FAMILIES
from code_tests.tasks import LANGUAGES, hidden_tests, make_tests, same
from whet.errors import SandboxUnavailableError
from whet.sandboxes.bubblewrap import host as bubblewrap_host


@pytest.fixture(scope="session", autouse=True)
def bubblewrap() -> None:
    try:
        bubblewrap_host.host()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


def bash(command: str) -> dict[str, Any]:
    arguments = json.dumps({"command": command})
    return {"tool_calls": [{"id": "1", "name": "bash", "arguments": arguments}]}


def write(file: str, program: str) -> dict[str, Any]:
    return bash(f"cat > {file} <<'END-OF-PROGRAM'\n{program}\nEND-OF-PROGRAM")


def attempts(rows: list[dict[str, Any]], script: Any, **args: Any) -> list[whet.State]:
    """One rollout for each of these tasks, which are in Python unless `languages` says otherwise."""
    env = load_environment(**{"num_train": 1, "num_eval": 1, "languages": ("python",), **args})

    async def run() -> list[whet.State]:
        client = whet.ScriptedClient(script)
        states = list(await asyncio.gather(*(env.rollout(row, client, "m", {}) for row in rows)))
        await env.rubric.score_group(states)
        return states

    return asyncio.run(run())


def tasks(size: int, **args: Any) -> list[dict[str, Any]]:
    return list(load_environment(num_eval=size, **args).get_eval_dataset())


def attempt(row: dict[str, Any], *commands: dict[str, Any], **args: Any) -> whet.State:
    (state,) = attempts([row], [*commands, "done"], **args)
    return state


def reference(info: dict[str, Any]) -> str:
    """A Python program that solves a task: the definition of its kind, applied to the input."""
    hard = inspect.getsource(hard_families).replace("from __future__ import annotations\n", "")
    hard = hard.replace("from code_tests.families import Parameters, family, numbers, word\n", "")
    call = f"print(FAMILIES[{info['kind']!r}].solve({info['parameters']!r}, sys.stdin.read()))"
    return f"{inspect.getsource(families)}\n{hard}\nimport sys\n{call}"


def of_kind(kind: str, language: str = "python", tests: int = 10) -> dict[str, Any]:
    level = FAMILIES[kind].level
    rows = tasks(12, difficulty=level, languages=(language,), tests_per_task=tests)
    return next(row for row in rows if row["info"]["kind"] == kind)


def earn_everything(rows: list[dict[str, Any]]) -> None:
    """The right program, in every one of these tasks."""

    def model(state: whet.State, turn: int) -> Any:
        return write("solution.py", reference(state["info"])) if turn == 0 else "done"

    states = attempts(rows, model, languages=("python",))
    expected = [(None, 1.0, "")] * len(rows)
    assert [(state["error"], state["reward"], state["test_report"]) for state in states] == expected


def test_a_right_program_earns_everything_whatever_the_kind() -> None:
    earn_everything([of_kind(kind, tests=4) for kind in sorted(FAMILIES)])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_right_program_earns_everything_whatever_the_seed(seed: int) -> None:
    earn_everything(tasks(11, seed=seed, difficulty="mixed", languages=("python",), tests_per_task=4))


SOLUTIONS: dict[tuple[str, str], Callable[[dict[str, Any]], str]] = {
    ("SelectedSum", "javascript"): lambda p: (
        f"""
const numbers = require("fs").readFileSync(0, "utf8").split(/\\s+/).filter(Boolean).slice(1).map(Number);
let sum = 0;
for (const x of numbers) if (x % {p["modulus"]} === {p["remainder"]}) sum += x;
console.log({p["factor"]} * sum);
"""
    ),
    ("SelectedSum", "c"): lambda p: (
        f"""
#include <stdio.h>
int main(void) {{
    long long n, x, sum = 0;
    scanf("%lld", &n);
    while (n-- > 0 && scanf("%lld", &x) == 1)
        if (x % {p["modulus"]} == {p["remainder"]}) sum += x;
    printf("%lld\\n", {p["factor"]} * sum);
}}
"""
    ),
    ("Automaton", "javascript"): lambda p: (
        f"""
let [steps, row] = require("fs").readFileSync(0, "utf8").trim().split("\\n");
row = row.trim();
for (let s = 0; s < Number(steps); s++) {{
    const n = row.length, ring = {str(p["ring"]).lower()};
    const at = i => i >= 0 && i < n ? row[i] : ring ? row[(i + n) % n] : "0";
    row = [...row].map((c, i) => {p["rule"]} >> parseInt(at(i - 1) + c + at(i + 1), 2) & 1).join("");
}}
console.log(row);
"""
    ),
    ("FewestCoins", "c"): lambda p: (
        f"""
#include <stdio.h>
int main(void) {{
    int coins[] = {{{", ".join(map(str, p["coins"]))}}}, n, amount, kinds = {len(p["coins"])};
    scanf("%d", &n);
    while (n-- > 0 && scanf("%d", &amount) == 1) {{
        int best[amount + 1];
        best[0] = 0;
        for (int a = 1; a <= amount; a++) {{
            best[a] = -1;
            for (int k = 0; k < kinds; k++)
                if (coins[k] <= a && best[a - coins[k]] >= 0 && (best[a] < 0 || best[a - coins[k]] + 1 < best[a]))
                    best[a] = best[a - coins[k]] + 1;
        }}
        printf("%d\\n", best[amount]);
    }}
}}
"""
    ),
}


@pytest.mark.parametrize(("kind", "language"), list(SOLUTIONS))
def test_programs_in_other_languages_that_share_nothing_with_the_reference_earn_everything(
    kind: str, language: str
) -> None:
    for program in LANGUAGES[language].programs:
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    row = of_kind(kind, language)
    program = SOLUTIONS[kind, language](row["info"]["parameters"])
    state = attempt(row, write(LANGUAGES[language].file, program), languages=(language,))
    assert (state["error"], state["reward"], state["test_report"]) == (None, 1.0, "")


def test_a_program_can_be_mended_over_several_turns() -> None:
    row = of_kind("SelectedSum")
    program = reference(row["info"])
    broken = write("solution.py", program.replace("FAMILIES[", "FAMILIE["))
    state = attempt(row, broken, bash("echo 1 4 | python3 solution.py"), write("solution.py", program))
    assert "NameError" in state["completion"][3].content
    assert (state["reward"], state["metrics"]["all_tests_passed"]) == (1.0, 1.0)


def test_a_program_that_is_right_for_some_inputs_earns_its_share() -> None:
    row = of_kind("SelectedSum")
    lengths = sorted(len(test.input) for test in hidden_tests(row["info"]))
    program = reference(row["info"]).replace("sys.stdin.read()", f"sys.stdin.read()[:{lengths[4]}]")
    state = attempt(row, write("solution.py", program))
    assert 0.5 <= state["reward"] < 1.0
    assert state["metrics"]["all_tests_passed"] == 0.0
    assert state["test_report"].startswith("it wrote something else for the input ")


# What earns nothing


@pytest.mark.parametrize(
    ("commands", "report"),
    [
        ([], "there is no solution.py"),
        (["touch solution.py"], "it wrote something else"),
        (["echo 'no python' > solution.py"], "exit code 1"),
        (["mkdir solution.py"], "there is no solution.py"),
        (["mkfifo solution.py"], "there is no solution.py"),
        (["ln -s /dev/zero solution.py"], "there is no solution.py"),
        (["ln -s /etc/passwd solution.py"], "exit code 1"),
        (["head -c 200000 /dev/zero > solution.py"], "there is no solution.py"),
        (["echo 'while True: print(1)' > solution.py"], "stopped by the output limit"),
        (["echo 'import os; os.kill(os.getpid(), 9)' > solution.py"], "killed by SIGKILL"),
        (["echo 'print(open(\"answers\").read())' > solution.py; echo 1 > answers"], "exit code 1"),
    ],
)
def test_what_is_no_solution_earns_nothing_and_says_why(commands: list[str], report: str) -> None:
    state = attempt(of_kind("SelectedSum"), *map(bash, commands))
    assert (state["error"], state["reward"]) == (None, 0.0)
    assert state["test_report"].startswith(report)


def test_a_program_that_never_ends_costs_two_tests_time_and_earns_nothing() -> None:
    forever = bash("echo 'while True: pass' > solution.py")
    state = attempt(of_kind("SelectedSum"), forever, seconds_per_test=0.3)
    assert (state["reward"], state["metrics"]["sandbox_command_execution_time"] > 0) == (0.0, True)
    assert state["test_report"].startswith("stopped by the time limit")


def test_a_program_that_does_not_build_earns_nothing() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc here")
    state = attempt(of_kind("SelectedSum", "c"), write("solution.c", "int main( {"), languages=("c",))
    assert state["reward"] == 0.0
    assert "solution.c:1" in state["test_report"]


def test_knowing_the_examples_by_heart_earns_nothing() -> None:
    for kind in ("SelectedSum", "CoveredLength", "FewestCoins"):
        row = of_kind(kind)
        info = row["info"]
        made = make_tests(info["kind"], info["parameters"], info["seed"], info["tests"])
        assert made is not None
        known = {test.input: test.output for test in made[:2]}
        assert all(output in row["question"] for output in known.values())
        program = f"import sys\nprint({known!r}.get(sys.stdin.read(), {made[0].output!r}))"
        assert attempt(row, write("solution.py", program))["reward"] == 0.0


def test_repeating_the_input_or_printing_every_number_earns_nothing() -> None:
    row = of_kind("SelectedSum")
    for program in ("import sys; print(sys.stdin.read())", "for i in range(15000): print(i)"):
        assert attempt(row, write("solution.py", program))["reward"] == 0.0


def test_one_answer_for_everything_passes_one_test_at_most() -> None:
    for kind in FAMILIES:
        outputs = [test.output for test in hidden_tests(of_kind(kind)["info"])]
        assert len(set(outputs)) == len(outputs) == 10


def test_the_program_finds_nothing_but_itself_where_it_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    row = of_kind("CoveredLength")
    written: list[str] = []

    def remember(output: str, expected: str) -> bool:
        written.append(output)
        return same(output, expected)

    monkeypatch.setattr(code_tests, "same", remember)
    look = """
import glob, os, sys
sys.stdin.read()
def content(path):
    try:
        return open(path, errors="replace").read(100_000)
    except OSError as error:
        return type(error).__name__
for folder in (".", "/tmp", "/dev/shm"):
    for path, _, files in os.walk(folder):
        for file in files:
            print("FILE", os.path.join(path, file), content(os.path.join(path, file)) if file != "solution.py" else "")
print("VARIABLES", dict(os.environ))
for pid in filter(str.isdigit, os.listdir("/proc")):
    print("PROCESS", pid, [content(f"/proc/{pid}/{name}") for name in ("cmdline", "environ")])
    print("OPEN", [content(fd) for fd in glob.glob(f"/proc/{pid}/fd/*") if pid != str(os.getpid())])
"""
    state = attempt(row, bash("echo left > behind; sleep 100 &"), write("solution.py", look))
    assert (state["error"], state["reward"], len(written)) == (None, 0.0, 10)
    outputs = [test.output for test in hidden_tests(row["info"])]
    for text in written:
        files = [line.split()[1] for line in text.splitlines() if line.startswith("FILE")]
        assert files == ["./solution.py"]
        assert "sleep" not in text
        assert not any(f" {output} " in text or f"'{output}'" in text for output in outputs)


def test_neither_prompt_nor_row_holds_a_hidden_test() -> None:
    row = of_kind("CoveredLength")
    text = json.dumps(row)
    for test in hidden_tests(row["info"]):
        assert test.input not in row["question"]
        assert json.dumps(test.input)[1:-1] not in text


# Rollouts


def test_rollouts_that_need_two_sandboxes_do_not_wait_for_each_other_for_ever() -> None:
    row = of_kind("SelectedSum", tests=2)
    solve = write("solution.py", reference(row["info"]))
    states = attempts([row] * 3, [solve, "done"], max_sandboxes=1)
    assert [state["reward"] for state in states] == [1.0] * 3


def test_an_errored_rollout_is_not_tested() -> None:
    def fail(prompt: Any) -> Any:
        raise whet.ModelError("no model")

    (state,) = attempts([of_kind("SelectedSum")], fail)
    assert (state["reward"], "tests_passed" in state) == (None, False)


def test_a_missing_compiler_ends_the_run_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    without = dataclasses.replace(LANGUAGES["c"], programs=("no-such-gcc",))
    monkeypatch.setitem(LANGUAGES, "c", without)
    with pytest.raises(SandboxUnavailableError, match=r"program no-such-gcc\. Install it with"):
        attempt(of_kind("SelectedSum", "c"), bash("true"), languages=("c",))


# Tasks


@pytest.mark.parametrize(
    ("kind", "parameters", "text", "output"),
    [
        ("SelectedSum", {"modulus": 3, "remainder": 1, "factor": 2}, "4\n1 2 3 4\n", "10"),
        ("ShiftedText", {"letters": 1, "digits": 9, "reverse": True}, "abz 0-1!\n", "9-0! bca"),
        ("RowScores", {"most": 2, "least": -1}, "2 2\n1 2\n5 -1\n", "3\n11\n2"),
        ("RunLengths", {"shortest": 2, "sign": "*", "count_first": True, "around": "()"}, "AABCCC\n", "(2*A)B(3*C)"),
        ("CoveredLength", {"left": 0, "right": 1, "gap": 1}, "3\n0 2\n4 5\n9 10\n", "2 8"),
        ("BaseSum", {"source": 16, "target": 2}, "2\nf\n1\n", "10000"),
        ("Automaton", {"rule": 90, "ring": False}, "2\n00100\n", "10001"),
        ("Automaton", {"rule": 2, "ring": True}, "2\n1000\n", "0010"),
        ("FewestCoins", {"coins": [4, 6]}, "3\n12 7 8\n", "2\n-1\n2"),
        ("WeightedEdits", {"insert": 2, "delete": 3, "replace": 4, "swap": 1}, "2\nab ba\nabc ab\n", "1\n3"),
        ("MarshWalk", {"move": "up, down, left or right", "marsh": 9, "field": 1}, "S~T\n...\n\nS#T\n", "4\n-1"),
        ("Ledger", {"fee": 10, "overdraft": 0, "penalty": 5}, "3\nin a 100\nmove a b 50\nout b 60\n", "a 45\nb 45\n1"),
    ],
)
def test_each_kind_means_what_its_statement_says(kind: str, parameters: dict, text: str, output: str) -> None:
    assert FAMILIES[kind].solve(parameters, text) == output


def test_spaces_at_the_ends_of_lines_and_empty_lines_at_the_end_do_not_matter() -> None:
    assert same("1 \n2\n\n", "1\n2")
    assert not same("1\n\n2", "1\n2")
    assert not same(" 1\n2", "1\n2")
    assert not same("1\n2\n3", "1\n2")
    assert not same("", "1")


def test_training_and_evaluation_share_no_problem_whatever_the_seeds_and_languages() -> None:
    def problems(split: str, seed: int) -> set[str]:
        env = load_environment(num_train=100, num_eval=60, seed=seed, difficulty="mixed", tests_per_task=1)
        rows = env.get_dataset() if split == "train" else env.get_eval_dataset()
        return {json.dumps([row["info"]["kind"], row["info"]["parameters"]]) for row in rows}

    assert (problems("train", 0) | problems("train", 1)).isdisjoint(problems("eval", 0) | problems("eval", 1))


def test_the_same_seed_makes_the_same_tasks() -> None:
    assert tasks(20, seed=3) == tasks(20, seed=3)
    assert tasks(20, seed=3) != tasks(20, seed=4)


def test_difficulty_and_languages_choose_the_tasks() -> None:
    for level in ("easy", "medium", "hard"):
        rows = tasks(12, difficulty=level, languages=("c", "python"))
        assert {FAMILIES[row["info"]["kind"]].level for row in rows} == {level}
        assert {row["info"]["language"] for row in rows} == {"c", "python"}


@pytest.mark.parametrize(
    "args", [{"difficulty": "harder"}, {"languages": ("cobol",)}, {"languages": ()}, {"tests_per_task": 0}]
)
def test_arguments_that_make_no_sense_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        load_environment(**args)
