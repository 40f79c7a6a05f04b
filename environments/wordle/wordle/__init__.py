"""Find a secret word: every guess is marked letter by letter, and fewer guesses earn more.

The words are those of `words_4.txt`, `words_5.txt` and `words_6.txt`. A hash of the word decides whether it belongs to
training or to evaluation, so the splits never meet, whatever the seed and the sizes. The rules are in `rules.py`.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any, Literal

import whet

from .rules import guess_of, marks_of, share_known

LENGTHS = (4, 5, 6)
WIN_AT_LEAST = 0.5
LOSS_AT_MOST = 0.3

QUESTION = """\
Find my secret English word of {length} letters. You have {max_guesses} guesses. I mark the letters of each guess:
G: this letter is in this place of my word.
Y: my word has this letter, but in another place.
X: my word does not have this letter, or not once more.
Write one guess at a time, like this: <guess>...</guess>"""


def words_of(length: int) -> list[str]:
    """All words of one length, in alphabetical order."""
    return (Path(__file__).parent / f"words_{length}.txt").read_text(encoding="ascii").split()


def split_of(word: str) -> Literal["train", "eval"]:
    """A quarter of all words is for evaluation."""
    return "eval" if zlib.crc32(word.encode()) % 4 == 0 else "train"


def make_tasks(
    split: Literal["train", "eval"], size: int, seed: int, length: int, max_guesses: int, hints: int, candidates: int
) -> list[dict[str, Any]]:
    """`size` different secret words of one split, or all there are if they are fewer."""
    rng = random.Random(f"{split} {seed}")
    words = [word for word in words_of(length) if split_of(word) == split]
    tasks = []
    for secret in rng.sample(words, min(size, len(words))):
        question = QUESTION.format(length=length, max_guesses=max_guesses)
        shown = sorted(rng.sample(range(length), hints))
        if shown:
            pattern = " ".join(letter if place in shown else "_" for place, letter in enumerate(secret))
            question += f"\n\nLetters you may know already: {pattern}"
        if candidates:
            others = rng.sample([word for word in words if word != secret], candidates - 1)
            question += f"\n\nIt is one of these words: {', '.join(sorted([secret, *others]))}."
        tasks.append({"question": question, "answer": secret, "info": {"shown": shown}})
    return tasks


def guesses_of(completion: whet.Messages, length: int) -> list[str | None]:
    """The guess of each assistant message; None where there is none."""
    parser = whet.Parser()
    return [guess_of(parser.text_of(message), length) for message in parser.get_assistant_messages(completion)]


class WordleEnv(whet.MultiTurnEnv):
    async def env_response(self, messages: whet.Messages, state: whet.State, **kwargs: Any) -> whet.Messages:
        secret = state["answer"]
        guess = guesses_of(messages[-1:], len(secret))[0]
        if guess is None:
            reply = (
                f"That was no guess, but it counts as one. Write a word of {len(secret)} letters: <guess>...</guess>"
            )
        else:
            reply = f"{' '.join(guess.upper())}\n{' '.join(marks_of(guess, secret))}"
        left = self.max_turns - len(state["trajectory"])
        return [whet.UserMessage(content=f"{reply}\n\n{left} {'guess' if left == 1 else 'guesses'} left.")]

    @whet.stop
    async def solved_it(self, state: whet.State) -> bool:
        if not state["trajectory"]:
            return False
        secret = state["answer"]
        return guesses_of(state["trajectory"][-1]["completion"], len(secret)) == [secret]


def solved(completion: whet.Messages, answer: str) -> float:
    """1 if the word was found."""
    return float(answer in guesses_of(completion, len(answer)))


def guesses_used(completion: whet.Messages, answer: str) -> float:
    """Guesses made, found or not."""
    return float(len(guesses_of(completion, len(answer))))


def invalid_guesses(completion: whet.Messages, answer: str) -> float:
    """Guesses that were no word of the right length."""
    return float(guesses_of(completion, len(answer)).count(None))


def letters_known(completion: whet.Messages, answer: str, info: dict[str, Any]) -> float:
    """How much of the word the guesses brought to light, from 0 to 1."""
    guesses = [guess for guess in guesses_of(completion, len(answer)) if guess is not None]
    return share_known(guesses, answer, info["shown"])


def load_environment(
    num_train: int = 1000,
    num_eval: int = 128,
    seed: int = 0,
    word_length: int = 5,
    max_guesses: int = 6,
    hints: int = 0,
    candidates: int = 0,
) -> whet.Environment:
    """
    Args:
        num_train: Secret words to train on.
        num_eval: Secret words to evaluate on.
        seed: Draws the words, the hints and the candidates.
        word_length: Letters of a word: 4, 5 or 6.
        max_guesses: Guesses allowed; fewer are harder.
        hints: Letters that are shown in their places from the start; more are easier.
        candidates: Words, the secret one among them, that the prompt names; 0 names none, and few are easy.
    """
    if word_length not in LENGTHS:
        raise ValueError(f"word_length must be one of {', '.join(map(str, LENGTHS))}, got {word_length}")
    if max_guesses < 1:
        raise ValueError(f"max_guesses must be at least 1, got {max_guesses}")
    if not 0 <= hints < word_length:
        raise ValueError(f"hints must be between 0 and {word_length - 1}, got {hints}")
    most = min(sum(split_of(word) == split for word in words_of(word_length)) for split in ("train", "eval"))
    if candidates != 0 and not 2 <= candidates <= most:
        raise ValueError(f"candidates must be 0, or between 2 and {most}, got {candidates}")

    def few_guesses(completion: whet.Messages, answer: str, info: dict[str, Any]) -> float:
        """Found: 1 for the first guess, less for each further one, never below 0.5. Not found: up to 0.3."""
        guesses = guesses_of(completion, len(answer))
        if answer not in guesses:
            return LOSS_AT_MOST * letters_known(completion, answer, info)
        return 1.0 - (1.0 - WIN_AT_LEAST) * guesses.index(answer) / max_guesses

    rubric = whet.Rubric(funcs=[few_guesses])
    for metric in (solved, guesses_used, invalid_guesses, letters_known):
        rubric.add_metric(metric)
    return WordleEnv(
        dataset=lambda: make_tasks("train", num_train, seed, word_length, max_guesses, hints, candidates),
        eval_dataset=lambda: make_tasks("eval", num_eval, seed, word_length, max_guesses, hints, candidates),
        max_turns=max_guesses,
        rubric=rubric,
    )
