"""Strict configuration: every mistake is one line that names the file, the key and what to do."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from whet.config import (
    Option,
    StrictModel,
    aliases_of,
    all_keys,
    apply_overrides,
    fields_with,
    options_of,
    parse_overrides,
    part_of,
    read_toml,
    split_lists,
    validate,
)
from whet.errors import ConfigError


class Inner(StrictModel):
    max_tokens: int = Field(8, ge=1)


class Outer(StrictModel):
    name: str
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()


def message(call, *args) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*args)
    return str(caught.value)


def test_an_unknown_key_names_the_file_and_suggests_the_nearest_key() -> None:
    assert message(validate, Outer, {"name": "a", "inner": {"max_tokns": 3}}, "x.toml") == (
        "x.toml: unknown key 'inner.max_tokns'. Did you mean 'inner.max_tokens'?"
    )


def test_a_key_in_the_wrong_section_suggests_the_right_section() -> None:
    assert "Did you mean 'inner.max_tokens'?" in message(validate, Outer, {"name": "a", "max_tokens": 3}, "x.toml")


def test_a_key_inside_a_list_of_tables_is_located() -> None:
    text = message(validate, Outer, {"name": "a", "many": [{}, {"max_tokenz": 1}]}, "x.toml")
    assert text == "x.toml: unknown key 'many.1.max_tokenz'. Did you mean 'many.1.max_tokens'?"


def test_every_mistake_is_reported_at_once() -> None:
    assert len(message(validate, Outer, {"inner": {"max_tokens": 0}, "nam": "a"}, "x.toml").splitlines()) == 3


def test_a_wrong_value_shows_what_was_given() -> None:
    assert "'inner.max_tokens'" in (
        text := message(validate, Outer, {"name": "a", "inner": {"max_tokens": "lots"}}, "f")
    )
    assert "'lots'" in text


def test_a_missing_file_suggests_one_of_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "quickstart.toml").write_text("")
    assert "Did you mean" in message(read_toml, tmp_path / "quickstrat.toml")


def test_broken_toml_says_where(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("x = \n")
    assert "line 1" in message(read_toml, tmp_path / "a.toml")


@pytest.mark.parametrize("value", ["[" * 100_000, "{a=" * 50_000, "9" * 5000])
def test_toml_without_end_is_the_users_mistake_and_an_override_a_string(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(f"x = {value}\n")
    with pytest.raises(ConfigError, match=r"config.toml: not valid TOML: "):
        read_toml(path)
    assert parse_overrides([f"--name={value}"]) == [("name", value)]


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in message(read_toml, tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("tokens", "pairs"),
    [
        (["--a.b", "3"], [("a.b", 3)]),
        (["--a-b=true"], [("a_b", True)]),
        (["--flag", "--x", "1e-4"], [("flag", True), ("x", 1e-4)]),
        (["--name", "my run"], [("name", "my run")]),
        (["--list", "[1, 2]"], [("list", [1, 2])]),
        (["--negative", "-3"], [("negative", -3)]),
    ],
)
def test_overrides_are_toml_values_or_strings(tokens: list[str], pairs: list[tuple[str, object]]) -> None:
    assert parse_overrides(tokens) == pairs


def test_an_override_without_dashes_is_refused() -> None:
    assert "--key value" in message(parse_overrides, ["max_steps", "3"])


def test_overrides_reach_into_lists_and_leave_the_original_alone() -> None:
    data = {"env": [{"id": "a"}]}
    assert apply_overrides(data, [("env.0.weight", 2), ("sampling.top_p", 0.5)]) == {
        "env": [{"id": "a", "weight": 2}],
        "sampling": {"top_p": 0.5},
    }
    assert data == {"env": [{"id": "a"}]}


def test_an_index_outside_a_list_is_refused() -> None:
    assert "0 to 0" in message(apply_overrides, {"env": [{}]}, [("env.1.id", "x")])


def test_all_keys_walks_sections_and_lists() -> None:
    assert all_keys(Outer) == ["name", "inner", "inner.max_tokens", "many", "many.max_tokens"]


class Lights(StrictModel):
    lamps: Annotated[tuple[str, ...], Option(aliases=("bulbs",))] = ()
    plans: tuple[Path, ...] = ()
    watts: Annotated[int | None, Option("-w")] = Field(None, ge=1, description="Power.")
    total: Annotated[int, Option(aliases=("sum",), offered=False)] = 0


def test_fields_and_spellings_that_users_write() -> None:
    assert list(options_of(Lights, without=("plans",))) == ["lamps", "watts"]
    assert aliases_of(Lights) == {"bulbs": "lamps"}
    assert fields_with(Lights, Path) == ("plans",)
    assert fields_with(Lights, int, float) == ("watts",)


def test_a_text_becomes_a_list_and_a_path_stays_whole() -> None:
    layer: dict[str, Any] = {"lamps": "desk, floor", "plans": "a,b.txt"}
    split_lists(layer, Lights)
    assert layer == {"lamps": ["desk", "floor"], "plans": ["a,b.txt"]}


def test_a_part_of_a_config_keeps_its_limits_and_has_no_defaults() -> None:
    part = part_of(Lights, "SomeLights", ("watts",))
    assert validate(part, {}, "x").model_dump(exclude_none=True) == {}
    with pytest.raises(ConfigError, match=r"x: 'watts': .*greater than or equal to 1"):
        validate(part, {"watts": 0}, "x")
    with pytest.raises(ConfigError, match="x: unknown key 'lamps'"):
        validate(part, {"lamps": ["desk"]}, "x")
