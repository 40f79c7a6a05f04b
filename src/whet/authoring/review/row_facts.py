"""What is said of the rows of an environment's two splits: types, duplicates, and what is in both. Pure.

A task is its prompt and its answer, or where it has no answer its prompt and `info`: in a game, say, every task may
have the same prompt. Texts are compared in lower case and with their spaces evened out.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from whet.authoring.review.observations import Rows, Split
from whet.messages import content_text

Row = Mapping[str, Any]
EXAMPLES = 3
SHOWN = 120


def split_facts(rows: Sequence[Row], seconds: float) -> Split:
    tasks = Counter(map(task_of, rows))
    repeated = [task for task, count in tasks.items() if count > 1]
    problems = list(dict.fromkeys(problem for row in rows for problem in type_problems(row)))
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(_text(row).encode(errors="surrogatepass"))
    return Split(
        rows=len(rows),
        seconds=seconds,
        digest=digest.hexdigest(),
        type_problems=problems[:EXAMPLES],
        duplicates=sum(count - 1 for count in tasks.values()),
        duplicate=_short(repeated[0][0]) if repeated else "",
    )


def compare(train: Sequence[Row], held_out: Sequence[Row]) -> dict[str, Any]:
    """The fields of `Rows` that are about both splits."""
    train_tasks, eval_tasks = {task_of(row) for row in train}, {task_of(row) for row in held_out}
    both = sorted(train_tasks & eval_tasks)
    train_prompts, eval_prompts = ({prompt for prompt, _ in tasks} for tasks in (train_tasks, eval_tasks))
    shared = sorted(train_prompts & eval_prompts - {prompt for prompt, _ in both})
    return {
        "overlap": len(both),
        "overlapping": _short(both[0][0]) if both else "",
        "shared_prompts": len(shared),
        "shared_prompt": _short(shared[0]) if shared else "",
        "prompts_are_tasks": len(train_prompts) == len(train_tasks) and len(eval_prompts) == len(eval_tasks),
    }


def rows_event(train: Split | None, held_out: Split | None, rows: Sequence[Row], both: dict[str, Any]) -> Rows:
    answered = sum(bool(answer_text(row)) for row in rows) / len(rows) if rows else 0.0
    return Rows(train=train, eval=held_out, answered=answered, **both)


def answer_text(row: Row) -> str:
    """The expected answer as text, which 0 is too; "" where there is none."""
    answer = row.get("answer")
    return "" if answer is None else str(answer).strip()


def task_of(row: Row) -> tuple[str, str]:
    """(prompt, answer or info), normalised."""
    prompt = "\n".join(
        _normal(content_text(message.get("content"))) for message in row["prompt"] if message["role"] != "system"
    )
    answer = row.get("answer")
    return prompt, _normal(str(answer)) if answer not in (None, "") else _text(row.get("info"))


def type_problems(row: Row) -> list[str]:
    problems = []
    answer = row.get("answer")
    if answer is not None and not isinstance(answer, str):
        problems.append(f"'answer' is {type(answer).__name__}, not text")
    problems += [f"'info' has {_kind_in(value)} under '{key}', which JSON cannot hold" for key, value in _bad(row)]
    return problems


def most_common_answer(rows: Sequence[Row]) -> str:
    """What to say without reading the question; nothing where all answers differ."""
    counted = Counter(text for row in rows if (text := answer_text(row))).most_common(1)
    return counted[0][0] if counted and counted[0][1] > 1 else ""


def spread_out(rows: Sequence[Row], count: int) -> list[Row]:
    """`count` rows (-1 = all) from all over the split, so that a group of environments is met in all its parts."""
    count = min(count, len(rows)) if count >= 0 else len(rows)
    return [rows[index * len(rows) // count] for index in range(count)]


def _bad(row: Row) -> list[tuple[str, Any]]:
    info = row.get("info")
    if not isinstance(info, Mapping):
        return []
    return [(str(key), value) for key, value in info.items() if _kind_in(value)]


def _kind_in(value: Any) -> str:
    """The type that JSON has no word for, or nothing."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__
    return ""


def _text(value: Any) -> str:
    """The same text for the same value, in whatever process; of what JSON does not know, the type alone."""
    for in_order in (True, False):  # keys of several types have no order
        try:
            return json.dumps(value, sort_keys=in_order, default=_type_name, skipkeys=not in_order)
        except TypeError:
            continue
        except (ValueError, RecursionError):  # it holds itself
            break
    return _type_name(value)


def _type_name(value: Any) -> str:
    return type(value).__name__


def _normal(text: str) -> str:
    return " ".join(text.lower().split())


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
