"""TOML and JSON of strangers: bounded in depth and size, and otherwise read as Python's own readers do."""

import ast
import json
import subprocess
import sys
import tomllib
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whet
from whet.parsing import MAX_DEPTH, MAX_KEYS, MAX_TOML, NestingError, parse_json, parse_toml

SOURCE = Path(whet.__file__).parent
DEEP_TOML = {
    "dotted key": "a." * 16_000 + "a = 1",
    "quoted parts": '"a".' * 16_000 + "a = 1",
    "spaces": "a . " * 16_000 + "a = 1",
    "table": f"[{'a.' * 16_000}a]",
    "list of tables": f"[[{'a.' * 16_000}a]]",
    "lists": "a = " + "[" * 16_000,
    "inline tables": "a = " + "{a=" * 16_000,
    "both": "a = " + "{a.a.a.a.a.a.a.a = [" * 20 + "]}" * 20,
    "after a text": f'a = """\\"""" \nb = \'[\' # ]\n{"c." * 16_000}c = 1',
    "after open quotes": 'a = "\n' + "c." * 16_000 + "c = 1",
}
LARGE_TOML = {
    "keys": "".join(f"a{n} = 1\n" for n in range(MAX_KEYS + 1)),
    "tables": "".join(f"[a{n}{'.a' * 90}]\n" for n in range(300)),
    "values": f"a = [{'1,' * 200_000}]",
    "bytes": f"a = '{'a' * MAX_TOML}'",
}


@pytest.mark.parametrize("case", [*DEEP_TOML, *LARGE_TOML])
def test_toml_above_the_bounds_is_refused_in_little_memory(case: str) -> None:
    text = {**DEEP_TOML, **LARGE_TOML}[case]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"nested too deeply|more than|longer than"):
            parse_toml(text)
        assert tracemalloc.get_traced_memory()[1] < max(4 << 20, 8 * len(text))
    finally:
        tracemalloc.stop()


def test_toml_just_within_the_bounds_is_read() -> None:
    assert parse_toml(f"{'a.' * (MAX_DEPTH - 1)}a = 1")
    assert parse_toml("a = " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))
    assert len(parse_toml("".join(f"a{n} = 1\n" for n in range(MAX_KEYS)))) == MAX_KEYS


@pytest.mark.parametrize(
    "text",
    [
        f'a = "{"[" * 500}{"." * 500}"',
        f"a = '{'{' * 500}' # {'[' * 500}",
        f'a = """\n{"a." * 500}\\"""{"[" * 500}""""\nb.c."d.[".e = [1.5, {{x = 2}}]',
        f"a = '''{'[' * 500}''''\nb = 1",
    ],
)
def test_brackets_and_dots_in_texts_and_comments_do_not_count(text: str) -> None:
    assert parse_toml(text) == tomllib.loads(text)


plain = st.none() | st.booleans() | st.integers() | st.text()
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(values)
def test_json_is_read_as_by_json(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert parse_json(text) == value
    assert parse_json(text.encode("utf-8", "surrogatepass")) == value


def test_a_byte_order_mark_before_the_text_is_no_part_of_it() -> None:
    assert parse_toml("\ufeff[a]\nb = 1\n") == {"a": {"b": 1}}
    assert parse_json('\ufeff{"a": "\ufeff"}') == parse_json('\ufeff{"a": "\ufeff"}'.encode()) == {"a": "\ufeff"}


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_deep_json_is_refused(opening: str) -> None:
    closing = "".join({"[": "]", "{": "}"}.get(mark, "") for mark in reversed(opening))
    each = sum(map(opening.count, "[{"))
    assert parse_json(opening * (MAX_DEPTH // each) + "1" + closing * (MAX_DEPTH // each))
    for depth in (MAX_DEPTH + 1, 900, 100_000):
        with pytest.raises(NestingError, match="more than 100 levels"):
            parse_json(opening * depth + "1" + closing * depth)


def test_brackets_in_texts_of_json_do_not_count() -> None:
    value = {"a": "[" * 500, 'b"{\\': ["{" * 500, '"' + "[" * 500]}
    assert parse_json(json.dumps(value)) == value


def test_json_longer_than_allowed_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 10 are read"):
        parse_json("[1, 2, 3, 4]", 10)


def test_no_other_file_reads_toml() -> None:
    found = {path.name for path in SOURCE.rglob("*.py") if "tomllib" in path.read_text(encoding="utf-8")}
    assert found == {"parsing.py"}


OF_OUR_OWN = {
    "hub/answers.py",  # of the database
    "hub/client/settings.py",  # of this user
    "records/directory.py",  # what it has just written
    "service/deployments/folder.py",  # written by the service
    "service/runner/building.py",  # of the runner
    "service/runner/gate.py",  # of the runner
    "service/runner/isolation.py",  # of an installed package
    "service/runner/shim.py",  # of the runner
    "service/up.py",  # of a part that it started
}


def test_rooms_that_strangers_write_to_read_json_within_bounds() -> None:
    found = set()
    for room in ("dashboard", "hub", "records", "service", "viewer"):
        for path in (SOURCE / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if "json.load" in text else ():
                if isinstance(node, ast.Attribute) and ast.unparse(node) in ("json.loads", "json.load"):
                    found.add(str(path.relative_to(SOURCE)))
    assert found == OF_OUR_OWN


def test_reading_loads_nothing_heavy() -> None:
    script = "import whet.parsing, whet.system.files, sys; print({'pydantic', 'tomllib', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
