"""Articles, and the three ways to look into them that the tools offer; where they come from is not its affair."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .names import slug

MOST_RESULTS = 10
MAX_QUERY_CHARS = 300
TITLE_WEIGHT = 3
"""How often a title is counted, compared with the text."""


@dataclass(frozen=True)
class Page:
    page_id: str
    title: str
    sections: dict[str, str]
    """By heading, in order."""

    def section_ids(self) -> dict[str, str]:
        """The id of each section, by heading; equal headings get a number."""
        found: dict[str, str] = {}
        for heading in self.sections:
            base = f"{self.page_id}:{slug(heading) or 'section'}"
            number, section_id = 1, base
            while section_id in found.values():
                number += 1
                section_id = f"{base}-{number}"
            found[heading] = section_id
        return found


class Encyclopaedia:
    """Pages by id, and a BM25 index over them, made when something is searched for the first time."""

    def __init__(self, pages: Iterable[Page]) -> None:
        self.pages: dict[str, Page] = {}
        for page in pages:
            if page.page_id in self.pages:
                raise ValueError(f"two pages have the id {page.page_id}: {page.title}")
            self.pages[page.page_id] = page
        self._order = list(self.pages)
        self._lock = threading.Lock()
        self._index: Any = None

    def search(self, query: str) -> list[Page]:
        """The pages that fit best, at most `MOST_RESULTS`; none where no word of the query occurs."""
        import bm25s

        if len(query) > MAX_QUERY_CHARS:
            raise ValueError(f"the query is longer than {MAX_QUERY_CHARS} characters")
        index = self.prepare()
        words = bm25s.tokenize([query], return_ids=False, show_progress=False)
        if not words[0]:
            return []
        most = min(MOST_RESULTS, len(self._order))
        places, scores = index.retrieve(words, k=most, show_progress=False)
        return [self.pages[self._order[place]] for place, score in zip(places[0], scores[0], strict=True) if score > 0]

    def prepare(self) -> Any:
        """The index; making it takes about a second for some thousands of pages."""
        import bm25s

        with self._lock:
            if self._index is None:
                pages = self.pages.values()
                texts = [" ".join([page.title] * TITLE_WEIGHT + [*page.sections.values()]) for page in pages]
                index = bm25s.BM25()
                index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
                self._index = index
        return self._index

    def page(self, page_id: str) -> Page:
        if page_id not in self.pages:
            raise ValueError(f"there is no page '{page_id[:100]}'{self._near(page_id)}")
        return self.pages[page_id]

    def section(self, section_id: str) -> str:
        page = self.page(section_id.partition(":")[0])
        for heading, known in page.section_ids().items():
            if known == section_id:
                return page.sections[heading]
        raise ValueError(
            f"there is no section '{section_id[:100]}'; there are: {', '.join(page.section_ids().values())}"
        )

    def _near(self, page_id: str) -> str:
        near = self.search(page_id.replace("-", " ")[:MAX_QUERY_CHARS])[:3]
        return f"; near it: {', '.join(page.page_id for page in near)}" if near else "; search_pages finds their ids"
