"""The small helpers that packages import from `verifiers.utils` and `verifiers.v1.utils`."""

import inspect
import itertools
import json
import logging
import math
import os
import sys
from datetime import date
from pathlib import Path

import pytest

import whet
from whet.clients.config import ClientConfig, EndpointConfig
from whet.clients.usage import context_tokens
from whet.compat import clients, messages, metrics, names, results
from whet.errors import DatasetError
from whet.rollouts.generate import GenerateOutputsBuilder
from whet.types import Response, ResponseMessage, Usage


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.12, "120ms"), (1, "1s"), (59.4, "59s"), (60, "1m"), (185, "3m 5s"), (3600, "1h"), (93_600, "1d 2h")],
)
def test_print_time_has_the_two_largest_units(seconds, text):
    assert names.print_time(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 bytes"), (1536, "1.5 KB"), (3 * 2**20, "3.0 MB"), (2**31, "2.0 GB")]
)
def test_print_size_has_the_largest_unit(size, text):
    assert names.print_size(size) == text


def test_json_lines_of_a_log_hold_message_and_exception():
    try:
        raise ValueError("no")
    except ValueError:
        record = logging.LogRecord("n", logging.INFO, "f.py", 3, "said %s", ("so",), sys.exc_info(), "g")
    line = json.loads(names.JsonFormatter().format(record))
    assert (line["message"], line["level"], line["line"], line["function"]) == ("said so", "INFO", 3, "g")
    assert "ValueError: no" in line["exception"]


@pytest.mark.parametrize(
    ("answer", "found"),
    [('{"score": 1}', {"score": 1}), ('Well: {"score": 0.5}.', {"score": 0.5}), ("[1]", None), ("none", None)],
)
def test_the_json_of_a_judge_is_found_between_other_text(answer, found):
    expected = found or {"score": 0.0, "reason": "judge did not return JSON", "raw": answer}
    assert names.parse_judge_json(answer) == expected


@pytest.mark.parametrize(
    ("value", "number"),
    [(0.3, 0.3), ("0.7", 0.7), (7, 1.0), (-1, 0.0), (True, 0.0), (None, 0.0), ("x", 0.0), ("nan", 0.0)],
)
def test_a_judges_number_is_between_0_and_1(value, number):
    assert names.clamp_float(value) == number


def test_records_of_commands_are_cut_for_a_judge():
    cut = names.truncate_command_record({"command": "c" * 3000, "stdout": "o" * 7000, "stderr": None, "code": 1})
    assert cut["command"] == "c" * 2000 + "\n...<truncated>"
    assert (len(cut["stdout"]), cut["stderr"], cut["code"]) == (6000 + 15, "", 1)
    assert names.truncate_command_record("text") == "text"


def test_the_text_of_a_completion_is_that_of_its_last_assistant_message():
    said = [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "tool", "content": "c"},
    ]
    assert names.completion_text(said) == "b"
    assert names.completion_text(None) == ""


def test_arguments_of_a_call_are_a_json_object():
    assert names.json_args('{"a": 1}') == {"a": 1}
    assert names.json_args("") == {}
    with pytest.raises(ValueError, match="JSON object"):
        names.json_args("[1]")


def test_a_filtered_signature_hides_parameters_from_the_schema():
    def look_up(self, name: str, table: dict) -> str:
        """Look a name up."""
        return table[name]

    filtered = names.filter_signature(look_up, ["table"])
    assert list(inspect.signature(filtered).parameters) == ["name"]
    assert filtered.__annotations__ == {"name": str, "return": str}
    assert (filtered.__name__, filtered.__doc__) == ("look_up", "Look a name up.")
    assert filtered(None, name="a", table={"a": "b"}) == "b"
    assert "table" in look_up.__annotations__
    assert names.filter_signature(look_up, []) is look_up


def test_tool_rubric_counts_calls_and_its_count_is_awaited():
    def add(a: int) -> int:
        """Add."""
        return a

    rubric = names.ToolRubric(tools=[add])
    assert rubric._get_reward_func_names() == ["total_tool_calls", "add_calls"]
    env = whet.ToolEnv(tools=[add], dataset=[{"question": "?"}], rubric=rubric)
    call = {"id": "1", "name": "add", "arguments": '{"a": 1}'}
    (row,) = env.evaluate_sync(whet.ScriptedClient([{"tool_calls": [call]}, "done"]), "m")["outputs"]
    assert row["error"] is None
    assert (row["metrics"]["add_calls"], row["metrics"]["add_calls_2"]) == (1.0, 1.0)  # the environment counts it too
    assert inspect.iscoroutinefunction(rubric.total_tool_calls)


def test_quiet_datasets_puts_back_level_and_progress_bars():
    datasets = pytest.importorskip("datasets")
    before = datasets.logging.get_verbosity(), datasets.is_progress_bar_enabled()
    with names.quiet_datasets():
        assert datasets.logging.get_verbosity() == logging.WARNING
        assert not datasets.is_progress_bar_enabled()
    assert (datasets.logging.get_verbosity(), datasets.is_progress_bar_enabled()) == before


def test_clients_of_the_packages_are_made_from_a_config(monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("SOME_KEY", "secret")
    config = ClientConfig(
        client_idx=1,
        api_key_var="SOME_KEY",
        timeout=7,
        endpoint_configs=[EndpointConfig(api_base_url=f"http://127.0.0.1:{port}/v1") for port in (1, 2)],
    )
    client = clients.setup_openai_client(config)
    assert type(client).__name__ == "AsyncOpenAI"
    assert (str(client.base_url), client.api_key) == ("http://127.0.0.1:2/v1/", "secret")
    assert client.timeout.read == 7
    assert [one.api_base_url for one in clients.resolve_client_configs(config)] == [
        "http://127.0.0.1:1/v1",
        "http://127.0.0.1:2/v1",
    ]
    whole = clients.setup_openai_client(ClientConfig(api_key_var="SOME_KEY", timeout=7))
    assert (whole.api_key, whole.timeout.read) == ("secret", 7)


def test_the_config_of_the_prime_command_is_read_where_there_is_one(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert clients.load_prime_config() == {}
    (tmp_path / ".prime").mkdir()
    (tmp_path / ".prime" / "config.json").write_text('{"team_id": "t"}')
    assert clients.load_prime_config() == {"team_id": "t"}
    (tmp_path / ".prime" / "config.json").write_text("{")
    assert clients.load_prime_config() == {}
    assert "cannot be read" in caplog.text


def response(prompt, completion):
    message = ResponseMessage(content="x", finish_reason="stop", is_truncated=False)
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion)
    return Response(id="1", created=0, model="m", usage=usage, message=message)


def test_a_usage_tracker_has_nothing_until_usage_is_reported():
    tracker = metrics.StateUsageTracker()
    tracker.increment(0, 0, mark_seen=False)
    assert tracker.snapshot() is None
    tracker.increment_from_response(response(10, 5))
    tracker.increment(1)
    assert tracker.snapshot() == dict(tracker.usage) == {"input_tokens": 11.0, "output_tokens": 5.0}
    with pytest.raises(TypeError):
        tracker.usage["input_tokens"] = 0
    with pytest.raises(ValueError, match="negative"):
        tracker.increment(-1)


def test_tokens_of_a_context_are_those_written_and_all_others():
    steps = [{"response": response(100, 20)}, {"response": response(150, 25)}, {"response": None}]
    assert context_tokens(steps) == {"final_output_tokens": 45, "final_input_tokens": 130}


def test_metrics_are_means_over_the_rows_that_have_the_value():
    rows = [
        {"reward": 1.0, "metrics": {"a": 1, "b": 2, "note": "x"}, "token_usage": {"input_tokens": 4.0}},
        {"reward": None, "error": {"error": "E"}, "metrics": {"a": 0}},
    ]
    kinds = [metrics.RewardMetric, metrics.ErrorRateMetric, metrics.InputTokensMetric, metrics.OutputTokensMetric]
    for kind, expected, count in zip(kinds, [0.5, 0.5, 4.0, 0.0], [2, 2, 1, 0], strict=True):
        metric = kind()
        metric.add_outputs(rows)
        assert isinstance(metric, metrics.Metric)
        assert (metric.compute(), metric.count) == (expected, count)
        metric.reset()
        assert (metric.compute(), metric.count) == (0.0, 0)
    env_metrics = metrics.EnvMetrics()
    env_metrics.add_outputs(rows)
    assert env_metrics.compute() == {"a": 0.5, "b": 2.0}


def test_pass_at_k_counts_tasks_whose_attempts_are_all_there():
    metric = metrics.PassAtKMetric(4)
    metric.add_outputs([{"example_id": 0, "reward": reward} for reward in (1, 1, 0, None)])
    metric.add_outputs([{"example_id": 1, "reward": 0.0}])
    at_k, all_k = metric.compute()
    assert math.isclose(at_k["2"], 1 - 1 / 6)
    assert math.isclose(all_k["2"], 1 / 6)


def test_parts_of_messages_become_plain_data_for_rows():
    parts = [
        {"type": "text", "text": "look", "image_url": None},
        {"type": "image_url", "image_url": "http://127.0.0.1/a.png"},
        {"type": "audio", "data": " ZH\nVt ", "format": "WAV"},
        {"type": "audio", "audio": {"data": "ZHVt", "format": "mp3"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
    ]
    message = whet.UserMessage([dict(part) for part in parts[:1]])
    plain = messages.serialize_message_for_output(
        {"role": "tool", "tool_call_id": "1", "content": parts, "audio": {"id": "a1"}}
    )
    assert plain == {
        "role": "tool",
        "tool_call_id": "1",
        "audio": {"id": "a1"},
        "content": [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}},
            {"type": "input_audio", "input_audio": {"data": "ZHVt", "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": "ZHVt", "format": "mp3"}},
            {"type": "text", "text": "[audio]"},
        ],
    }
    assert messages.serialize_messages_for_output([message])[0]["content"] == [{"type": "text", "text": "look"}]
    assert messages.serialize_messages_for_output("text") == "text"


def test_tool_calls_become_text_for_rows():
    call = whet.ToolCall(id="1", name="add", arguments="{}")
    (plain,) = messages.sanitize_tool_calls([whet.AssistantMessage(content=None, tool_calls=[call])])
    assert json.loads(plain["tool_calls"][0]) == {"id": "1", "name": "add", "arguments": "{}"}
    assert plain["content"] == ""


def test_messages_for_people_hold_reasoning_and_calls():
    call = {"id": "1", "name": "add", "arguments": '{"a": 1}'}
    said = [{"role": "assistant", "content": "It\x1b is", "reasoning_content": "hm", "tool_calls": [call]}]
    shown = messages.format_messages([{"role": "user", "content": "?"}, *said]).plain
    assert shown.startswith("user: ?\n\nassistant: \n[reasoning]\nhm")
    assert "\x1b" not in shown
    assert '"name": "add"' in shown


def row(example_id, reward, **fields):
    return whet.RolloutOutput(example_id=example_id, reward=reward, metrics={}, error=None, **fields)


def builder(tmp_path, **given):
    settings = {"env_id": "e", "env_args": {}, "model": "m", "client": ClientConfig(), "sampling_args": {}}
    counts = {"num_examples": 1, "rollouts_per_example": 2, "state_columns": None, "results_path": tmp_path}
    return GenerateOutputsBuilder(**{**settings, **counts, **given})


def test_a_builder_computes_metadata_as_evaluate_does(tmp_path):
    made = builder(tmp_path)
    made.add_outputs([row(1, 0.0), row(0, 1.0, tool_defs=[{"name": "a"}]), row(0, 0.0, tool_defs=[{"name": "a"}])])
    built = made.build(sort_by_example_id=True)
    assert [output["example_id"] for output in built["outputs"]] == [0, 0, 1]
    metadata = built["metadata"]
    assert metadata["avg_reward"] == pytest.approx(1 / 3)
    assert metadata["pass_at_k"]["1"] == 0.5
    assert metadata["base_url"] == "https://api.openai.com/v1"
    assert metadata["tools"] is None


def test_keys_and_headers_are_in_no_metadata(tmp_path):
    args = {"api_key": "sk-a-secret", "client": {"headers": {"X-Team": "a-secret"}}, "level": 2}
    sampling = {"extra_headers": {"Authorization": "Bearer a-secret"}, "extra_body": {"api_key": "a-secret"}, "n": 1}
    client = ClientConfig(api_base_url="https://me:a-secret@host.example/v1?api_key=a-secret")
    made = builder(tmp_path, env_args=args, sampling_args=sampling, client=client)
    made.add_outputs([row(0, 1.0)])
    metadata = made.build_metadata()
    assert "a-secret" not in repr(metadata)
    assert (metadata["env_args"]["level"], metadata["sampling_args"]["n"]) == (2, 1)
    assert made.env_args == args  # what the caller gave is left as it is
    results.save_metadata({**metadata, "env_args": args, "sampling_args": sampling}, tmp_path)
    assert "a-secret" not in (tmp_path / "metadata.json").read_text()


def test_rows_that_are_saved_are_read_back_without_a_torn_line(tmp_path):
    results.save_outputs([row(0, 1.0)], tmp_path)
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"example_id": 1')
    results.save_new_outputs([row(2, 0.5)], tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["example_id"] for line in lines] == [0, 2]


def test_other_settings_than_those_of_saved_results_are_refused(tmp_path):
    made = builder(tmp_path)
    made.add_outputs([row(0, 1.0)])
    results.save_metadata(made.build_metadata(), tmp_path)
    same = {"results_path": tmp_path, "env_id": "e", "model": "m", "num_examples": 3, "rollouts_per_example": 2}
    results.validate_resume_metadata(**same)
    for name, other in (("env_id", "f"), ("rollouts_per_example", 1), ("num_examples", 0)):
        with pytest.raises(whet.WhetError, match=f"metadata mismatch: {name}"):
            results.validate_resume_metadata(**{**same, name: other})


def test_values_for_json_are_plain():
    values = [date(2025, 1, 2), Path("a/b"), ValueError("x"), ClientConfig(), {1}]
    assert json.loads(json.dumps(values[:3], default=results.make_serializable)) == [
        "2025-01-02",
        "a/b",
        "ValueError('x')",
    ]
    assert [results.is_json_serializable(value) for value in values] == [True, True, True, True, False]


def test_the_newest_evaluation_that_is_not_complete_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metadata = {"env_id": "e", "model": "o/m", "num_examples": 2, "rollouts_per_example": 1}
    for index, rows in enumerate([1, 1, 2]):
        run = results.get_eval_runs_dir("e", "o/m") / str(index)
        run.mkdir(parents=True)
        (run / "metadata.json").write_text(json.dumps(metadata))
        (run / "results.jsonl").write_text('{"example_id": 0}\n' * rows + '{"torn')
        os.utime(run, (index, index))
    found = results.find_latest_incomplete_eval_results_path("e", "o/m", 2, 1)
    assert found is not None
    assert found.name == "1"
    assert results.find_latest_incomplete_eval_results_path("e", "o/m", 1, 1) is None
    assert results.find_latest_incomplete_eval_results_path("e", "other", 2, 1) is None


def test_results_of_a_local_environment_are_stored_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert results.get_eval_runs_dir("my-env", "m") == Path("outputs/evals/my-env--m")
    Path("environments/my_env").mkdir(parents=True)
    path = results.get_gepa_results_path("my-env", "a/b")
    assert path.parent == Path("environments/my_env/outputs/gepa/my-env--a--b")


def test_a_temporary_file_holds_what_it_is_given():
    path = Path(results.write_temp_file("ä", suffix=".py"))
    try:
        assert (path.read_text(encoding="utf-8"), path.suffix) == ("ä", ".py")
    finally:
        path.unlink()


def test_error_chains_are_equal_where_their_classes_are():
    def chain(*errors):
        for error, cause in itertools.pairwise(errors):
            error.__cause__ = cause
        return names.ErrorChain(errors[0])

    assert chain(ValueError("a"), KeyError("b")) == chain(ValueError("c"), KeyError("d"))
    assert chain(ValueError("a")) != chain(ValueError("a"), KeyError("b"))
    assert names.ErrorChain(ValueError()).__eq__("ValueError") is NotImplemented


def test_mistakes_are_caught_as_the_value_errors_they_are_in_0_1():
    for make in (lambda: whet.SingleTurnEnv(), lambda: whet.EnvGroup([]), lambda: whet.RubricGroup([])):
        with pytest.raises(ValueError, match=r"must be provided|requires at least one|must have at least one"):
            make()
    assert issubclass(DatasetError, ValueError)


def test_a_row_is_made_of_a_state_that_is_written_by_hand():
    state = whet.State(prompt="q", completion=None, timing=whet.RolloutTiming(), tool_defs=None, reward=0.0)
    assert results.states_to_outputs([state])[0]["tool_defs"] == []
