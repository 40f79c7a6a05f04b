"""Environments written for verifiers 0.1, unmodified, under whet; and what the alias leaves alone."""

import logging
import subprocess
import sys
from types import ModuleType

import pytest

import whet
from whet.compat import alias
from whet.system import logs, origins

WORD_GAME = """
from typing import Any

import verifiers as vf
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.parsers.xml_parser import XMLParser
from verifiers.types import Messages, State


class WordGame(MultiTurnEnv):
    async def setup_state(self, state: State) -> State:
        state["tries"] = 0
        return await super().setup_state(state)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        state["tries"] += 1
        return [{"role": "user", "content": f"No. Try {state['tries'] + 1}."}]

    @vf.stop
    async def guessed(self, state: State) -> bool:
        if not state["trajectory"]:
            return False
        return self.parser.parse_answer(state["trajectory"][-1]["completion"]) == state["answer"]


def load_environment(max_turns: int = 3) -> vf.Environment:
    parser = XMLParser(["guess"], answer_field="guess")

    def right(completion, answer, parser) -> float:
        return 1.0 if parser.parse_answer(completion) == answer else 0.0

    rubric = vf.Rubric(funcs=[right, parser.get_format_reward_func()], weights=[1.0, 0.5], parser=parser)
    rows = [{"question": "A word?", "answer": "whet"}]
    return WordGame(dataset=rows, system_prompt="Guess.", max_turns=max_turns, parser=parser, rubric=rubric)
"""

LOOKUP = '''
import verifiers as vf
from verifiers.utils.async_utils import maybe_await
from verifiers.utils.data_utils import extract_boxed_answer
from verifiers.utils.tool_utils import convert_func_to_tool_def


async def look_up(name: str, table: dict) -> str:
    """Look a name up.

    Args:
        name: the name
    """
    return await maybe_await(table.get, name)


class Lookup(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(tools=[], **kwargs)
        self.add_tool(look_up, args_to_skip=["table"])

    def update_tool_args(self, tool_name: str, tool_args: dict, messages: vf.Messages, state: vf.State, **kwargs):
        tool_args["table"] = state["info"]["table"]
        return tool_args


def load_environment(**kwargs) -> vf.Environment:
    parser = vf.ThinkParser(extract_fn=extract_boxed_answer)
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(lambda parser, completion, answer: float(parser.parse_answer(completion) == answer))
    assert convert_func_to_tool_def(look_up).name == "look_up"
    rows = [{"question": "Who?", "answer": "Ada", "info": {"table": {"first": "Ada"}}}]
    return vf.EnvGroup([Lookup(dataset=rows, rubric=rubric)], env_names=["lookup"])
'''


@pytest.fixture(autouse=True)
def nothing_stays_behind(monkeypatch):
    """Each test begins in a process where nobody has installed the alias yet, and leaves none."""
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if not isinstance(finder, alias._Finder)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "verifiers"]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("verifiers", "word_game", "lookup"):
            del sys.modules[name]


@pytest.fixture
def load(tmp_path):
    def write_and_load(name, source, **env_args):
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        return whet.load_environment(str(path), **env_args)

    return write_and_load


def test_a_game_written_for_verifiers_runs_as_it_is(load):
    env = load("word_game", WORD_GAME, max_turns=3)
    client = whet.ScriptedClient(["<guess>blunt</guess>", "<guess>whet</guess>"])
    (output,) = env.evaluate_sync(client, "m")["outputs"]
    assert isinstance(env, whet.MultiTurnEnv)
    assert (output["reward"], output["stop_condition"], output["error"]) == (1.5, "guessed", None)
    assert [message["content"] for message in output["completion"]][1] == "No. Try 2."


def test_tools_and_helpers_of_verifiers_are_there(load):
    env = load("lookup", LOOKUP)
    call = {"id": "1", "name": "look_up", "arguments": '{"name": "first"}'}
    client = whet.ScriptedClient([{"tool_calls": [call]}, "<think>Ada.</think>\\boxed{Ada}"])
    (output,) = env.evaluate_sync(client, "m")["outputs"]
    assert (output["reward"], output["error"]) == (1.0, None)
    assert output["completion"][1]["content"] == "Ada"
    assert output["metrics"]["look_up_calls"] == 1.0


KEYWORDS = """
import {library} as vf

from keywords_helper import build


class Asks(vf.SingleTurnEnv):
    def __init__(self, limit=3, **kwargs):
        super().__init__(**kwargs)


def load_environment(how="plain") -> vf.Environment:
    rows = [{{"question": "?"}}]
    if how == "helper":
        return build(vf.SingleTurnEnv, rows)
    cls = Asks if how == "subclass" else vf.SingleTurnEnv
    return cls(dataset=rows, name="asks", eval_model="m", description="d")
"""
HELPER = """
def build(cls, rows):
    return cls(dataset=rows, name="asks", eval_model="m", description="d")
"""


@pytest.fixture
def load_with_keywords(tmp_path, monkeypatch):
    """Loads a package whose environments are given arguments that no class takes."""

    def write_and_load(library, name, **env_args):
        for part in ("keywords_helper", name):
            monkeypatch.delitem(sys.modules, part, raising=False)
        monkeypatch.setattr(origins, "_importers", set())
        monkeypatch.setattr(logs, "_logged", set())
        (tmp_path / "keywords_helper.py").write_text(HELPER)
        path = tmp_path / f"{name}.py"
        path.write_text(KEYWORDS.format(library=library))
        return whet.load_environment(str(path), **env_args)

    return write_and_load


@pytest.mark.parametrize("how", ["plain", "subclass"])
def test_unknown_arguments_become_attributes_for_verifiers_code(load_with_keywords, how, caplog):
    env = load_with_keywords("verifiers", "keywords_0_1", how=how)
    assert (env.name, env.eval_model, env.description) == ("asks", "m", "d")
    (record,) = [record for record in caplog.records if "no argument" in record.message]
    assert "'eval_model' (nearest argument: 'eval_dataset')" in record.message
    assert "kept as attributes" in record.message


@pytest.mark.parametrize("how", ["plain", "subclass", "helper"])
def test_unknown_arguments_are_errors_in_code_that_imports_whet(load_with_keywords, how):
    with pytest.raises(whet.WhetError, match="no argument 'name'"):
        load_with_keywords("whet", "keywords_whet", how=how)


def test_verifiers_module_does_not_make_others_lenient(load_with_keywords):
    load_with_keywords("verifiers", "keywords_0_1")
    with pytest.raises(whet.WhetError, match="no argument 'nmae'"):
        whet.SingleTurnEnv(dataset=[{"question": "?"}], nmae="asks")


def test_verifiers_caller_does_not_make_whet_packages_lenient(load_with_keywords, tmp_path):
    load_with_keywords("verifiers", "keywords_0_1")  # installs the alias
    (tmp_path / "strict_package.py").write_text(KEYWORDS.format(library="whet"))
    caller = {"__name__": "caller_of_0_1", "path": str(tmp_path / "strict_package.py"), "rows": [{"question": "?"}]}
    exec("import verifiers as vf\nown = vf.SingleTurnEnv(dataset=rows, name='asks')", caller)
    assert caller["own"].name == "asks"
    with pytest.raises(whet.WhetError, match="no argument 'name'"):
        exec("vf.load_environment(path)", caller)


def test_helper_module_of_a_verifiers_package_is_lenient(tmp_path, monkeypatch):
    package = tmp_path / "keywords_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        KEYWORDS.format(library="verifiers").replace("from keywords_helper", "from .helper")
    )
    (package / "helper.py").write_text(HELPER)
    monkeypatch.setattr(origins, "_importers", set())
    assert whet.load_environment(str(package), how="helper").name == "asks"


@pytest.mark.parametrize("library", ["verifiers", "whet"])
def test_tools_in_the_form_of_early_0_1_are_refused_and_not_dropped(load, library):
    source = f"""
import {library} as vf

def load_environment():
    return vf.SingleTurnEnv(dataset=[{{"question": "?"}}], oai_tools=[])
"""
    with pytest.raises(whet.WhetError, match=r"`oai_tools` is no longer supported.*Give tool_defs"):
        load(f"oai_tools_{library}", source)
    env = whet.SingleTurnEnv(dataset=[{"question": "?", "info": {"oai_tools": []}}])
    with pytest.raises(whet.WhetError, match=r"info\['oai_tools'\] is no longer supported"):
        env.evaluate_sync(whet.ScriptedClient(["."]), "m")


def test_subclasses_may_skip_arguments_of_other_tools_and_set_fields_of_a_parser(load):
    source = """
import verifiers as vf
from verifiers.parsers.xml_parser import XMLParser

class Fields(XMLParser):
    def __init__(self, fields):
        vf.Parser.__init__(self)
        self.answer_field, self._fields = "answer", [(field, [field]) for field in fields]

def look_up(name: str, store: dict) -> str:
    return store[name]

class Stores(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(look_up, args_to_skip=["store", "messages"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "store": {"a": "1"}}

def right(parser, completion, answer):
    return float(parser.parse_answer(completion) == answer)

def load_environment():
    rubric = vf.Rubric([right], parser=Fields(["answer"]))
    return Stores(dataset=[{"question": "?", "answer": "1"}], rubric=rubric)
"""
    call = {"id": "1", "name": "look_up", "arguments": '{"name": "a"}'}
    client = whet.ScriptedClient([{"tool_calls": [call]}, "<answer>1</answer>"])
    (output,) = load("stores", source).evaluate_sync(client, "m")["outputs"]
    assert (output["reward"], output["completion"][1]["content"], output["error"]) == (1.0, "1", None)


def test_an_unknown_argument_does_not_replace_a_property(load):
    source = """
import verifiers as vf

def load_environment():
    return vf.SingleTurnEnv(dataset=[{"question": "?"}], requires_group_rollouts=True)
"""
    with pytest.raises(whet.WhetError, match="no argument 'requires_group_rollouts'"):
        load("replaces_a_property", source)


def test_what_a_package_replaces_under_verifiers_takes_effect(monkeypatch):
    whet.install_verifiers_alias()
    from unittest import mock

    from verifiers.rubrics import math_rubric

    from whet.rubrics import math_rubric as ours

    own = ours.parse
    env = whet.SingleTurnEnv(dataset=[{"question": "?", "answer": "1/2"}], rubric=whet.MathRubric())

    def reward(said):
        (row,) = env.evaluate_sync(whet.ScriptedClient([said]), "m")["outputs"]
        return row["reward"]

    with mock.patch.object(math_rubric, "parse", lambda text, **_: [text]):
        assert ours.parse is math_rubric.parse is not own
        with mock.patch.object(math_rubric, "verify", return_value=True):
            assert reward("\\boxed{9}") == 1.0
    assert ours.parse is math_rubric.parse is own
    with monkeypatch.context() as patched:
        patched.setattr("verifiers.rubrics.math_rubric.verify", lambda *_, **__: False)
        assert reward("\\boxed{0.5}") == 0.0
    assert reward("\\boxed{0.5}") == 1.0
    math_rubric.note = "of the stand-in"
    assert not hasattr(ours, "note")
    del math_rubric.note


def test_log_lines_of_packages_are_treated_as_those_of_whet(capsys):
    loggers = [logging.getLogger(name) for name in ("whet", "verifiers")]
    before = [len(logger.handlers) for logger in loggers]
    whet.setup_logging("INFO")
    whet.setup_logging("WARNING")
    logging.getLogger("verifiers.my_env").warning("of a package")
    logging.getLogger("verifiers.my_env").info("hidden")
    assert [len(logger.handlers) - count for logger, count in zip(loggers, before, strict=True)] == [1, 1]
    with whet.log_level("DEBUG"):
        assert loggers[1].level == logging.DEBUG
    assert loggers[1].level == logging.WARNING
    said = capsys.readouterr().err
    assert said.count("verifiers.my_env: of a package") == 1
    assert "hidden" not in said


def test_a_class_has_one_identity_under_either_name():
    whet.install_verifiers_alias()
    import verifiers as vf
    import verifiers.errors
    from verifiers.rubrics.judge_rubric import JudgeRubric

    assert vf.MultiTurnEnv is whet.MultiTurnEnv
    assert vf.types.State is whet.State
    assert vf.errors.InfraError is verifiers.errors.InfraError is whet.InfraError
    assert JudgeRubric is whet.JudgeRubric
    assert vf.__version__ == "0.1.14"


def test_every_module_of_the_table_can_be_imported_with_a_star():
    whet.install_verifiers_alias()
    for module in alias._MODULES:
        namespace = {}
        exec(f"import {module}\nfrom {module} import *", namespace)
        assert set(sys.modules[module].__all__) <= set(namespace)


def test_what_whet_has_not_is_missing_by_name():
    whet.install_verifiers_alias()
    with pytest.raises(ImportError, match="GRPOTrainer"):
        from verifiers import GRPOTrainer  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"verifiers\.gepa"):
        import verifiers.gepa  # noqa: F401


def test_installing_it_twice_is_installing_it_once():
    count = len(sys.meta_path)
    whet.install_verifiers_alias()
    whet.install_verifiers_alias()
    import verifiers  # noqa: F401

    whet.install_verifiers_alias()
    assert len(sys.meta_path) == count + 1


def test_a_verifiers_that_is_imported_already_is_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", ModuleType("verifiers"))
    with pytest.raises(whet.WhetError, match="before anything imports it"):
        whet.install_verifiers_alias()
    count = len(sys.meta_path)
    alias.alias_where_needed()
    assert len(sys.meta_path) == count


@pytest.mark.parametrize(("version", "aliased"), [("0.1.14", False), ("0.2.0", True)])
def test_only_an_installed_verifiers_of_the_same_contract_is_left_alone(tmp_path, monkeypatch, version, aliased):
    info = tmp_path / f"verifiers-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verifiers\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    count = len(sys.meta_path)
    alias.alias_where_needed()
    assert (len(sys.meta_path) > count) is aliased


def test_environment_of_installed_verifiers_is_refused(load):
    source = """
class SingleTurnEnv:
    pass


SingleTurnEnv.__module__ = "verifiers.envs.singleturn_env"


def load_environment():
    return SingleTurnEnv()
"""
    with pytest.raises(whet.WhetError, match=r"call whet\.install_verifiers_alias\(\)"):
        load("lookup", source)


def test_importing_whet_alone_changes_nothing():
    script = "import sys, whet; whet.SingleTurnEnv; import importlib.util; print(importlib.util.find_spec('verifiers'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"


HANDLERS = """
import verifiers as vf

class Noting(vf.SingleTurnEnv):
    @vf.setup
    async def begin(self, state): state["seen"] = ["begin"]

    @vf.stop(priority=5)
    async def never(self, state): return False

    @vf.cleanup
    async def end(self, state): state["seen"].append("end")

    @vf.teardown
    async def close_all(self): pass

def load_environment():
    env = Noting(dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric())
    env._cleanup_handlers.append(lambda state: state["seen"].append("added"))
    return env
"""


def test_handler_lists_hold_functions_and_may_be_added_to(load):
    env = load("noting", HANDLERS)
    lists = (env._stop_conditions, env._setup_handlers, env._cleanup_handlers, env._teardown_handlers)
    names = [[handler.__name__ for handler in handlers] for handlers in lists]
    wanted = ("never", "begin", "end", "close_all")
    assert all(name in found for name, found in zip(wanted, names, strict=True))
    results = env.evaluate_sync(whet.ScriptedClient(["x"]), "m", state_columns=["seen"])
    assert results["outputs"][0]["seen"] == ["begin", "end", "added"]


TASKS = """
import {library} as vf

class Own(vf.Env): pass

def load_environment(own=False):
    taskset = vf.Taskset(source=[{{"prompt": [{{"role": "user", "content": "q"}}]}}])
    return (Own if own else vf.Env)(taskset)
"""


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("library", "metrics"), [("verifiers.v1", {}), ("whet", {"num_turns": 1.0})])
def test_turns_of_tasksets_are_a_metric_for_whet_code_only(load, library, metrics, own):
    env = load(f"tasks_{library[:4]}_{own}", TASKS.format(library=library), own=own)
    assert env.evaluate_sync(whet.ScriptedClient(["x"]), "m")["outputs"][0]["metrics"] == metrics
