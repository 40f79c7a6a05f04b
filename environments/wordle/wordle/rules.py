"""The rules of the game: what a guess is, how it is marked, and how much of the word the marks reveal.

Pure functions over strings. A letter that stands in a guess more often than in the word is marked as often as the word
has it: first where it is in its place, then from left to right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

IN_PLACE, ELSEWHERE, ABSENT = "G", "Y", "X"


def guess_of(text: str, length: int) -> str | None:
    """The word between the last `<guess>` and `</guess>`, or all there is after any thinking; in small letters.

    None where it is not one word of `length` letters.
    """
    end = text.rfind("</guess>")
    start = text.rfind("<guess>", 0, max(end, 0))
    word = (text[start + len("<guess>") : end] if start >= 0 else text.rpartition("</think>")[2]).strip()
    return word.lower() if len(word) == length and re.fullmatch("[A-Za-z]+", word) else None


def marks_of(guess: str, secret: str) -> str:
    """A mark for each letter of `guess`; both words are of one length."""
    marks = [IN_PLACE if letter == right else ABSENT for letter, right in zip(guess, secret, strict=True)]
    left = Counter(right for letter, right in zip(guess, secret, strict=True) if letter != right)
    for place, letter in enumerate(guess):
        if marks[place] == ABSENT and left[letter] > 0:
            marks[place] = ELSEWHERE
            left[letter] -= 1
    return "".join(marks)


def share_known(guesses: Iterable[str], secret: str, shown: Collection[int] = ()) -> float:
    """How much of the word the guesses have brought to light, from 0 to 1.

    A letter in its place counts whole, one that is only known to be in the word counts half. The places `shown` from
    the start count nothing.
    """
    in_place = set(shown)
    in_word: Counter[str] = Counter()
    for guess in guesses:
        marks = marks_of(guess, secret)
        in_place |= {place for place, mark in enumerate(marks) if mark == IN_PLACE}
        in_word |= Counter(letter for letter, mark in zip(guess, marks, strict=True) if mark != ABSENT)
    in_word |= Counter(secret[place] for place in in_place)
    placed, known = len(in_place) - len(shown), in_word.total() - len(shown)
    return (placed + known) / (2 * (len(secret) - len(shown)))
