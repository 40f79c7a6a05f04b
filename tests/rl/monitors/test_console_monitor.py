"""The terminal during training, as plain lines and as a person sees it on a real (pseudo-)terminal."""

from __future__ import annotations

import contextlib
import io
import pty
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from whet.display.live import Output
from whet.evals.analysis.compare import paired_difference
from whet.rl.monitors import MonitorGroup
from whet.rl.monitors.console import ConsoleMonitor, live_view, plan_line
from whet.rl.monitors.jsonl import JsonlMonitor
from whet.rl.monitors.progress import RunProgress, compare
from whet.rl.monitors.protocol import EvalReport, Outcome, RunPlan, StepReport
from whet.rollouts.totals import EvalScore
from whet.system.terminal import BLOCKS

ENVIRONMENTS = ["reverse-text", "calculator"]


def plan(**fields: object) -> RunPlan:
    given = {"name": "demo", "directory": Path("runs/demo"), "model": "whet/tiny", "environments": ENVIRONMENTS}
    sizes = {"batch_size": 128, "rollouts_per_example": 8, "max_steps": 4, "parameters": 1_100_000}
    return RunPlan(**{**given, **sizes, **fields})  # type: ignore[arg-type]


def step_report(step: int, sample: dict[str, object] | None = None) -> StepReport:
    rewards = {f"reward/{name}/mean": 0.1 * step for name in ENVIRONMENTS}
    return StepReport(step, {"reward/mean": 0.1 * step, "perf/tokens_per_s": 12345.6, **rewards}, sample)


def evaluation(moment: str, step: int, reward: float, errors: int = 0) -> EvalReport:
    scores = [
        EvalScore(name, sampling, reward, {"exact_match": reward / 2}, 64, errors)
        for name in ENVIRONMENTS
        for sampling in ("temperature 1", "greedy")
    ]
    return EvalReport(moment, step, step, scores)  # type: ignore[arg-type]


OUTCOME = Outcome(
    "finished",
    4,
    "",
    weights=Path("runs/demo/model"),
    report=Path("runs/demo/report.html"),
    rollouts=Path("runs/demo/rollouts"),
    next_command="whet eval run reverse-text -m runs/demo/model",
)


class Clock:
    """Advances by a fixed tick at each look, so that what is shown does not depend on the machine."""

    def __init__(self, tick: float) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Plain:
    """A monitor whose console is a file, and what was written to it."""

    def __init__(self, width: int = 100) -> None:
        self.file = io.StringIO()
        self.monitor = ConsoleMonitor(Output(Console(file=self.file, width=width, highlight=False), clock=Clock(0.5)))

    @property
    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def test_a_step_is_one_line_without_a_terminal() -> None:
    plain = Plain(width=40)  # narrower than the line, which is not broken all the same
    plain.monitor.start(plan())
    before = len(plain.lines)
    plain.monitor.phase("generate", 1, 128)
    plain.monitor.step(step_report(1))
    (line,) = plain.lines[before:]
    assert line.startswith("step 1/4  reward 0.100 (reverse-text 0.100, calculator 0.100)  12,346 tokens/s")
    assert line.endswith("left")


def test_the_first_line_says_what_is_about_to_happen() -> None:
    plain = Plain()
    plain.monitor.start(plan(first_step=3, trained_parameters=20_000, seed=7))
    assert plain.lines == [
        "demo: whet/tiny, 1.1M parameters (20k trained), 4 steps of 16 tasks x 8 rollouts, seed 7, resumed at step 3"
    ]


def test_evaluating_is_announced_once() -> None:
    plain = Plain()
    plain.monitor.start(plan())
    for done in range(3):
        plain.monitor.phase("evaluate", done, 512)
    assert [line for line in plain.lines if "evaluating" in line] == ["evaluating 512 rollouts of held-out tasks"]


def test_the_end_compares_before_and_after_and_says_where_everything_is() -> None:
    plain = Plain()
    plain.monitor.start(plan())
    plain.monitor.evaluation(evaluation("before", 0, 0.4))
    plain.monitor.step(step_report(1))
    plain.monitor.evaluation(evaluation("after", 4, 0.7, errors=1))
    plain.monitor.ended(OUTCOME)
    rows = [line.split() for line in plain.lines]
    assert ["reverse-text", "0.400", "0.700", "+0.300", "0.400", "0.700", "+0.300"] in rows
    assert ["exact", "match", "0.200", "0.350", "+0.150", "0.200", "0.350", "+0.150"] in rows
    assert ["mean", "0.400", "0.700", "+0.300", "0.400", "0.700", "+0.300"] in rows
    assert "4 errored rollouts are left out of these means." in plain.lines
    assert plain.lines[-4:] == [
        "weights   runs/demo/model",
        "report    runs/demo/report.html",
        "rollouts  runs/demo/rollouts",
        "next      whet eval run reverse-text -m runs/demo/model",
    ]


def test_a_resumed_run_is_compared_with_its_own_beginning(tmp_path: Path) -> None:
    JsonlMonitor(tmp_path / "metrics.jsonl").evaluation(evaluation("before", 0, 0.25))
    plain = Plain()
    plain.monitor.start(plan(directory=tmp_path, first_step=3))
    plain.monitor.evaluation(evaluation("after", 4, 0.75))
    plain.monitor.ended(OUTCOME)
    assert any(line.split()[:4] == ["calculator", "0.250", "0.750", "+0.500"] for line in plain.lines)


def test_the_end_of_a_resumed_run_counts_the_steps_of_this_process(tmp_path: Path) -> None:
    plain = Plain()
    plain.monitor.start(plan(directory=tmp_path, first_step=3))
    plain.monitor.step(step_report(3))
    plain.monitor.step(step_report(4))
    plain.monitor.ended(OUTCOME)
    wanted = "finished after 4 steps, 2 of them since it was resumed, in "
    assert any(line.startswith(wanted) for line in plain.lines)


def test_the_curves_of_a_resumed_run_begin_with_its_first_step(tmp_path: Path) -> None:
    log = JsonlMonitor(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        log.step(step_report(step))
    plain = Plain()
    plain.monitor.start(plan(directory=tmp_path, first_step=3))
    plain.monitor.step(step_report(3))
    assert plain.monitor.progress is not None
    assert plain.monitor.progress.rewards["calculator"] == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize("width", [80, 160])
def test_a_curve_has_a_column_for_each_step_as_far_as_the_window_goes(width: int) -> None:
    progress = RunProgress(plan(max_steps=200), lambda: 0.0)
    longest = 0
    for step in range(1, 181):
        progress.on_step(step_report(step))
        console = Console(file=io.StringIO(), width=width, height=24, force_terminal=True, color_system=None)
        lines = console.render_lines(live_view(progress, width, 24), pad=False)
        texts = ["".join(segment.text for segment in line).rstrip() for line in lines]
        assert max(map(len, texts)) <= width
        curve = max(sum(character in BLOCKS for character in text) for text in texts)
        assert curve == step or curve >= longest
        longest = curve
    assert longest >= width - 50


def test_a_failure_is_told_with_its_message_and_without_a_table() -> None:
    plain = Plain()
    plain.monitor.start(plan())
    plain.monitor.ended(Outcome("failed", 1, "the loss is not finite", next_command="whet train run x --resume"))
    assert plain.lines[1].startswith("failed after 1 step in ")
    assert plain.lines[1].endswith(": the loss is not finite")
    assert plain.lines[2] == "next      whet train run x --resume"


def test_nothing_hostile_reaches_the_terminal_and_markup_stays_text() -> None:
    plain = Plain()
    plain.monitor.start(plan(name="[red]x[/red]", environments=["[bold]a\x1b[2J"]))
    plain.monitor.note("see [link=evil]here[/link]\x1b]0;title\x07\nsecond line")
    plain.monitor.ended(OUTCOME)
    shown = "\n".join(plain.lines)
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[red]x[/red]: whet/tiny" in shown
    assert "see [link=evil]here[/link]" in shown


def test_a_reward_that_is_not_a_number_is_shown_as_unknown() -> None:
    plain = Plain()
    plain.monitor.start(plan(environments=["a"]))
    plain.monitor.step(StepReport(1, {"reward/mean": float("nan")}))
    assert "step 1/4  reward -" in plain.lines[-1]


def test_calls_between_two_pictures_draw_nothing() -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as file:
        console = Console(file=file, force_terminal=True, width=80, height=24, highlight=False)
        monitor = ConsoleMonitor(Output(console, live=True, clock=lambda: 0.0))
        monitor.start(plan())
        for step in range(1, 101):
            for done in range(10):
                monitor.phase("generate", done, 10)
            monitor.step(step_report(step))
        monitor.ended(OUTCOME)
    drawn = b""
    with contextlib.suppress(OSError), open(master, "rb", buffering=0) as screen:  # OSError: nothing more comes
        while data := screen.read(4096):
            drawn += data
    # At the beginning and in the end, and once more as rich lets the region go.
    assert 1 <= drawn.count(b"demo: whet/tiny") <= 3


def test_parameters_are_counted_in_short() -> None:
    assert "4.02B parameters" in plan_line(plan(parameters=4_022_000_000))


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("shown", {file!r})
shown = module_from_spec(spec)
spec.loader.exec_module(shown)
shown.play()
"""


def play() -> None:
    """What the process in the pseudo-terminal runs: a short run, watched by the default monitor."""
    monitor = ConsoleMonitor(replace(Output.find(stderr=False, keys=False), clock=Clock(0.5)))
    monitor.start(plan())
    monitor.evaluation(evaluation("before", 0, 0.4))
    prompt = [{"role": "user", "content": "Reverse: \x1b]0;owned\x07[blink]abc\u202e"}]
    said = [
        {"role": "assistant", "content": "cba\x1b[31m", "tool_calls": ['{"id": "1", "name": "add", "arguments": "{}"}']}
    ]
    row = {"environment": "reverse-text", "reward": 0.75, "advantage": 0.25, "prompt": prompt, "completion": said}
    for step in range(1, 4):
        monitor.phase("generate", 64, 128)
        monitor.step(step_report(step, row))
    print("something an environment printed")
    if "--crash" in sys.argv:
        raise SystemExit("an error nobody expected")
    monitor.phase("train", 0, 1)
    if "--stay" in sys.argv:
        monitor.note("<pause>")
        sys.stdin.read(1)
    monitor.evaluation(evaluation("after", 4, 0.7))
    monitor.ended(OUTCOME)


@pytest.fixture
def played(terminals: Any) -> Callable[..., Any]:
    """Opens a terminal in which `play` runs with these arguments."""
    program = PROGRAM.format(folder=str(Path(__file__).parent), file=__file__)
    return lambda *arguments, rows=30: terminals.open([sys.executable, "-c", program, *arguments], rows=rows)


def test_the_live_view_shows_step_rewards_curve_phase_and_a_harmless_sample(played: Callable[..., Any]) -> None:
    terminal = played("--stay")
    terminal.wait_for(re.compile("<pause>.*Ctrl-C  stop with a checkpoint", re.DOTALL))
    terminal.send("\n")
    # The picture that was last drawn while training is what stands above the table.
    assert terminal.wait() == 0
    screen, text = terminal.lines(), terminal.text()
    assert any(line.startswith("step ") and "3/4" in line and "left" in line for line in screen)
    assert "Ctrl-C" not in text  # the run is over
    assert any(line.split()[:3] == ["reverse-text", "0.700", "0.300"] and "▃" in line for line in screen)
    assert "12,346 tokens/s" in text
    assert "reward 0.75, advantage +0.25" in text
    assert "[blink]abc" in text
    assert "add({})" in text
    assert b"\x1b]0;owned" not in terminal.raw
    assert terminal.screen.title == ""


def test_printing_by_an_environment_does_not_break_the_live_view(played: Callable[..., Any]) -> None:
    terminal = played()
    assert terminal.wait() == 0
    screen = terminal.lines()
    assert screen.count("something an environment printed") == 1
    assert sum(line.startswith("demo: whet/tiny") for line in screen) == 1
    assert screen[-2].startswith("next") or "next      whet eval run" in "\n".join(screen)


@pytest.mark.parametrize("arguments", [(), ("--crash",)])
def test_the_cursor_is_given_back_whatever_happens(played: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    terminal = played(*arguments)
    terminal.wait()
    assert b"\x1b[?25l" in terminal.raw
    assert not terminal.screen.cursor.hidden


def test_a_terminal_of_ten_lines_is_enough(played: Callable[..., Any]) -> None:
    terminal = played(rows=10)
    assert terminal.wait() == 0
    assert any("next      whet eval run" in line for line in terminal.lines())


def scored(*rewards: float) -> EvalReport:
    by_task = {str(task): reward for task, reward in enumerate(rewards)}
    return EvalReport("before", 0, 0, [EvalScore("a", "greedy", sum(rewards) / len(rewards), {}, 4, by_task=by_task)])


def test_a_change_has_the_interval_of_its_paired_tasks() -> None:
    before, after = (0.0, 0.5, 0.25, 1.0), (0.5, 0.5, 0.5, 1.0)
    _, [row] = compare(scored(*before), scored(*after))
    wanted = paired_difference([b - a for a, b in zip(before, after, strict=True)])
    assert wanted.high is not None
    change = row.values["greedy"]
    assert change.change == pytest.approx(wanted.mean)
    assert change.reach == pytest.approx(wanted.high - wanted.mean)
    assert not change.is_real


def test_one_task_has_no_interval() -> None:
    _, [row] = compare(scored(0.25), scored(0.5))
    assert row.values["greedy"].reach is None


def test_the_live_view_shows_the_members_of_a_group_below_it() -> None:
    progress = RunProgress(plan(environments=["mix"], members={"mix": ["mix/alpha", "mix/beta"]}), lambda: 0.0)
    alpha = EvalScore("mix/alpha", "greedy", 0.25, {}, 4)
    progress.on_evaluation(EvalReport("before", 0, 0, [EvalScore("mix", "greedy", 0.5, {}, 8, members=[alpha])]))
    progress.on_step(StepReport(1, {"reward/mean": 0.5, "reward/mix/mean": 0.5, "reward/mix/beta/mean": 0.75}))
    console = Console(file=io.StringIO(), width=80, height=20, force_terminal=True, color_system=None)
    lines = console.render_lines(live_view(progress, 80, 20), pad=False)
    texts = ["".join(segment.text for segment in line).rstrip() for line in lines]
    assert any(text.split() == ["alpha", "0.250", "-"] for text in texts)
    assert any(text.split() == ["beta", "-", "0.750", "▇"] for text in texts)
    assert any(text.split()[:3] == ["mix", "0.500", "0.500"] for text in texts)


def test_the_view_shows_tokens_of_unfinished_answers() -> None:
    plain = Plain()
    MonitorGroup([plain.monitor]).watch(lambda: "12 tokens so far in 3 unfinished answers, 5 in the longest")
    plain.monitor.start(plan())
    plain.monitor.console.print(plain.monitor.draw(100, 20, ""))
    assert any(line.startswith("12 tokens so far in 3 unfinished answers, 5 in the longest") for line in plain.lines)


def test_a_run_that_goes_back_to_its_checkpoint_shows_each_step_once(tmp_path: Path) -> None:
    console, records = Plain(), JsonlMonitor(tmp_path / "metrics.jsonl")
    console.monitor.start(plan(directory=tmp_path))
    for report in map(step_report, (1, 2, 3)):
        records.step(report)
        console.monitor.step(report)
    console.monitor.evaluation(evaluation("during", 3, 0.5))
    records.truncate_after(2)
    console.monitor.rewound(2)
    progress = console.monitor.progress
    assert progress is not None
    assert (progress.step, progress.evaluations) == (2, [])
    console.monitor.step(step_report(3))
    assert progress.rewards["calculator"] == pytest.approx([0.1, 0.2, 0.3])
