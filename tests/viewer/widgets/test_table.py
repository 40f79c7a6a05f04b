"""Which columns fit into a window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whet.records.heads import Variety
from whet.viewer.widgets.rollouts import rollout_columns
from whet.viewer.widgets.table import Column, layout

COLUMNS: list[Column[object]] = [
    Column("a", 4, str),
    Column("b", 6, str, rank=2),
    Column("c", 5, str, stretch=True),
    Column("d", 3, str, rank=1),
]


def test_where_there_is_room_one_column_takes_it() -> None:
    assert [(column.title, width) for column, width in layout(COLUMNS, 40)] == [("a", 4), ("b", 6), ("c", 24), ("d", 3)]


def test_the_columns_of_highest_rank_go_first() -> None:
    assert [(column.title, width) for column, width in layout(COLUMNS, 15)] == [("a", 4), ("c", 6), ("d", 3)]
    assert [column.title for column, _ in layout(COLUMNS, 10)] == ["a", "c"]


@given(st.integers(1, 300), st.sampled_from(["evaluation", "training", "search"]), st.integers(1, 3))
def test_no_row_of_rollouts_is_wider_than_the_window(width: int, kind: str, environments: int) -> None:
    fitting = layout(rollout_columns(kind, Variety(environments, errors=kind == "training")), width)
    assert fitting
    assert sum(cells + 1 for _, cells in fitting) - 1 <= width


def test_narrow_table_keeps_reward_task_question_and_error() -> None:
    shown = {column.title for column, _ in layout(rollout_columns("evaluation", Variety(errors=1)), 60)}
    assert {"reward", "task", "question", "error"} <= shown


def test_candidates_are_a_column_in_a_search_alone() -> None:
    for kind in ("evaluation", "training", "search"):
        columns = [column.title for column in rollout_columns(kind, Variety())]
        assert ("candidate" in columns) == (kind == "search")
