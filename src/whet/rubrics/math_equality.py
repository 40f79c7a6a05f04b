r"""Whether two answers are mathematically equal: math-verify, with numbers compared by their size.

math-verify compares decimals by six places after the point, which makes all small numbers equal, and drops the base of
a number (`1011_2`). Here:

* exact numbers are equal when they are exactly equal, whatever their size;
* a decimal equals another number when it is that number rounded to six significant digits or more, and another
  decimal only where that one has at least four digits more (1234567.49 is not 1234567.50);
* a number in a base equals only the same number in the same base, since questions about bases want the notation;
* equality holds in both directions.

Imports sympy, so processes other than math workers import it only when they compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import math_verify
import sympy
from math_verify import grader

SIGNIFICANT = 6  # digits from which on a decimal stands for a number that it is rounded from
_DIGITS = 50  # of exact numbers
_CONTEXT = Context(prec=_DIGITS + 10, Emax=MAX_EMAX, Emin=MIN_EMIN)

_END = re.compile(r"(?:\\[,;:! ]|~|\s|(?<!\.)\.(?=\s*$)|[,;])+$")
_THOUSANDS = re.compile(r"(?<![\w.])\d{1,3}(?:(?:\\[,!; ]|\{,\}|[ ~\u00a0\u202f])+\d{3})+(?!\d)")
_REPEATING = re.compile(r"(\d+)\.(\d*)\\overline\{(\d+)\}")
_SCIENTIFIC = re.compile(r"(?<![\w\\.])(\d+\.?\d*|\.\d+)[eE]([+-]?)(\d+)(?![\w.])")
_BASE = re.compile(r"(?<![\w.^\\{])(\()?(\d[\dA-F]*)(?:\.(\d+))?(?(1)\))_(?:\{\s*(\d+)\s*\}|(\d))(?!\d)")
_WORD = re.compile(r"[^\W\d_]{4,}")
_OPAQUE = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Derivative, sympy.Limit, sympy.core.function.AppliedUndef)
_SAMPLES = [[Fraction(37 * (i + 3) % 101 - 50, 29 + 7 * i + k) for i in range(12)] for k in (0, 1, 2, 3)]


def read(text: str, parse: Callable[..., Any] = math_verify.parse, **settings: Any) -> list[Any]:
    """What math-verify can make of an answer's text, in each of its notations."""
    return [parse(f"\\boxed{{{notation}}}", **settings) for notation in _notations(text)]


def same(
    expected: list[Any], given: list[Any], verify: Callable[..., bool] = math_verify.verify, **settings: Any
) -> bool:
    """Whether any two of the notations are equal, in both directions."""
    settings["allow_set_relation_comp"] = True
    pairs = [(_values(one), _values(other)) for one in expected for other in given]
    with _numbers_by_size():
        return any(verify(one, other, **settings) and verify(other, one, **settings) for one, other in pairs)


def _values(notation: Any) -> Any:
    """Equations whose left side is a constant or a derivative (`2 + 2 = 4`) replaced by their right side."""

    def value(one: Any) -> Any:
        left = grader.take_first_relation(one).lhs if grader.is_equation(one) else None
        results = left is not None and (isinstance(left, sympy.Derivative) or not left.free_symbols)
        return grader.take_last_relation(one).rhs if results else one

    return [value(one) for one in notation] if isinstance(notation, list) else notation


def _notations(text: str) -> list[str]:
    text = _END.sub("", text.strip()).removeprefix("$").removesuffix("$")
    text = _END.sub("", text)
    if _WORD.fullmatch(text):  # letters of a word are no factors
        return [f"\\text{{{text}}}"]
    text = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = _BASE.sub(_symbol_of_base, _REPEATING.sub(_fraction, text))
    scientific = _SCIENTIFIC.sub(lambda match: f"{match[1]}\\times10^{{{match[2]}{match[3]}}}", text)
    euler = re.search(r"(?<![\w\\.])\d+e-\d(?![\w.])", text)  # 2e-1 may be 0.2 or twice Euler's number less one
    return [scientific, text] if euler else [scientific]


def _fraction(match: re.Match[str]) -> str:
    whole, fixed, period = match.groups()
    shift = 10 ** len(fixed)
    value = Fraction(int(whole + fixed)) + Fraction(int(period), 10 ** len(period) - 1)
    numerator, denominator = (value / shift).as_integer_ratio()
    return f"\\frac{{{numerator}}}{{{denominator}}}"


def _symbol_of_base(match: re.Match[str]) -> str:
    """A symbol of its own for each number in a base, which math-verify would read without the base."""
    digits, places, base = match[2], (match[3] or "").rstrip("0"), int(match[4] or match[5])
    if base == 10:
        return match[0].rpartition("_")[0]
    try:
        value = int(digits + places, base)
    except ValueError:
        if not digits.isdecimal():
            return match[0]  # 2A_1: twice a symbol
        value = int(digits + places)
    return f"\\beta_{{{base:02d}{len(places):02d}{value}}}"


@contextmanager
def _numbers_by_size() -> Iterator[None]:
    """math-verify compares numbers and formulas as this module does: it has no parameter for that."""
    numeric, symbolic = grader.sympy_numeric_eq, grader.sympy_symbolic_eq

    def numbers(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
        if any(isinstance(one, (sympy.MatrixBase, sympy.MatrixExpr)) for one in (a, b)) or all(
            grader.is_atomic_or_pct_atomic(one, sympy.Integer) for one in (a, b)
        ):
            return bool(numeric(a, b, float_rounding, numeric_precision))
        return numbers_equal(grader.safe_sympy_doit(a), grader.safe_sympy_doit(b))

    def formulas(a: Any, b: Any) -> bool:
        verdict = _agree_at_points(a, b)
        return bool(symbolic(a, b)) if verdict is None else verdict

    grader.sympy_numeric_eq, grader.sympy_symbolic_eq = numbers, formulas
    try:
        yield
    finally:
        grader.sympy_numeric_eq, grader.sympy_symbolic_eq = numeric, symbolic


def numbers_equal(a: Any, b: Any) -> bool:
    """Whether two sympy numbers are equal, decimals as far as they are written; False for what is no number."""
    if a.is_Rational and b.is_Rational:
        return bool(a == b)
    if a.free_symbols or b.free_symbols:
        return False
    decimals = a.has(sympy.Float), b.has(sympy.Float)
    parts = [_parts(one, decimal) for one, decimal in zip((a, b), decimals, strict=True)]
    if parts[0] is None or parts[1] is None:
        return False
    with localcontext(_CONTEXT):
        if not any(decimals):
            size = max(abs(part) for part in (*parts[0], *parts[1]))
            return all(abs(x - y) <= size * Decimal(10) ** -(_DIGITS - 10) for x, y in zip(*parts, strict=True))
        return all(_rounded(x, y, decimals) for x, y in zip(*parts, strict=True))


def _parts(number: Any, is_decimal: bool) -> tuple[Decimal, Decimal] | None:
    """The real and the imaginary part; decimals as written, without the noise of binary numbers."""
    digits = _DIGITS
    if is_decimal:
        digits = max(15, *(int(one._prec * 0.30103) - 1 for one in number.atoms(sympy.Float)))
    value = sympy.N(number, digits)
    parts = value.as_real_imag() if value.is_number and value.is_finite else ()
    if len(parts) != 2 or not all(part.is_Float or part.is_Rational for part in parts):
        return None
    real, imaginary = (Decimal(str(sympy.N(part, digits))) for part in parts)
    return real, imaginary


def _rounded(x: Decimal, y: Decimal, decimals: tuple[bool, bool]) -> bool:
    """Whether the one of two numbers, at least one a decimal, is the other rounded to the digits that it has."""
    gap, size = abs(x - y), max(abs(x), abs(y))
    digits = [len(one.normalize().as_tuple().digits) for one in (x, y)]
    if gap <= size * Decimal(10) ** -min(14, max(9, min(digits) + 3)):  # what floating point arithmetic leaves
        return True
    written = min(count for count, decimal in zip(digits, decimals, strict=True) if decimal)
    if written < SIGNIFICANT:
        return False
    short = x if decimals[0] and digits[0] == written else y
    last = Decimal(10) ** int(short.normalize().as_tuple().exponent)  # the value of 1 in its last digit
    if max(digits) >= _DIGITS - 2:  # of an endless number, which may be cut off instead of rounded
        return gap < last if written > SIGNIFICANT else 2 * gap <= last
    return 2 * gap <= last and gap <= size * Decimal("1.01e-6") and (not all(decimals) or max(digits) >= written + 4)


def _agree_at_points(a: Any, b: Any) -> bool | None:
    """Whether two formulas have the same values where their symbols have; None where that cannot be said."""
    symbols = sorted(getattr(a, "free_symbols", set()) | getattr(b, "free_symbols", set()), key=str)
    scalars = all(isinstance(one, sympy.Expr) and not one.has(*_OPAQUE) for one in (a, b))
    if not scalars or not 0 < len(symbols) <= len(_SAMPLES[0]):
        return None
    for sample in _SAMPLES:
        point = {symbol: sympy.Rational(value) for symbol, value in zip(symbols, sample, strict=False)}
        x, y = (sympy.N(one.subs(point), 30) for one in (a, b))
        if not all(one.is_number and one.is_finite for one in (x, y)):
            return None
        if abs(x - y) > max(abs(x), abs(y)) * sympy.Float("1e-12"):
            return False
    return True
