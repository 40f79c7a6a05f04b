"""What is loaded is hardly looked at by the collector."""

import gc
from collections.abc import Iterator

import pytest

from whet.cli import main
from whet.system.loading_time import NEW_OBJECTS, rare_collections


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_within_it_a_collection_waits_for_many_new_objects() -> None:
    gc.set_threshold(700, 10, 10)
    with rare_collections():
        assert gc.get_threshold() == (NEW_OBJECTS, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("youngest", [0, 50_000])
def test_what_the_program_chose_itself_stays(youngest: int) -> None:
    gc.set_threshold(youngest, 10, 10)
    with rare_collections():
        assert gc.get_threshold()[0] == youngest
    assert gc.get_threshold()[0] == youngest


def test_it_is_as_before_also_after_a_failure() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(ImportError), rare_collections():
        raise ImportError
    assert gc.get_threshold() == (700, 10, 10)


def test_a_command_runs_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.set_threshold(700, 10, 10)
    seen: list[int] = []
    monkeypatch.setattr(main, "app", lambda **_: seen.append(gc.get_threshold()[0]))
    main.main(["--version"])
    assert seen == [NEW_OBJECTS]
