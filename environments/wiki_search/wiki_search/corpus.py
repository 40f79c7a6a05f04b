"""Articles and questions from Hugging Face data sets, by name or as directories."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from whet.errors import DatasetError

from .encyclopaedia import Encyclopaedia, Page
from .names import slug

HEADING = re.compile(r"^(?:#{1,6}\s+(.*?)\s*#*|={2,6}\s*(.*?)\s*={2,6})\s*$")
"""A heading in Markdown, or in a wiki's own marks."""

MAX_SECTION_CHARS = 4000

Row = dict[str, Any]


def read_corpus(name: str, title_column: str, text_column: str) -> Encyclopaedia:
    """All rows of all splits as pages. Pages of the same title get a number in their ids."""
    pages: dict[str, Page] = {}
    for row in _rows(_splits(name).values(), name, (title_column, text_column)):
        base = slug(row[title_column]) or "page"
        number, page_id = 1, base
        while page_id in pages:
            number += 1
            page_id = f"{base}-{number}"
        pages[page_id] = Page(page_id, row[title_column], sections_of(row[text_column]))
    if not pages:
        raise DatasetError(f"corpus '{name}' has no rows.")
    return Encyclopaedia(pages.values())


def read_questions(name: str, question_column: str, answer_column: str) -> dict[str, list[Row]]:
    """Rows (question, answer) to train and to evaluate on.

    A data set with a split `test` keeps it for evaluation, and what is in it is never trained on; any other is divided
    by a hash of the question, a quarter for evaluation.
    """
    splits = _splits(name)
    columns = (question_column, answer_column)
    found: dict[str, list[Row]] = {"train": [], "eval": []}
    held_out = {row[question_column] for row in _rows([splits["test"]], name, columns)} if "test" in splits else None
    for row in {row[question_column]: row for row in _rows(splits.values(), name, columns)}.values():
        question = row[question_column]
        is_held_out = zlib.crc32(question.encode()) % 4 == 0 if held_out is None else question in held_out
        found["eval" if is_held_out else "train"].append({"question": question, "answer": row[answer_column]})
    return found


def sections_of(text: str) -> dict[str, str]:
    """The text by its headings; what stands before the first is the summary.

    Equal headings are joined, and what is longer than a model should read at once is divided: `History`, `History (2)`.
    """
    sections: dict[str, list[str]] = {"Summary": []}
    heading = "Summary"
    for line in text.splitlines():
        match = HEADING.match(line)
        if match:
            heading = match.group(1) or match.group(2) or "Section"
        else:
            sections.setdefault(heading, []).append(line)
    divided: dict[str, str] = {}
    for heading, lines in sections.items():
        number = 1
        for part in _parts("\n".join(lines).strip()):
            name = heading
            while name in divided:
                number += 1
                name = f"{heading} ({number})"
            divided[name] = part
    return divided or {"Summary": ""}


def _parts(text: str) -> Iterator[str]:
    """The text in pieces of at most `MAX_SECTION_CHARS`, cut between lines or words where there are any."""
    while len(text) > MAX_SECTION_CHARS:
        between = max(text.rfind("\n", 0, MAX_SECTION_CHARS), text.rfind(" ", 0, MAX_SECTION_CHARS))
        cut = between if between > 0 else MAX_SECTION_CHARS
        yield text[:cut].rstrip()
        text = text[cut:].lstrip()
    if text:
        yield text


def _splits(name: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DatasetError(f"reading '{name}' needs the package datasets: pip install datasets") from error
    if not Path(name).is_dir() and (name.startswith((".", "/", "~")) or name.count("/") != 1):
        raise DatasetError(f"'{name}' is neither a directory nor owner/name on the Hugging Face hub.")
    try:
        return load_dataset(name)
    except Exception as error:  # of whichever HTTP library huggingface_hub uses, and of the files' readers
        line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise DatasetError(f"'{name}' is no data set that can be read: {line}") from error


def _rows(splits: Iterable[Any], name: str, columns: tuple[str, str]) -> list[Row]:
    rows = []
    for split in splits:
        for column in columns:
            if column not in split.column_names:
                raise DatasetError(
                    f"'{name}' has no column '{column}'; it has: {', '.join(split.column_names)}. "
                    "Name the columns with corpus_columns or question_columns."
                )
        for index, row in enumerate(split.select_columns(list(columns))):
            for column in columns:
                if not isinstance(row[column], str):
                    raise DatasetError(f"'{name}', row {index}: '{column}' should be text, not {row[column]!r:.80}.")
            rows.append(row)
    return rows
