"""How wide the KV cache is, and how much of it a step reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whet.inference.decoding.scheduler import columns_held, columns_read, rounded


@given(st.integers(1, 1 << 20))
def test_rounding_adds_less_than_a_quarter_or_than_32_columns(columns: int) -> None:
    assert columns <= rounded(columns) < columns + max(32, columns // 4)
    assert rounded(rounded(columns)) == rounded(columns)


def test_cache_grows_on_cpu_and_is_full_size_on_gpu() -> None:
    assert [columns_held(needed, 130, on_cpu=True) for needed in (20, 33, 100, 129, 130)] == [32, 64, 128, 130, 130]
    assert [columns_held(needed, 130, on_cpu=False) for needed in (20, 130)] == [130, 130]


def test_on_a_cpu_a_step_reads_all_there_is_unless_most_of_that_is_not_needed() -> None:
    assert [columns_read(needed, 128, on_cpu=True) for needed in (1, 60, 64, 65, 128)] == [16, 64, 64, 128, 128]
    assert [columns_read(needed, 130, on_cpu=False) for needed in (1, 65, 129)] == [16, 80, 130]


@given(needed=st.integers(1, 4000), more=st.integers(0, 4000), on_cpu=st.booleans())
def test_what_is_needed_is_held_and_read(needed: int, more: int, on_cpu: bool) -> None:
    held = columns_held(needed, needed + more, on_cpu=on_cpu)
    assert needed <= held <= needed + more
    assert needed <= columns_read(needed, held, on_cpu=on_cpu) <= held
