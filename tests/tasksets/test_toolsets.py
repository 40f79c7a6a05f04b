"""Toolsets: which tools a rollout has, what the model sees of them, and what is filled in for it."""

import json

import pytest

import whet
from whet.errors import ConfigError


def one() -> str:
    """One."""
    return "1"


def two() -> str:
    """Two."""
    return "2"


def three() -> str:
    """Three."""
    return "3"


def names(state) -> list[str]:
    return [tool["name"] for tool in state["tool_defs"]]


def shown(roll, taskset: whet.Taskset, harness: whet.Harness | None = None) -> list[str]:
    (state,) = roll(whet.Env(taskset, harness), ["x"])
    return names(state)


def test_tools_of_taskset_and_harness_are_one_set(rows, roll) -> None:
    inner = whet.Toolset(tools=[two, whet.Toolset(tools=[three])])
    assert shown(roll, whet.Taskset(source=rows(), toolsets=[one]), whet.Harness(toolsets=[inner])) == [
        "one",
        "two",
        "three",
    ]


def test_show_and_hide_say_what_of_a_toolset_the_model_sees(rows, roll) -> None:
    assert shown(roll, whet.Taskset(source=rows(), toolsets=[whet.Toolset(tools=[one, two], show=["two"])])) == ["two"]
    nested = whet.Toolset(tools=[whet.Toolset(tools=[one, two]), three], hide="two")
    assert shown(roll, whet.Taskset(source=rows(), toolsets=[nested])) == ["one", "three"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"tools": {"show": ["three", "one"]}}, ["three", "one"]),
        ({"tools": {"hide": ["two"]}}, ["one", "three"]),
        ({"toolsets": {"show": ["small"]}}, ["one"]),
        ({"toolsets": {"hide": ["small"]}}, ["two", "three"]),
    ],
)
def test_a_row_chooses_among_tools_and_named_toolsets(rows, roll, row, expected) -> None:
    toolsets = {"small": whet.Toolset(tools=[one]), "large": {"tools": [two, three]}}
    assert shown(roll, whet.Taskset(source=rows(1, **row), toolsets=toolsets)) == expected


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tools": {"show": ["tree"]}}, "Did you mean 'three'"),
        ({"tools": {"shown": ["three"]}}, "unknown key 'shown'"),
        ({"tools": {"show": ["one"], "hide": ["two"]}}, "not both"),
        ({"toolsets": {"hide": ["smal"]}}, "Did you mean 'small'"),
        ({"toolsets": {"small": {"tools": []}}}, "there already"),
        ({"sandbox": {"image": "x"}}, "whet does not have that"),
    ],
)
def test_a_row_that_asks_for_what_there_is_not_ends_the_run_with_the_reason(rows, roll, row, said) -> None:
    toolsets = {"small": whet.Toolset(tools=[one, three])}
    with pytest.raises(ConfigError) as caught:
        shown(roll, whet.Taskset(source=rows(1, **row), toolsets=toolsets))
    assert said in str(caught.value)


def test_a_row_brings_tools_of_the_taskset_s_own_package_and_no_others(roll, tmp_path, monkeypatch) -> None:
    (tmp_path / "row_tools.py").write_text(
        "import whet\n\n\ndef count(word: str, task) -> int:\n    'Count.'\n    return len(word)\n\n\n"
        "def toolset(task):\n    return whet.Toolset(tools=[count], write=True)\n\n\n"
        "def source():\n    return [{'question': 'q', 'toolsets': {'own': spec}} for spec in SPECS]\n\n\n"
        "SPECS = ['row_tools:toolset', {'fn': 'row_tools:toolset'}, {'tools': ['row_tools:count']}, "
        "{'fn': 'os:system', 'command': 'true'}, {'tools': ['subprocess:run']}, {'stops': ['os:getcwd']}]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import row_tools

    taskset = whet.Taskset(source=row_tools.source)
    for row in range(3):
        (state,) = roll(whet.Env(taskset), ["x"], row=row)
        assert names(state) == ["count"]
    for row, said in ((3, "os:system"), (4, "subprocess:run"), (5, "cannot come from a row")):
        with pytest.raises(ConfigError, match=said):
            roll(whet.Env(taskset), ["x"], row=row)


def test_audio_parts_of_a_tool_reach_the_model(rows, roll, call) -> None:
    parts = [{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}]

    def listen() -> list[dict]:
        return parts

    (state,) = roll(
        whet.Env(whet.Taskset(source=rows(), toolsets=[whet.Toolset(tools=[listen])])), [call("listen"), "x"]
    )
    assert state["completion"][1]["content"] == parts


def test_a_binding_sets_an_argument_of_kwargs(rows, roll, call) -> None:
    def show(**given: str) -> str:
        return str(given["limit"])

    toolset = whet.Toolset(tools=[show], bindings={"show.limit": "task.answer"})
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[toolset])), [call("show"), "x"])
    assert state["completion"][1]["content"] == "0"


def test_two_tools_of_one_name_are_refused(rows) -> None:
    with pytest.raises(ConfigError, match="two tools 'one'"):
        whet.Env(whet.Taskset(source=rows(), toolsets=[one]), whet.Harness(toolsets=[one]))


def test_a_tool_with_a_schema_of_its_own_is_shown_with_it_and_called_with_what_the_model_gave(rows, roll, call) -> None:
    class Recorder:
        name = "record"
        tool_def = whet.Tool("record", "Record.", {"type": "object", "properties": {"x": {"type": "integer"}}})

        async def __call__(self, state, **arguments):
            state["recorded"] = arguments
            return "recorded"

    (state,) = roll(whet.Env(whet.Taskset(source=rows(), toolsets=[Recorder()])), [call("record", x=5), "done"])
    assert (names(state), state["recorded"]) == (["record"], {"x": 5})


class Index:
    made = 0
    closed = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.words = {"whet": "sharpen"}

    async def aclose(self) -> None:
        type(self).closed += 1


@pytest.fixture
def index():
    class Counted(Index): ...

    return Counted


def search(word: str, index, limit: int) -> str:
    """Search.

    Args:
        word: What for.
    """
    return json.dumps([index.words[word], limit])


def bound(index, **settings) -> whet.Toolset:
    return whet.Toolset(
        tools=[search],
        objects={"index": index},
        bindings={"search.index": "objects.index", "search.limit": "task.info.limit"},
        **settings,
    )


def test_bound_arguments_are_hidden_and_filled_in(rows, roll, call, index) -> None:
    taskset = whet.Taskset(source=rows(1, info={"limit": 7}), toolsets=[bound(index)])
    (state,) = roll(whet.Env(taskset), [call("search", word="whet", limit=99), "done"])
    assert list(state["tool_defs"][0]["parameters"]["properties"]) == ["word"]
    assert state["completion"][1]["content"] == '["sharpen", 7]'


@pytest.mark.parametrize(
    ("settings", "made"), [({"scope": "global"}, 1), ({"scope": "group"}, 1), ({"write": True}, 3), ({}, 1)]
)
def test_an_object_is_made_once_in_its_scope_and_closed_with_it(rows, roll, call, index, settings, made) -> None:
    env = whet.Env(whet.Taskset(source=rows(1, info={"limit": 7}), toolsets=[bound(index, **settings)]))
    states = roll(env, [call("search", word="whet"), "done"], size=3)
    assert [state["error"] for state in states] == [None] * 3
    assert (index.made, index.closed) == (made, made)


def test_objects_of_a_group_are_not_those_of_the_next(rows, call, index) -> None:
    env = whet.Env(whet.Taskset(source=rows(4, info={"limit": 7}), toolsets=[bound(index, scope="group")]))
    env.evaluate_sync(whet.ScriptedClient([call("search", word="whet"), "done"]), "m", rollouts_per_example=2)
    assert (index.made, index.closed) == (4, 4)


def test_values_come_from_functions_other_tools_and_plain_values_as_well(rows, roll, call) -> None:
    async def combine(word: str, prefix, other, number) -> str:
        """Combine."""
        return f"{prefix}{word}{await other()}{number}"

    toolset = whet.Toolset(
        tools=[combine, one],
        hide=["one"],
        bindings={"combine.prefix": lambda task: task["answer"], "combine.other": "tools.one", "combine.number": 5},
    )
    env = whet.Env(whet.Taskset(source=rows(), toolsets=[toolset]))
    (state,) = roll(env, [call("combine", word="w"), call("one"), "done"])
    assert names(state) == ["combine"]
    assert state["completion"][1]["content"] == "0w15"
    assert "no tool 'one'" in state["completion"][3]["content"]


@pytest.mark.parametrize(
    ("bindings", "said"),
    [
        ({"serch.index": "objects.index"}, "Did you mean 'search'"),
        ({"search.indx": "objects.index"}, "Did you mean 'index'"),
        ({"search.index": "objects.indx"}, "Did you mean 'index'"),
        ({"search.index": "things.index"}, "should begin with"),
        ({"search": "objects.index"}, "'function.argument'"),
        ({"search.state": "objects.index"}, "no argument|filled in"),
    ],
)
def test_a_binding_that_leads_nowhere_is_found_when_it_is_written(index, bindings, said) -> None:
    with pytest.raises(ConfigError, match=said):
        whet.Toolset(tools=[search], objects={"index": index}, bindings=bindings)


def test_the_functions_of_a_toolset_run_for_the_rollouts_that_have_it(rows, roll, call, log, note) -> None:
    def stop_at_two(task, state) -> bool:
        return len(state["trajectory"]) == 2

    with_hooks = whet.Toolset(tools=[one], stops=[stop_at_two], setups=[note("set up")], cleanups=[note("clean")])
    env = whet.Env(whet.Taskset(source=rows(), toolsets={"hooks": with_hooks}))
    (state,) = roll(env, [call("one")] * 4)
    assert (state["stop_condition"], log) == ("stop_at_two", ["set up", "clean"])
    log.clear()
    env = whet.Env(whet.Taskset(source=rows(1, toolsets={"hide": ["hooks"]}), toolsets={"hooks": with_hooks}))
    (state,) = roll(env, ["x"])
    assert (names(state), log) == ([], [])


def test_a_table_of_a_config_makes_toolsets_by_functions_and_arguments(rows, roll, tmp_path, monkeypatch) -> None:
    (tmp_path / "made_up_tools.py").write_text(
        "import whet\n\n\ndef load(which='one'):\n    def tool() -> str:\n        'Do.'\n        return which\n\n"
        "    tool.__name__ = which\n    return whet.Toolset(tools=[tool])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = {"toolsets": {"first": "made_up_tools:load", "second": {"fn": "made_up_tools:load", "which": "other"}}}
    assert shown(roll, whet.Taskset(source=rows(), config=config)) == ["one", "other"]


BROUGHT = """
import whet


class Thing:
    made = closed = 0

    def __init__(self):
        Thing.made += 1

    def close(self):
        Thing.closed += 1


def use(thing) -> str:
    "Use."
    return "used"


def own():
    return whet.Toolset(tools=[use], objects={"thing": Thing}, bindings={"use.thing": "objects.thing"})


def of_groups():
    return whet.Toolset(tools=[use], objects={"thing": Thing}, bindings={"use.thing": "objects.thing"}, scope="group")


def with_group_hook():
    return whet.Toolset(cleanups=[whet.cleanup(clean, stage="group")])


def clean(tasks, states): ...


def source():
    return [{"question": "q", "toolsets": {"own": f"brought_tools:{name}"}} for name in NAMES]


NAMES = ["own", "of_groups", "with_group_hook"]
"""


def test_what_a_row_brings_lives_as_long_as_its_rollout_and_is_of_no_other(roll, call, tmp_path, monkeypatch) -> None:
    (tmp_path / "brought_tools.py").write_text(BROUGHT)
    monkeypatch.syspath_prepend(tmp_path)
    import brought_tools

    env = whet.Env(whet.Taskset(source=brought_tools.source))
    closed_before_the_environment = []

    @whet.cleanup(stage="group")
    def look(tasks, states) -> None:
        closed_before_the_environment.append(brought_tools.Thing.closed)

    env.taskset.add_cleanup(look)
    roll(env, [call("use"), "done"], size=3)
    assert (brought_tools.Thing.made, closed_before_the_environment) == (3, [3])
    for row, said in ((1, "its objects are of more"), (2, "'clean' is of more")):
        with pytest.raises(ConfigError, match=said):
            roll(whet.Env(whet.Taskset(source=brought_tools.source)), ["x"], row=row)
