"""Whole reviews of packages that are really run, in a real sandbox: each defect is found, a good package has none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bfcl.data
from whet.authoring.review import isolation
from whet.authoring.review.check import check_environment
from whet.authoring.review.findings import Report
from whet.errors import ConfigError, EnvironmentLoadError, SandboxUnavailableError

ROOT = Path(__file__).parents[3]
Review = Callable[..., Report]


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def message(report: Report, code: str) -> str:
    return next(finding.message for finding in report.findings if finding.code == code)


def test_good_package_has_no_findings(review: Review) -> None:
    report = review()
    assert report.findings == ()
    assert report.facts["mean_rewards"]["right answer, plain"] == 1.0
    assert (report.facts["train_rows"], report.facts["eval_rows"]) == (20, 10)


def test_python_that_is_reached_by_a_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "bin" / "python3"
    link.parent.mkdir()
    link.symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr(sys, "executable", str(link))
    with isolation._bubblewrap({}, []) as (command, descriptors):
        subprocess.run([*command, str(link), "-I", "-S", "-c", "pass"], pass_fds=descriptors, check=True)


PACKAGES = sorted(path.parent.name for path in ROOT.glob("environments/*/pyproject.toml"))
SOON = ("code_tests", "reverse_text", "wordle")
"""One turn, several, and sandboxes; what the other packages are reviewed for, their own tests try too."""


@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.long) for name in PACKAGES]
)
def test_the_packages_of_this_project_pass(name: str) -> None:
    folder = ROOT / "environments" / name
    if name == "bfcl":  # a sandbox has no network to fetch it
        bfcl.data.wheel()
    report = check_environment(str(folder), tasks=1)
    assert [finding for finding in report.findings if finding.severity == "error"] == []
    assert "rollouts" in report.facts or codes(report) == ["unprobed"]


def test_what_importing_does_beside_defining_names_is_found(review: Review, tmp_path: Path) -> None:
    before = """
        import os, socket, subprocess, tempfile, threading
        print("hello")
        os.environ["SOME_SETTING"] = "1"
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        open(os.path.join(tempfile.gettempdir(), "left-behind"), "w").close()
        subprocess.run(["true"])
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=0.1)
        except OSError:
            pass
    """
    report = review(before=before)
    found = {code for code in codes(report) if code.startswith("import-")}
    assert found == {f"import-{what}" for what in ("environment", "network", "output", "process", "thread", "writes")}
    assert {f.where for f in report.findings if f.code == "import-process"} == {f"{tmp_path}/sums/sums.py:7"}


def test_import_effects_of_libraries_are_ignored(review: Review) -> None:
    assert review(before="import multiprocessing.resource_tracker, logging.config, webbrowser\n").findings == ()


def test_a_module_that_fails_on_import_is_an_error(review: Review) -> None:
    report = review(source="raise RuntimeError('no luck')")
    assert "no luck" in message(report, "import-fails")
    assert not report.ok


def test_an_environment_that_does_not_load_is_an_error_that_says_why(review: Review) -> None:
    report = review(source="def load_environment(size: int = 3):\n    return {}\n")
    assert "returned dict" in message(report, "load-fails")


def test_keys_that_it_asks_for_are_filled_in_and_told(review: Review) -> None:
    report = review(
        before="import whet\nload_keys = lambda: whet.ensure_keys(['SOME_KEY'])\n", reward="[load_keys(), correct][1]"
    )
    assert "SOME_KEY" in message(report, "needs-keys")
    assert report.facts["mean_rewards"]["right answer, plain"] == 1.0


def test_a_reward_for_naming_every_answer_is_a_hack(review: Review) -> None:
    report = review(
        before="def contains(completion, answer):\n    return float(answer in completion[-1]['content'])\n",
        reward="contains",
    )
    assert {f.where for f in report.findings if f.code == "reward-hack"} >= {
        "several answers",
        "several answers, one after the other",
    }


def test_a_reward_for_anything_at_all_is_found(review: Review) -> None:
    report = review(before="def kind(completion):\n    return 1.0\n", reward="kind")
    assert "the reward 1" in message(report, "reward-constant")


def test_a_reward_that_depends_on_the_order_of_a_set_is_found(review: Review) -> None:
    before = """
        def unsteady(completion, answer):
            return (next(iter({answer, "a", "b", "c", "d", "e", "f", "g"})) == answer) + hash(answer) % 1000 / 1e6
    """
    assert "earned" in message(review(before=before, reward="unsteady"), "reward-varies")


def test_a_reward_function_that_cannot_take_an_empty_answer_is_found(review: Review) -> None:
    report = review(
        before="def first(completion):\n    return float(completion[-1]['content'][0] == '1')\n", reward="first"
    )
    finding = next(finding for finding in report.findings if finding.code == "rollout-fails")
    assert finding.where.split(", ")[0] == "nothing"
    assert "IndexError" in finding.message


def test_a_task_in_both_splits_is_found_and_the_report_is_plain_data(review: Review) -> None:
    report = review(first_eval=15)
    assert "5 of 10 evaluation tasks are training tasks as well" in message(report, "splits-overlap")
    data = json.loads(json.dumps(report.as_dict()))
    assert data["findings"][0]["code"] == "splits-overlap"
    assert os.path.isdir(data["path"])


def test_an_environment_that_never_ends_is_found(review: Review) -> None:
    source = """
        import whet

        class Chat(whet.MultiTurnEnv):
            async def env_response(self, messages, state, **kwargs):
                return [{"role": "user", "content": "go on"}]

        def load_environment():
            rubric = whet.Rubric(funcs=[lambda completion: 0.5])
            return Chat(dataset=[{"question": "Hello", "answer": "1"}], rubric=rubric)
    """
    assert "40 turns" in message(review(source=source), "endless")


def test_env_groups_and_group_rewards_are_probed(review: Review) -> None:
    source = """
        import whet

        def rows(word):
            return [{"question": f"Say {word}{n}.", "answer": f"{word}{n}"} for n in range(4)]

        def ranked(completions, answers) -> list[float]:
            return [float(one[-1]["content"] == answer) for one, answer in zip(completions, answers)]

        def load_environment():
            rubric = whet.Rubric(funcs=[ranked])
            parts = [whet.SingleTurnEnv(dataset=rows(w), eval_dataset=rows(w.upper()), rubric=rubric) for w in "ab"]
            return whet.EnvGroup(parts, env_names=["first", "second"])
    """
    report = review(source=source)
    assert codes(report) == ["splits-overlap"]  # in lower case they are the same
    assert report.facts["mean_rewards"]["right answer, plain"] == 1.0


def test_the_code_sees_no_keys_no_files_and_no_network_of_the_host(
    review: Review, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRECIOUS_KEY", "sk-precious")
    (tmp_path / "diary.txt").write_text("dear diary")
    source = f"""
        import os, pathlib, socket

        def reaches():
            try:
                socket.create_connection(("192.0.2.1", 80), timeout=1)
            except OSError as error:
                return error.errno

        def load_environment():
            seen = [os.environ.get("PRECIOUS_KEY"), os.path.exists({str(tmp_path / "diary.txt")!r}), reaches()]
            try:
                pathlib.Path(__file__).write_text("changed")
            except OSError as error:
                seen.append(error.strerror)
            raise ValueError(seen)
    """
    said = message(review(source=source), "load-fails")
    assert "[None, False, 101, 'Read-only file system']" in said


def test_programs_of_the_system_are_found_whatever_path_the_host_has(
    review: Review, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("setpriv", "unshare", "mount", "mkdir", "sh"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert "import-fails" not in codes(review(before="import subprocess\nsubprocess.run(['true'], check=True)\n"))


def test_no_sandbox_hides_keys_and_is_reported(
    write_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRECIOUS_KEY", "sk-precious")
    folder = write_package(
        source="import os\ndef load_environment():\n    raise ValueError(os.environ.get('PRECIOUS_KEY'))\n"
    )
    report = check_environment(str(folder), sandbox=False)
    assert "ValueError: None" in message(report, "load-fails")
    assert "not-isolated" in codes(report)


@pytest.mark.parts
def test_code_that_hangs_is_ended_and_what_was_seen_before_is_told(review: Review) -> None:
    report = review(reward="hang", before="import time\ndef hang():\n    time.sleep(3600)\n", timeout_s=20)
    assert "right answer, plain" in message(report, "unfinished")


GROUPS = pytest.mark.parametrize("groups", [True, False], ids=["control groups", "no control groups"])


def without_groups(monkeypatch: pytest.MonkeyPatch, groups: bool) -> None:
    """A machine that has none: most containers, and users without rights."""
    if not groups:
        monkeypatch.setattr(isolation.cgroups, "make", lambda *args: None)


@pytest.mark.parts
@GROUPS
@pytest.mark.parametrize("sandbox", [True, False], ids=["sandbox", "no sandbox"])
def test_a_fork_bomb_is_ended_and_told(
    write_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, groups: bool, sandbox: bool
) -> None:
    without_groups(monkeypatch, groups)
    monkeypatch.setattr(isolation, "PROCESSES", 48)
    source = """
        import os

        def load_environment():
            while True:
                try:
                    os.fork()
                except OSError:
                    pass
    """
    report = check_environment(str(write_package(source=source)), tasks=1, sandbox=sandbox, timeout_s=100)
    assert "it started more than 48 processes" in message(report, "unfinished")


@pytest.mark.parts
@GROUPS
def test_memory_is_limited_for_all_processes_together(
    review: Review, monkeypatch: pytest.MonkeyPatch, groups: bool
) -> None:
    without_groups(monkeypatch, groups)
    monkeypatch.setattr(isolation, "memory_bytes", lambda: 1 << 30)
    source = """
        import os, time

        def load_environment():
            for _ in range(12):
                if os.fork() == 0:
                    taken = os.urandom(1) * (128 << 20)
                    time.sleep(3600)
            os.wait()
    """
    assert "it took more than 1 GiB of memory" in message(review(source=source, timeout_s=100), "unfinished")


def test_files_that_are_made_to_keep_their_reader_busy_do_not(review: Review) -> None:
    size = (1 << 20) - 1
    slow = {f"slow_{n}.txt": (text * size)[:size] for n, text in enumerate(("a-", "wandb", "a://", "secret='", "\n"))}
    report = review(
        more={**slow, "minus.py": "-" * 200_000 + "1", "deep.py": "if " + "-" * 900 + "1:\n    import json\n"}
    )
    assert report.findings == ()


@pytest.mark.parametrize("value", ["[" * 100_000, "{a=" * 50_000, "9" * 5000])
def test_a_pyproject_without_end_is_a_finding(review: Review, value: str) -> None:
    ends_early = "raise RuntimeError"  # the file is read before the module is loaded
    report = review(source=ends_early, project=f"[project]\nname = '{{name}}'\nx = {value.replace('{', '{{')}\n")
    assert "it cannot be read: " in message(report, "pyproject")


def test_a_process_that_spoils_its_own_report_is_not_believed(review: Review) -> None:
    source = """
        import os

        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b'{"event": "imported", "seconds": 0.0, "error": null, "ok": true}\\n')
            except OSError:
                pass
    """
    report = review(source=source)
    assert "not in order" in message(report, "unfinished")


def test_what_a_package_excuses_is_a_note_with_its_reason(review: Review) -> None:
    project = """
        [project]
        name = "{name}"
        version = "0.1.0"
        description = "For a test."
        license = "MIT"
        dependencies = ["whet"]

        [tool.whet.check]
        reward_range = [0, 2]
        ignore = {{ no-eval-default = "it is only a test" }}
    """
    report = review(
        before="def doubled(completion, answer):\n    return 2 * correct(completion, answer)\n",
        reward="doubled",
        project=project,
    )
    assert [(one.code, one.severity) for one in report.findings] == [("no-eval-default", "note")]
    assert "it is only a test" in report.findings[0].message


def test_missing_environment_and_bad_numbers_are_user_errors() -> None:
    with pytest.raises(EnvironmentLoadError, match="not installed"):
        check_environment("no-such-environment-anywhere")
    with pytest.raises(ConfigError, match="at least one task"):
        check_environment("calculator", tasks=0)


def test_without_bubblewrap_nothing_runs_unless_it_is_asked_for(
    write_package: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.sandboxes.bubblewrap import host as bubblewrap_host

    def missing() -> None:
        raise SandboxUnavailableError("bwrap is missing.")

    monkeypatch.setattr(bubblewrap_host, "host", missing)
    marker = write_package().parent / "ran"
    folder = write_package(source=f"open({str(marker)!r}, 'w')")
    with pytest.raises(SandboxUnavailableError, match="--no-sandbox"):
        check_environment(str(folder))
    assert not marker.exists()


def test_single_module_sees_only_sibling_modules(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'seen'")
    (tmp_path / "notes.txt").write_text("private")
    (tmp_path / "alone.py").write_text(
        "import os, beside\ndef load_environment():\n"
        "    raise ValueError(beside.WORD, os.path.exists(os.path.join(os.path.dirname(__file__), 'notes.txt')))\n"
    )
    assert "('seen', False)" in message(check_environment(str(tmp_path / "alone.py")), "load-fails")


@pytest.mark.parts
def test_leftover_processes_and_endless_output_do_not_block(
    write_package: Callable[..., Path],
) -> None:
    before = """
        import subprocess, sys
        subprocess.Popen(["sleep", "10"], start_new_session=True)
        sys.stdout.write("x" * (64 << 20))
    """
    report = check_environment(str(write_package(before=before)), tasks=1, sandbox=False, timeout_s=60)
    assert {"import-process", "import-output"} <= set(codes(report))
    assert report.facts["mean_rewards"]["right answer, plain"] == 1.0
