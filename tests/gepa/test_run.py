"""`whet gepa run` from end to end, on scripted models behind real HTTP."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from planted.server import Endpoint, Trouble
from planted.world import SEED_PROMPT, World
from runs import ENVIRONMENT, Endpoints, begun, endpoints, finished, metadata, whole_lines

from whet.cli.main import main

pytest.importorskip("gepa")
pytest.importorskip("openai")

Whet = Callable[..., str]


@pytest.fixture
def models() -> Iterator[Endpoints]:
    with endpoints() as found:
        yield found


@pytest.fixture
def whet(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Whet:
    """`whet("gepa", "run", config, expected=2)`: what a command prints, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*words: Any, expected: int = 0) -> str:
        capfd.readouterr()
        status = main(list(map(str, words)))
        printed = "".join(capfd.readouterr())
        assert status == expected, printed
        return printed

    return run


@pytest.fixture
def config(models: Endpoints, tmp_path: Path) -> Path:
    return models.write_config(tmp_path / "search.toml", name="search")


RUN = Path("runs") / "search"


def test_a_search_leaves_the_best_prompt_and_the_command_that_evaluates_it(whet: Whet, config: Path) -> None:
    printed = whet("gepa", "run", config)
    told = metadata(RUN)
    assert told["state"] == "finished"
    assert told["spent"] <= 120
    assert sum(begun(RUN).values()) == told["spent"]
    for name in ("best_prompt.txt", "best_components.json", "candidates.jsonl", "pareto_frontier.jsonl", "report.html"):
        assert (RUN / name).is_file(), name
    best = json.loads((RUN / "best_components.json").read_text())["system_prompt"]
    assert (RUN / "best_prompt.txt").read_text() == best + "\n"
    assert World.of(0).mean(best) >= World.of(0).mean(SEED_PROMPT)

    command = re.search(r"evaluate +whet (.*)", printed)
    assert command is not None
    whet(*shlex.split(command[1]), "-n", 4, "-r", 1, "-k", "WHET_TEST_KEY")
    [results] = Path("outputs").rglob("results.jsonl")
    row = json.loads(results.read_text().splitlines()[0])
    assert row["prompt"][0] == {"role": "system", "content": best}


def test_a_run_that_is_over_costs_nothing_to_go_on_with(whet: Whet, config: Path, models: Endpoints) -> None:
    whet("gepa", "run", config)
    before = finished(RUN), models.policy.asked, models.reflection.asked
    whet("gepa", "run", "--resume", RUN)
    assert (finished(RUN), models.policy.asked, models.reflection.asked) == before


def test_more_calls_go_on_from_where_fewer_ended(whet: Whet, config: Path) -> None:
    whet("gepa", "run", config)
    before = begun(RUN)
    whet("gepa", "run", "--resume", RUN, "-B", 180)
    after = begun(RUN)
    assert 120 < sum(after.values()) <= 180
    assert all(after[key] == before[key] for key in before)


def test_a_run_is_not_gone_on_with_as_another(whet: Whet, config: Path) -> None:
    whet("gepa", "run", config, "--dry-run")
    whet("gepa", "run", config)
    said = whet("gepa", "run", "--resume", RUN, "-N", 15, "-a", '{"seed": 1}', expected=2)
    assert "num_val: was 16, is 15" in said
    assert "env.planted.args.seed: was None, is 1" in said
    assert "max_calls: was 120, is 119, and may only grow" in whet(
        "gepa", "run", "--resume", RUN, "-B", 119, expected=2
    )


def test_arguments_that_toml_has_no_word_for_are_the_same_when_it_goes_on(
    whet: Whet, models: Endpoints, tmp_path: Path
) -> None:
    (tmp_path / "takes_none_for_a_search.py").write_text(
        JUDGED.replace("load_environment()", "load_environment(extra=1)").replace(
            "    rubric = ", "    assert extra is None\n    rubric = ", 1
        )
    )
    config = models.write_config(
        tmp_path / "none.toml", name="search", env_id="./takes_none_for_a_search.py", components=["judge"]
    )
    whet("gepa", "run", config, "-a", '{"extra": null}')
    whet("gepa", "run", "--resume", RUN)


def test_a_directory_is_not_searched_in_twice(whet: Whet, config: Path) -> None:
    whet("gepa", "run", config)
    assert "already exists. Continue it with --resume" in whet("gepa", "run", config, expected=2)


def test_the_plan_is_told_and_nothing_made_on_a_dry_run(whet: Whet, config: Path, models: Endpoints) -> None:
    printed = whet("gepa", "run", config, "--dry-run")
    assert "120 calls: 16 for the first prompt on 16 validation examples, 24 reserved" in printed
    assert "80 for proposals: 6 for one that is rejected at once, 22 for one that is accepted" in printed
    assert not RUN.exists()
    assert models.policy.asked == 0


def test_a_budget_too_small_for_one_round_says_what_would_do(whet: Whet, config: Path) -> None:
    said = whet("gepa", "run", config, "-B", 40, expected=2)
    assert "Give at least -B 62" in said
    whet("gepa", "run", config, "-B", 62, "--dry-run")
    assert "Give at least -B 62" in whet("gepa", "run", config, "-B", 61, expected=2)


def test_a_seed_prompt_that_cannot_be_bettered_ends_the_search(whet: Whet, config: Path) -> None:
    printed = whet("gepa", "run", config, "--perfect-score", 0)
    assert "the seed prompt is perfect on every validation example" in printed
    assert metadata(RUN)["spent"] == 16


def test_an_environment_without_a_system_prompt_begins_from_an_empty_one(
    whet: Whet, models: Endpoints, tmp_path: Path
) -> None:
    config = models.write_config(tmp_path / "bare.toml", name="search", env_args={"system_prompt": ""})
    assert "system_prompt: there is none yet, so the search begins from an empty text" in whet("gepa", "run", config)
    assert metadata(RUN)["seed_candidate"] == {"system_prompt": ""}
    assert [message["role"] for message in models.policy.requests[0]["messages"]] == ["user"]
    candidates = [json.loads(line) for line in (RUN / "candidates.jsonl").read_text().splitlines()]
    proposed = {candidate["texts"]["system_prompt"] for candidate in candidates if candidate["verdict"] != "seed"}
    assert proposed
    opening = [request["messages"][0] for request in models.policy.requests]
    assert {message["content"] for message in opening if message["role"] == "system"} == proposed
    assert (RUN / "report.html").is_file()


def test_an_environment_without_a_system_prompt_takes_a_seed_prompt(
    whet: Whet, models: Endpoints, tmp_path: Path
) -> None:
    config = models.write_config(tmp_path / "bare.toml", name="search", env_args={"system_prompt": ""})
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Begin with this.\n")
    whet("gepa", "run", config, "--seed-prompt", "prompt.txt")
    assert metadata(RUN)["seed_candidate"] == {"system_prompt": "Begin with this."}
    assert models.policy.requests[0]["messages"][0]["content"] == "Begin with this."


def test_tool_descriptions_are_optimised_where_they_are_asked_for(
    whet: Whet, models: Endpoints, tmp_path: Path
) -> None:
    config = models.write_config(
        tmp_path / "tools.toml", name="search", env_args={"tool": True}, components=["system_prompt", "tools"]
    )
    whet("gepa", "run", config)
    assert sorted(metadata(RUN)["seed_candidate"]) == ["system_prompt", "tool:look_up"]
    tools = {request["tools"][0]["function"]["description"] for request in models.policy.requests}
    assert len(tools) > 1, "no proposal of another description was tried"
    assert {request["tools"][0]["function"]["name"] for request in models.policy.requests} == {"look_up"}


JUDGED = """
import whet
from whet.clients.scripted import ScriptedClient


def load_environment():
    rubric = whet.JudgeRubric(judge_client=ScriptedClient(lambda prompt: "no"), judge_prompt="Right? {response}")

    async def correct(judge, prompt, completion, answer, state):
        return float(await judge(prompt, completion, answer, state) == "yes")

    rubric.add_reward_func(correct)
    rows = [{"question": f"Record {number} (dates): what does it say?", "answer": ""} for number in range(100)]
    return whet.SingleTurnEnv(dataset=rows, rubric=rubric)
"""


def test_a_judges_prompt_is_optimised_with_what_it_was_asked_in_sight(
    whet: Whet, models: Endpoints, tmp_path: Path
) -> None:
    (tmp_path / "judged_for_a_search.py").write_text(JUDGED)
    config = models.write_config(
        tmp_path / "judged.toml", name="search", env_id="./judged_for_a_search.py", components=["judge"]
    )
    whet("gepa", "run", config)
    rows = whole_lines(RUN / "rollouts" / "results.jsonl")
    asked = {question for row in rows for question in row["judge_response"]}
    proposed = [line for line in whole_lines(RUN / "candidates.jsonl") if line["changed"] == ["judge"]]
    assert proposed
    assert all("{response}" in line["texts"]["judge"] for line in proposed)
    first = {question for question in asked if re.fullmatch(r"Right\? \d+", question)}
    assert first
    assert asked - first, "no proposal was asked with"


def test_refused_key_fails_in_one_line_and_resumes(whet: Whet, config: Path, models: Endpoints) -> None:
    models.policy.trouble = Trouble(refuse_after=30)
    said = whet("gepa", "run", config, expected=1)
    assert "failed: " in said
    assert "WHET_TEST_KEY" in said
    kept = finished(RUN)
    assert len(kept) == 30
    models.policy.trouble = Trouble()
    whet("gepa", "run", "--resume", RUN)
    assert finished(RUN)[:30] == kept
    assert max(begun(RUN)[key] for key in kept) == 1


def test_an_endpoint_that_is_down_costs_little_of_the_budget(whet: Whet, config: Path, models: Endpoints) -> None:
    models.policy.trouble = Trouble(busy_every=20, busy_for=10**6)
    said = whet("gepa", "run", config, expected=1)
    assert "calls keep failing" in said
    assert re.search(rf"continue +whet gepa run --resume \S*{RUN}\n", said)
    assert sum(begun(RUN).values()) <= 20 + 8 + 2 + 2


def test_unreachable_endpoint_fails_in_one_line_and_resumes(
    whet: Whet, models: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.clients.providers.connections.GRACE_S", 0.0)
    away = Endpoint(models.policy.answer).start()
    away.close()
    config = models.write_config(tmp_path / "search.toml", name="search", base_url=away.url)
    said = whet("gepa", "run", config, expected=1)
    assert f"failed: {away.url}/ cannot be reached: Connection refused." in said
    assert sum(begun(RUN).values()) <= 8 + 2
    with Endpoint(models.policy.answer, port=away.port):
        whet("gepa", "run", "--resume", RUN)
    assert finished(RUN)


def test_dollars_are_a_limit_too(whet: Whet, models: Endpoints, tmp_path: Path) -> None:
    (tmp_path / "endpoints.toml").write_text(
        "".join(
            f'[[endpoint]]\nendpoint_id = "{name}"\nmodel = "{name}"\nurl = "{endpoint.url}"\nkey = "WHET_TEST_KEY"\n'
            "price = { input = 100.0, output = 100.0 }\n"
            for name, endpoint in (("policy", models.policy), ("reflection", models.reflection))
        )
    )
    named = {"base_url": None, "reflection_base_url": None, "endpoints": "endpoints.toml", "api_key_var": None}
    config = models.write_config(tmp_path / "priced.toml", name="search", **named)
    assert "about $" in whet("gepa", "run", config, "--dry-run")
    printed = whet("gepa", "run", config, "--max-cost", "0.3")
    told = metadata(RUN)
    assert told["spent"] < 120
    assert 0.2 < told["cost"] <= 0.31
    assert "the budget is spent" in printed


def test_dollars_without_prices_are_no_limit(whet: Whet, config: Path) -> None:
    assert "max_cost needs the prices of both models" in whet("gepa", "run", config, "--max-cost", 1, expected=2)


def test_an_unknown_key_is_refused_with_the_one_that_was_meant(whet: Whet, models: Endpoints, tmp_path: Path) -> None:
    config = models.write_config(tmp_path / "typo.toml", max_call=100)
    assert "unknown key 'max_call'. Did you mean 'max_calls'?" in whet("gepa", "run", config, expected=2)


def test_several_environments_share_examples_and_an_equal_prompt(whet: Whet, models: Endpoints, tmp_path: Path) -> None:
    sections = [{"id": str(ENVIRONMENT), "name": name, "args": {"seed": 0}} for name in ("first", "second")]
    config = models.write_config(tmp_path / "two.toml", name="search", env_id=None, env=sections)
    printed = whet("gepa", "run", config)
    assert sorted({key.split("/")[2] for key in finished(RUN)}) == ["first", "second"]
    assert list(metadata(RUN)["seed_candidate"]) == ["system_prompt"]
    assert len(re.findall("^evaluate +whet eval run", printed, re.MULTILINE)) == 2


def test_texts_that_differ_between_environments_are_a_component_each(
    whet: Whet, models: Endpoints, tmp_path: Path
) -> None:
    sections = [
        {"id": str(ENVIRONMENT), "name": name, "args": {"system_prompt": f"You are the {name}."}}
        for name in ("first", "second")
    ]
    config = models.write_config(tmp_path / "two.toml", name="search", env_id=None, env=sections)
    whet("gepa", "run", config)
    assert sorted(metadata(RUN)["seed_candidate"]) == ["system_prompt@first", "system_prompt@second"]
    shown = {request["messages"][0]["content"].splitlines()[0] for request in models.policy.requests}
    assert shown == {"You are the first.", "You are the second."}
    assert json.loads((RUN / "best_components-first.json").read_text())["system_prompt"].startswith("You are the first")
    assert (RUN / "best_prompt-second.txt").read_text().startswith("You are the second.")
