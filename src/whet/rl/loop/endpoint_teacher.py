"""A teacher behind an endpoint: what it makes of the student's tokens, as log-probabilities of a prompt.

A sequence is sent as the ids of a prompt to `/completions`, with `prompt_logprobs` as vLLM has it, and one token is
sampled and thrown away. The log-probabilities are log softmax(logits) without temperature, so the student has to
sample at temperature 1. vLLM servers and `whet serve` answer so; OpenAI's API does not.
"""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whet.clients.config import EndpointConfig
from whet.clients.providers.provider_client import connect, import_package
from whet.clients.providers.provider_errors import failure
from whet.errors import TrainingError
from whet.inference.vllm.completions import PROBE
from whet.rl.data.batch import PackedBatch
from whet.rl.sections.teacher import TeacherConfig
from whet.rollouts.limits import gather

ADVICE = "Set [teacher] api_key_var to the environment variable with its key."


class EndpointTeacher:
    """The teacher of `[teacher]`. `tokenizer` is the student's."""

    def __init__(self, config: TeacherConfig, tokenizer: Any) -> None:
        """Raises `MissingExtraError` without the package `openai`."""
        self._config, self._tokenizer, self._model = config, tokenizer, config.model
        self._package = import_package("openai")
        endpoint = EndpointConfig(
            api_base_url=config.url,
            api_key_var=config.api_key_var,
            timeout=config.timeout,
            max_retries=config.max_retries,
        )
        self._client = connect(self._package, self._package.AsyncOpenAI, endpoint)
        self._free = asyncio.Semaphore(config.max_concurrent)

    async def check(self) -> None:
        """Raises `TrainingError` where it does not answer as a teacher has to, or has other tokens."""
        if self._model is None:
            names = [model.id async for model in await self._requested(self._listed())]
            if len(names) != 1:
                known = ", ".join(map(repr, names)) or "none"
                raise self._error(f"it serves {known}; name one with [teacher] model")
            self._model = names[0]
        choice = await self._choice(PROBE, return_token_ids=True, add_special_tokens=False)
        ids = choice.get("prompt_token_ids")
        alike = [self._tokenizer.encode(PROBE, add_special_tokens=special) for special in (False, True)]
        if ids is None:
            raise self._error("it does not return token ids (return_token_ids), so its tokens are not known")
        if ids not in alike:
            raise self._error(
                f"{self._model} has other tokens than the model that is trained. Probabilities of the same tokens are "
                "compared, so both need the same tokenizer"
            )
        await self._logprobs(alike[0])

    async def logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        """T; log q of every trained token, 0 for others. Raises `TrainingError` and what the endpoint fails with."""
        if (batch.temperatures[batch.trained] != 1).any():
            raise TrainingError(
                "[teacher]: a rollout was sampled at another temperature than 1, and the teacher is not"
            )
        starts = batch.cu_seqlens.tolist()
        ids = [batch.ids[start:stop].tolist() for start, stop in pairwise(starts)]
        logprobs_T = np.concatenate(await gather([self._logprobs(one) for one in ids]))
        return np.where(batch.trained, logprobs_T, 0).astype(np.float32)

    async def close(self) -> None:
        await self._client.close()

    async def _logprobs(self, ids: list[int]) -> NDArray[np.float64]:
        """Of each id but the first, given those before."""
        entries = (await self._choice(ids, prompt_logprobs=0)).get("prompt_logprobs")
        if not isinstance(entries, list) or len(entries) != len(ids):
            raise self._error(
                "it returns no log-probabilities of prompts (prompt_logprobs), which vLLM and whet serve do"
            )
        values = [0.0]
        for token, entry in zip(ids[1:], entries[1:], strict=True):
            logprob = ((entry or {}).get(str(token)) or {}).get("logprob")
            if not isinstance(logprob, int | float) or not math.isfinite(logprob):
                raise self._error(f"it returns {logprob!r} as the log-probability of a token of the prompt")
            values.append(logprob)
        return np.array(values)

    async def _choice(self, prompt: str | list[int], **body: Any) -> dict[str, Any]:
        request = self._client.completions.create(
            model=self._model, prompt=prompt, max_tokens=1, temperature=1.0, extra_body=body
        )
        choices = (await self._requested(request)).choices
        if not choices:
            raise self._error("it returns no choice")
        answer: dict[str, Any] = choices[0].model_dump()
        return answer

    async def _listed(self) -> Any:
        return await self._client.models.list()

    async def _requested(self, request: Any) -> Any:
        async with self._free:
            try:
                return await request
            except self._package.OpenAIError as error:
                raise failure(self._package, error, self._config.url, ADVICE) or self._error(str(error)) from error

    def _error(self, what: str) -> TrainingError:
        return TrainingError(f"[teacher] {self._config.url}: {what}.")
