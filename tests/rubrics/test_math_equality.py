"""Which answers are equal: cases by kind, properties of the comparison, random near-misses."""

import functools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.rubrics.math_rubric import equal_at_sight, expected_text, verify_response

equality = pytest.importorskip("whet.rubrics.math_equality", reason="math extra missing", exc_type=ImportError)

CASES = [
    line.split("\t")
    for line in (Path(__file__).parent / "math_cases.tsv").read_text().splitlines()
    if not line.startswith("#")
]
KINDS = list(dict.fromkeys(kind for kind, *_ in CASES))


@functools.lru_cache(4096)
def read(text):
    return equality.read(text, parsing_timeout=None)


def equal(expected, response):
    parts = expected_text(expected)
    response = response if parts == expected else expected_text(response)
    at_sight = equal_at_sight(parts, response)
    return equality.same(read(parts), read(response), timeout_seconds=None) if at_sight is None else at_sight


@pytest.mark.parametrize("kind", KINDS)
def test_cases(kind):
    cases = [(expected, response, verdict == "1") for name, expected, response, verdict in CASES if name == kind]
    assert len(cases) >= 12
    assert [case for case in cases if equal(case[0], case[1]) is not case[2]] == []


@pytest.mark.parametrize("kind", KINDS)
def test_cases_both_ways(kind):
    pairs = [(one, other, verdict == "1") for name, one, other, verdict in CASES if name == kind and '["' not in one]
    assert [pair for pair in pairs if equal(pair[1], pair[0]) is not pair[2]] == []


def test_there_are_300_cases_of_12_kinds():
    assert len(CASES) >= 300
    assert len(KINDS) >= 12


def notations(mantissa, exponent):
    """A decimal number times a power of ten, as it may be written."""
    digits = f"{mantissa:.3f}"
    shifted = f"{mantissa * 1000:.0f}"
    return [
        f"{digits}\\times10^{{{exponent}}}",
        f"{digits} \\cdot 10^{{{exponent}}}",
        f"{digits}e{exponent:+03d}",
        f"{shifted}\\times10^{{{exponent - 3}}}",
        f"\\frac{{{shifted}}}{{1000}}\\times10^{{{exponent}}}",
    ]


mantissas = st.integers(1001, 9999).map(lambda number: number / 1000)
exponents = st.integers(-300, 300)


@given(mantissas, exponents, st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_notations_of_a_number_are_equal_and_transitive(mantissa, exponent, rng):
    written = rng.sample(notations(mantissa, exponent), 3)
    assert all(equal(one, other) for one in written for other in written)


@given(mantissas, mantissas, exponents)
@settings(max_examples=25, deadline=None)
def test_numbers_compare_alike_at_every_scale(one, other, exponent):
    here = equal(f"{one:.3f}", f"{other:.3f}")
    assert here == (one == other)
    assert equal(notations(one, exponent)[0], notations(other, exponent)[3]) == here
    assert equal(f"\\frac{{1}}{{3}}\\times10^{{{exponent}}}", f"0.333333\\times10^{{{exponent}}}")
    assert not equal(f"\\frac{{1}}{{3}}\\times10^{{{exponent}}}", f"0.3333\\times10^{{{exponent}}}")


def near_miss(rng):
    """An answer and another one that resembles it."""
    a, b, k = rng.randint(2, 999), rng.randint(2, 999), rng.randint(1, 40)
    other = a + rng.choice([-1, 1])
    decimal = rng.randint(100, 10**9) / 100
    return rng.choice(
        [
            (f"{a}", f"{other}"),
            (f"{a}", f"-{a}"),
            (f"{a}\\times10^{{-{k}}}", f"{other}\\times10^{{-{k}}}"),
            (f"{a}\\times10^{{{k}}}", f"{a}\\times10^{{{k + 1}}}"),
            (f"{a}\\times10^{{-{k}}}", f"-{a}\\times10^{{-{k}}}"),
            (f"{decimal:.2f}", f"{decimal + 0.01:.2f}"),
            (f"\\frac{{{a * b + 1}}}{{{b}}}", f"\\frac{{{other * b + 1}}}{{{b}}}"),
            (f"{a}\\sqrt{{2}}", f"{other}\\sqrt{{2}}"),
            (f"{a}\\pi", f"{a}"),
            (f"x^2+{a}x+{b}", f"x^2+{other}x+{b}"),
            (f"({a}, {b + 1000})", f"({other}, {b + 1000})"),
            (f"\\{{{a}, {b + 1000}\\}}", f"\\{{{other}, {b + 1000}\\}}"),
            (f"x={a}", f"x={other}"),
            (f"{a}_{{11}}", f"{a}_{{12}}"),
            (f"x_{{{a}}}", f"x_{{{other}}}"),
            (f"\\frac{{1}}{{{a}}}", f"{round(1 / other, 9):.9f}"),
        ]
    )


def false_positives(seed, count):
    rng = random.Random(seed)
    return [pair for pair in (near_miss(rng) for _ in range(count)) if equal(*pair)]


def test_near_misses_are_not_equal():
    assert false_positives(1, 60) == []


@pytest.mark.long
def test_5000_near_misses_are_not_equal():
    assert false_positives(2, 5000) == []


def test_answers_compared_in_this_process_are_compared_alike():
    assert verify_response("9.1\\times10^{-31}", "6.626\\times10^{-34}", 100)[0] == 0.0
    assert verify_response("6.626e-34", "6.626\\times10^{-34}", 100)[0] == 1.0
