"""Logprobs that requests want beside those of what they draw: of their prompts, and of the likeliest tokens.

Those of a prompt are made while it is computed, a few rows of logits at a time: logits of all its tokens at once would
take more memory than anything else. N positions one after the other, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from whet.errors import ModelError
from whet.inference.decoding.sampling import SampledTokens, uniforms
from whet.inference.decoding.scheduler import SampleJob
from whet.inference.protocol import PromptScores, Sample, SampleRequest, TokenLogprobs
from whet.inference.requests import seed_after
from whet.inference.token_sets import TokenSets

LOGITS_AT_ONCE = 1 << 23
"""Logits of prompt tokens that are held at a time at most on a CPU: 32 MiB."""


class PromptScorer:
    """What one request wants of its prompt, filled in as its logits come."""

    def __init__(self, request: SampleRequest, seed: int) -> None:
        scoring, count = request.scoring, len(request.prompt_ids)
        assert scoring is not None, "the request wants no logprobs of its prompt"
        self._scoring, self._params = scoring, request.params
        self._ids = torch.tensor(request.prompt_ids)
        self._targets = None if scoring.targets is None else torch.from_numpy(scoring.targets).long()
        self._seeds = [seed_after(seed, -1 - number) for number in range(scoring.prompt_draws)]
        self.first = scoring.first(count)  # token whose logprob is the first that is needed
        self._begin = count - scoring.prompt_last if scoring.prompt_last is not None else 1
        drawn = scoring.prompt_draws
        self.scores = PromptScores(
            np.full(count, np.nan, np.float32) if scoring.prompt else None,
            TokenLogprobs.blank(count, scoring.prompt_top) if scoring.prompt_top else None,
            None if scoring.targets is None else np.zeros(scoring.targets.shape, np.float32),
            TokenLogprobs.blank(count - 1, drawn) if drawn else None,
        )

    def take(self, start: int, logits_NV: Tensor) -> None:
        """Logits, in float32, of what follows the tokens from `start` on."""
        scores, end = self.scores, start + len(logits_NV)
        logprobs_NV = logits_NV.log_softmax(-1)
        if scores.logprobs is not None:
            own_N1 = self._ids[start + 1 : end + 1, None].to(logits_NV.device)
            scores.logprobs[start + 1 : end + 1] = logprobs_NV.gather(1, own_N1).squeeze(1).cpu().numpy()
            scores.logprobs[: self._begin] = np.nan
        if scores.top is not None:
            likeliest = logprobs_NV.topk(self._scoring.prompt_top)
            scores.top.ids[start + 1 : end + 1] = likeliest.indices.cpu().numpy()
            scores.top.logprobs[start + 1 : end + 1] = likeliest.values.cpu().numpy()
            scores.top.ids[: self._begin], scores.top.logprobs[: self._begin] = 0, np.nan
        if scores.targets is not None and self._targets is not None:
            wanted_NK = self._targets[start:end].to(logits_NV.device)
            given_NK = logprobs_NV.gather(1, wanted_NK.clamp_min(0)).masked_fill_(wanted_NK < 0, 0.0)
            scores.targets[start:end] = given_NK.cpu().numpy()
        if scores.drawn is not None:
            self._draw(start, logits_NV, logprobs_NV, scores.drawn)

    def _draw(self, start: int, logits_NV: Tensor, logprobs_NV: Tensor, drawn: TokenLogprobs) -> None:
        end = start + len(logits_NV)
        uniforms_KN = uniforms(self._seeds, [start + 1] * len(self._seeds), len(logits_NV))
        thresholds_NK = torch.from_numpy(uniforms_KN.T.copy()).to(logits_NV.device)
        if self._params.greedy:
            ids_NK = logits_NV.argmax(-1, keepdim=True).expand(-1, len(self._seeds))
        else:
            cumulative_NV = (logits_NV / self._params.temperature).softmax(-1).cumsum(-1)
            ids_NK = torch.searchsorted(cumulative_NV, thresholds_NK * cumulative_NV[:, -1:], right=True)
            ids_NK = ids_NK.clamp_max_(logits_NV.shape[1] - 1)
        drawn.ids[start:end] = ids_NK.cpu().numpy()
        drawn.logprobs[start:end] = logprobs_NV.gather(1, ids_NK).cpu().numpy()


def scorer_of(job: SampleJob) -> PromptScorer | None:
    """None for a request that wants nothing of its prompt."""
    scoring = job.request.scoring
    return PromptScorer(job.request, job.seed) if scoring is not None and scoring.of_prompt else None


def note_likeliest(jobs_B: Sequence[SampleJob | None], drawn: SampledTokens) -> None:
    """For each job whose request wants them, the most probable tokens of those that this one was drawn from."""
    wanted = [(row, job, scoring.top) for row, job in enumerate(jobs_B) if job and (scoring := job.request.scoring)]
    wanted = [(row, job, count) for row, job, count in wanted if count]
    if not wanted:
        return
    rows = torch.tensor([row for row, _, _ in wanted], device=drawn.probs_BV.device)
    likeliest = drawn.probs_BV.index_select(0, rows).topk(max(count for _, _, count in wanted))
    ids, logprobs = likeliest.indices.int().cpu().numpy(), likeliest.values.log().cpu().numpy()
    for number, (_, job, count) in enumerate(wanted):
        job.likeliest.append((ids[number, :count], logprobs[number, :count]))


def answer(job: SampleJob, sample: Sample) -> None:
    """Give the caller its sample, with what was noted of it; an error where its logits are not finite."""
    if job.waiter.done():
        return
    if not math.isfinite(sum(sample.logprobs)):
        job.waiter.set_exception(
            ModelError(f"the weights of policy version {job.marks[-1][0]} give logits that are not finite")
        )
        return
    sample.kept = TokenSets.of(job.kept) if job.kept else None
    if job.scorer is not None:
        sample.prompt_scores = job.scorer.scores
    if job.likeliest:
        ids, logprobs = zip(*job.likeliest, strict=True)
        sample.top = TokenLogprobs(np.stack(ids), np.stack(logprobs))
    job.waiter.set_result(sample)
