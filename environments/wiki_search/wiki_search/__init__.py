"""Answer questions by looking things up: search pages, list their sections, read them, follow their links.

The encyclopaedia is invented (`world.py`, `articles.py`), and the one for evaluation shares no name with the one for
training, so nothing can be known by heart. Or it is a Hugging Face data set, and another model may judge the answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import whet

from .answers import final_answer, is_right
from .articles import write_articles
from .corpus import read_corpus, read_questions
from .encyclopaedia import Encyclopaedia
from .names import Split
from .questions import make_questions
from .world import World, make_world

HOPS = (1, 2, 3)
MIN_ARTICLES, MAX_ARTICLES = 300, 10_000

SYSTEM_PROMPT = """\
Answer the question from the encyclopaedia. search_pages finds pages, view_sections lists the sections of a page, and \
read_section shows one. Links in the texts are written [name](page-id). What you know from elsewhere does not help. \
When you have found the answer, write it between <answer> and </answer>: a name, a year, a number."""


def search_pages(query: str, encyclopaedia: Encyclopaedia) -> str:
    """Find the pages that fit best.

    Args:
        query: Words to look for, names for example.
    """
    pages = encyclopaedia.search(str(query))
    return "\n".join(f"{page.page_id}: {page.title}" for page in pages) or "No page has any of these words."


def view_sections(page_id: str, encyclopaedia: Encyclopaedia) -> str:
    """List the sections of a page.

    Args:
        page_id: As search_pages and links have it.
    """
    sections = encyclopaedia.page(str(page_id)).section_ids()
    return "\n".join(f"{section_id}: {heading}" for heading, section_id in sections.items())


def read_section(section_id: str, encyclopaedia: Encyclopaedia) -> str:
    """Read one section of a page.

    Args:
        section_id: As view_sections has it, for example some-page:summary.
    """
    return encyclopaedia.section(str(section_id))


class WikiSearchEnv(whet.StatefulToolEnv):
    """Every task says in `info["encyclopaedia"]` where it is to be looked up; the model never sees that argument."""

    def __init__(
        self,
        encyclopaedia_of: Callable[[Split], Encyclopaedia],
        judge_client: whet.Client[Any, Any, Any, Any] | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.encyclopaedia_of = encyclopaedia_of
        self.judge_client = judge_client
        for tool in (search_pages, view_sections, read_section):
            self.add_tool(tool, args_to_skip=["encyclopaedia"])

    async def setup_state(self, state: whet.State) -> None:
        # Made at the first rollout: seconds of work, which must not stop the others.
        await asyncio.to_thread(lambda: self.encyclopaedia_of(state["info"]["encyclopaedia"]).prepare())

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: whet.Messages, state: whet.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "encyclopaedia": self.encyclopaedia_of(state["info"]["encyclopaedia"])}

    @whet.teardown
    async def close_judge(self) -> None:
        if self.judge_client is not None:
            await self.judge_client.close()


@lru_cache(maxsize=8)
def invented(split: Split, seed: int, articles: int) -> tuple[World, Encyclopaedia]:
    """A world and its encyclopaedia, kept in memory."""
    world = make_world(split, seed, articles)
    return world, write_articles(world, seed)


def make_tasks(split: Split, size: int, seed: int, articles: int, hops: Sequence[int]) -> list[dict[str, Any]]:
    world, _ = invented(split, seed, articles)
    return [
        {
            "question": question.text,
            "answer": question.answer,
            "info": {
                "encyclopaedia": split,
                "aliases": list(question.aliases),
                "hops": len(question.relations),
                "pages": list(question.pages),
                "relations": list(question.relations),
            },
        }
        for question in make_questions(world, size, seed, hops)
    ]


def exact_match(completion: whet.Messages, answer: str, info: dict[str, Any]) -> float:
    """1 if the final answer is the right one or an alias of it, apart from capitals, articles and punctuation."""
    return float(is_right(final_answer(completion), [answer, *info["aliases"]]))


def answered(completion: whet.Messages) -> float:
    """1 if there is a final answer, right or wrong."""
    return float(bool(final_answer(completion)))


def evidence_read(completion: whet.Messages, info: dict[str, Any]) -> float:
    """The share of the pages that tell the answer, one for each hop, of which a section was read."""
    read = set()
    for message in completion:
        for call in message.get("tool_calls") or []:
            if call["name"] == "read_section":
                try:
                    read.add(str(json.loads(call["arguments"])["section_id"]).partition(":")[0])
                except (ValueError, TypeError, KeyError):
                    continue  # the model got an error message for its call
    return len(read & set(info["pages"])) / len(info["pages"])


async def judged_right(
    judge: Any, prompt: whet.Messages, completion: whet.Messages, answer: str, state: whet.State
) -> float:
    """1 if the judge says yes. An empty answer is not shown to it."""
    if not final_answer(completion):
        return 0.0
    verdict = await judge(prompt, final_answer(completion), answer, state)
    return float(verdict.strip().lower().startswith("yes"))


def load_environment(
    num_train: int = 2000,
    num_eval: int = 256,
    seed: int = 0,
    hops: Sequence[int] = HOPS,
    articles: int = 4000,
    max_turns: int = 12,
    corpus: str | None = None,
    questions: str | None = None,
    corpus_columns: Sequence[str] = ("title", "content"),
    question_columns: Sequence[str] = ("question", "answer"),
    judge_model: str | None = None,
    judge_base_url: str | None = None,
    judge_api_key_var: str = "OPENAI_API_KEY",
) -> whet.Environment:
    """
    Args:
        num_train: Questions to train on.
        num_eval: Questions to evaluate on.
        seed: Draws the worlds, their articles and the questions.
        hops: How many links there are between question and answer: some of 1, 2 and 3; more are harder.
        articles: Articles in each encyclopaedia; more are harder to search.
        max_turns: Turns after which an attempt ends, tool calls included.
        corpus: A Hugging Face data set of articles to use instead, owner/name or a directory; needs `questions`.
        questions: A Hugging Face data set of questions about the corpus, owner/name or a directory.
        corpus_columns: The columns of `corpus` with title and text.
        question_columns: The columns of `questions` with question and answer.
        judge_model: A model that judges the answers, instead of comparing them.
        judge_base_url: Its OpenAI-compatible endpoint; that of OpenAI if absent.
        judge_api_key_var: Environment variable that holds the endpoint's key.
    """
    if not isinstance(hops, list | tuple) or not hops or not set(hops) <= set(HOPS):
        raise ValueError(f"hops must be a list of some of 1, 2 and 3, got {hops!r}")
    if not MIN_ARTICLES <= articles <= MAX_ARTICLES:
        raise ValueError(f"articles must be between {MIN_ARTICLES} and {MAX_ARTICLES}, got {articles}")
    if (corpus is None) != (questions is None):
        raise ValueError("corpus and questions must be given together: a corpus has no questions of its own")
    if len(corpus_columns) != 2 or len(question_columns) != 2:
        raise ValueError("corpus_columns and question_columns must name two columns each")
    if judge_base_url is not None and judge_model is None:
        raise ValueError("judge_base_url must come with judge_model, the model to ask there")

    metrics: list[whet.RewardFunc] = [answered]
    if corpus is None or questions is None:
        metrics.append(evidence_read)

        def encyclopaedia_of(split: Split) -> Encyclopaedia:
            return invented(split, seed, articles)[1]

        def tasks(split: Split, size: int) -> list[dict[str, Any]]:
            return make_tasks(split, size, seed, articles, hops)
    else:
        the_corpus = cache(lambda: read_corpus(corpus, *corpus_columns))
        the_questions = cache(lambda: read_questions(questions, *question_columns))

        def encyclopaedia_of(split: Split) -> Encyclopaedia:
            return the_corpus()

        def tasks(split: Split, size: int) -> list[dict[str, Any]]:
            the_corpus()  # what is wrong with it is said before the first rollout
            info: dict[str, Any] = {"encyclopaedia": split, "aliases": []}
            return [{**row, "info": info} for row in the_questions()[split][:size]]

    judge_client: whet.Client[Any, Any, Any, Any] | None = None
    rubric = whet.Rubric(funcs=[exact_match])
    if judge_model is not None:
        if judge_base_url is None:
            whet.ensure_keys([judge_api_key_var])
        endpoint = {} if judge_base_url is None else {"api_base_url": judge_base_url}
        judge_client = whet.OpenAIChatCompletionsClient(whet.ClientConfig(api_key_var=judge_api_key_var, **endpoint))
        rubric = whet.JudgeRubric(judge_client=judge_client, judge_model=judge_model)
        rubric.add_reward_func(judged_right)
        metrics.insert(0, exact_match)
    for metric in metrics:
        rubric.add_metric(metric)
    return WikiSearchEnv(
        encyclopaedia_of,
        judge_client,
        dataset=lambda: tasks("train", num_train),
        eval_dataset=lambda: tasks("eval", num_eval),
        system_prompt=SYSTEM_PROMPT,
        max_turns=max_turns,
        rubric=rubric,
    )
