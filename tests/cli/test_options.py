"""Options that are made from the fields of a config model, and options whose value may be left out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import Field
from typer.main import get_command

from whet.cli.options import config_options, spell_out
from whet.config import Option, StrictModel, options_of
from whet.errors import ConfigError


class Brewing(StrictModel):
    kind: Literal["green", "black"] = Field("green", description="Kind of tea.")
    cups: Annotated[int, Option("-n")] = Field(2, ge=1, description="Number of cups.")
    degrees: float | None = Field(None, description="Temperature of the water.")
    milk: bool = Field(False, description="Add milk.")
    filtered: Annotated[bool, Option("-f")] = Field(True, description="Use a filter.")
    pot: Path = Field(Path("pot"), description="Where the tea is.")
    books: tuple[Path, ...] = Field((), description="Recipe files.")
    herbs: Annotated[tuple[str, ...], Option(metavar="NAME,...")] = Field(("mint",), description="Further herbs.")
    extra: Annotated[dict[str, Any], Option("-x", long="--extra-args")] = Field(
        default_factory=dict, description="Further arguments."
    )
    again: Annotated[Path | None, Option(metavar="[PATH]")] = Field(None, description="Tea to brew again.")
    guest: str = Field(description="Name of the guest.")
    brewed_at: Annotated[float, Option(offered=False)] = Field(0.0, description="Set when it is done.")


def brew(*arguments: str) -> dict[str, Any]:
    """What the command receives."""
    received: list[dict[str, Any]] = []
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @config_options(options_of(Brewing))
    def run(place: str, given: dict[str, Any], loud: bool = False) -> None:
        """Make tea."""
        received.append({"place": place, "loud": loud, **given})

    get_command(app).main(["kitchen", *arguments], standalone_mode=False)
    return received[0]


def test_only_options_that_were_written_are_given() -> None:
    assert brew() == {"place": "kitchen", "loud": False}
    assert brew("--cups", "2", "--loud") == {"place": "kitchen", "loud": True, "cups": 2}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["--kind", "black"], {"kind": "black"}),
        (["-n", "3"], {"cups": 3}),
        (["--degrees", "80.5"], {"degrees": 80.5}),
        (["--milk"], {"milk": True}),
        (["--no-filtered"], {"filtered": False}),
        (["-f"], {"filtered": True}),
        (["--pot", "a/b"], {"pot": "a/b"}),
        (["--books", "a,b.md", "--books", "c"], {"books": ["a,b.md", "c"]}),
        (["--herbs", "sage, thyme", "--herbs", "basil"], {"herbs": ["sage", "thyme", "basil"]}),
        (["-x", '{"sugar": 1}'], {"extra": {"sugar": 1}}),
        (["--extra-args", "{}"], {"extra": {}}),
        (["--again="], {"again": True}),
        (["--again", "old"], {"again": "old"}),
        (["--guest", "Ada"], {"guest": "Ada"}),
    ],
)
def test_values_have_the_types_of_a_config_file(arguments: list[str], given: dict[str, Any]) -> None:
    assert brew(*arguments) == {"place": "kitchen", "loud": False, **given}


def test_a_table_that_is_not_json_names_its_option() -> None:
    with pytest.raises(ConfigError, match="--extra-args: not JSON"):
        brew("-x", "{sugar}")


def test_a_field_that_is_set_internally_is_no_option() -> None:
    with pytest.raises(typer.exceptions.TyperException, match="--brewed-at"):
        brew("--brewed-at", "1")


def test_help_has_the_descriptions_and_defaults_of_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(IndexError):  # nothing is received
        brew("--help")
    text = " ".join(capsys.readouterr().out.split())
    for field in options_of(Brewing).values():
        assert str(field.description) in text
    for default in ("green", "2", "filtered", "pot", "mint", "{}"):
        assert f"[default: {default}]" in text
    assert "--herbs NAME,..." in text
    assert text.index("--kind") < text.index("--guest") < text.index("--loud")


@pytest.fixture
def evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    directory = Path("outputs/a")
    directory.mkdir(parents=True)
    (directory / "metadata.json").write_text("{}")
    return str(directory)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["arithmetic", "--shuffle"], ["arithmetic", "--shuffle=0"]),
        (["--shuffle", "arithmetic"], ["--shuffle=0", "arithmetic"]),
        (["--shuffle", "7", "arithmetic"], ["--shuffle=7", "arithmetic"]),
        (["--shuffle=7", "arithmetic"], ["--shuffle=7", "arithmetic"]),
        (["--shuffle", "-n", "3"], ["--shuffle=0", "-n", "3"]),
        (["--", "--shuffle"], ["--", "--shuffle"]),
    ],
)
def test_a_word_is_a_seed_only_where_it_is_a_number(words: list[str], read: list[str]) -> None:
    assert spell_out(words) == read


@pytest.mark.parametrize("option", ["--resume", "-R"])
def test_a_word_is_resumed_where_an_evaluation_lies_there(option: str, evaluation: str) -> None:
    assert spell_out([option, evaluation, "arithmetic"]) == [f"--resume={evaluation}", "arithmetic"]
    assert spell_out([option, f"{evaluation}/results.jsonl"]) == [f"--resume={evaluation}/results.jsonl"]


@pytest.mark.parametrize("environment", ["arithmetic", "environments/arithmetic"])
def test_an_environment_after_resume_stays_one(environment: str, evaluation: str) -> None:
    Path("environments/arithmetic").mkdir(parents=True)
    assert spell_out(["--resume", environment]) == ["--resume=", environment]
    assert spell_out([environment, "-R"]) == [environment, "--resume="]


def test_a_word_that_could_be_either_asks_to_be_joined(evaluation: str) -> None:
    with pytest.raises(ConfigError, match=r"outputs/b: there is no evaluation. Write --resume=PATH"):
        spell_out(["--resume", "outputs/b", "arithmetic"])
