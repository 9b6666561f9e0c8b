"""Read-outs: how a trained reward model turns rollouts into a signal.

A reward model that was trained with end tokens reads a text of its own: the response's sentences with `<END>`
behind each. Its values come back to the policy's tokens by the sentences' characters.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_core import distributed
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.errors import RecipeError
from rlhf_core.models.policy import pad_rows
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.passes import microbatches
from rlhf_core.rewards.aggregation import Aggregated, Aggregation
from rlhf_core.rewards.reads import READS
from rlhf_core.rollout import Responses, RolloutBatch
from rlhf_core.segmentation.end_tokens import with_end_tokens
from rlhf_core.segmentation.segments import Segmentation, Segmenter
from rlhf_core.signals import Segments, Sequence, SignalType


def read_ends(values: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Returns [batch, max_segments] float32: token values at segment ends, 0 beyond each row's count."""
    return torch.where(ends >= 0, values.gather(1, ends.clamp(min=0)), 0.0)


@dataclass
class RewardModelScorer:
    """Reads a scalar head at the ends of a segmentation.

    Args:
        model: the reward model, in evaluation mode.
        segmenter: where it is read; not necessarily where it was trained.
        read: a name in `READS`.
        head: which head.
        microbatch: longest rows per forward pass.
        aggregation: how the model aggregates, for 'weighted' and 'aggregate'.
        base: of the first difference, one of `BASES`.
        tokenizer: of policy and reward model; needed by segmenters of characters and by end tokens.
        end_token: id of `<END>`, the special token behind every sentence, where the model was trained with it.
    """

    model: ScalarModel
    segmenter: Segmenter
    read: str = "value"
    head: str = "reward"
    microbatch: int = 64
    aggregation: Aggregation = Aggregation("mean")  # noqa: RUF009 (frozen)
    base: str = "prompt"
    tokenizer: PreTrainedTokenizerBase | None = None
    end_token: int | None = None

    def __post_init__(self) -> None:
        READS[self.read]
        if self.end_token is not None and not (self.segmenter.needs_spelling and self.tokenizer is not None):
            raise RecipeError("a reward model with end tokens is read at sentences: use a segmenter of kind sat")
        self.model.eval()

    @property
    def gives(self) -> SignalType:
        return READS[self.read].gives

    @torch.no_grad()
    def token_values(self, batch: RolloutBatch) -> torch.Tensor:
        """Returns [batch, response_len] float32: the head at every response token."""
        mask = batch.responses.mask
        values = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
        for rows, inputs in microbatches(batch.inputs, self.microbatch, packed=self.model.packs):
            values[rows, : inputs[3].shape[1]] = self.model(*inputs, head=self.head)
        return distributed.merged(values)

    def spelled(self, responses: Responses) -> Responses:
        """Returns responses with their tokens' characters, where the segmenter asks for them."""
        if not self.segmenter.needs_spelling or self.tokenizer is None or responses.spelling is not None:
            return responses
        rows = [ids[mask].tolist() for ids, mask in zip(responses.ids, responses.mask, strict=True)]
        return replace(responses, spelling=[token_spans(self.tokenizer, row) for row in rows])

    @torch.no_grad()
    def aggregated(self, batch: RolloutBatch, responses: Responses, segmentation: Segmentation) -> Aggregated:
        """Returns every segment's reward and weight, and the response's reward."""
        ids, mask, ends = responses.ids, responses.mask, segmentation.ends
        if self.end_token is not None:
            ids, mask, ends = self._own_view(responses, segmentation)
        shape = segmentation.ends.shape
        total = torch.zeros(shape[0], device=ids.device)
        rewards, weights = torch.zeros(shape, device=ids.device), torch.zeros(shape, device=ids.device)
        view = batch.prompt_ids, batch.prompt_mask, ids, mask
        for rows, inputs in microbatches(view, self.microbatch, packed=self.model.packs):
            states = self.model.at_ends(*inputs, ends[rows], head=self.head)
            found = READS[self.read].rewards(states, self.aggregation, self.base)
            total[rows], rewards[rows], weights[rows] = found.total, found.rewards, found.weights
        return Aggregated(distributed.merged(total), distributed.merged(rewards), distributed.merged(weights))

    def _own_view(
        self, responses: Responses, segmentation: Segmentation
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns (ids, mask, ends) of the responses with `<END>` behind each sentence."""
        assert self.tokenizer is not None
        assert self.end_token is not None
        texts = [responses.spelled(row)[0] for row in range(len(responses.ids))]
        sentences: Several[list[int]] = self.segmenter.sentence_ends(texts)  # type: ignore[attr-defined]
        views = [
            with_end_tokens(self.tokenizer, text, found, self.end_token)
            for text, found in zip(texts, sentences, strict=True)
        ]
        ids, mask = pad_rows([view for view, _ in views], int(self.tokenizer.pad_token_id or 0), "right")
        ends, _ = pad_rows([places for _, places in views], -1, "right")
        device = responses.ids.device
        return ids.to(device), mask.to(device), ends.to(device)

    def score(self, batch: RolloutBatch) -> Segments | Sequence:
        responses = self.spelled(batch.responses)
        if self.needs_token_values_only:
            return self.read_out(self.token_values(batch), responses)
        segmentation = self.segmenter.segment(responses)
        found = self.aggregated(batch, responses, segmentation)
        return READS[self.read].signal(found, segmentation)

    @property
    def needs_token_values_only(self) -> bool:
        """Returns whether the head's values at the response's tokens give the signal."""
        return self.end_token is None and READS[self.read].enough(self.aggregation)

    def read_out(self, values: torch.Tensor, responses: Responses) -> Segments | Sequence:
        """Returns the signal of responses whose head values [batch, response_len] are known.

        Raises:
            RecipeError: a read-out that needs more than those.
        """
        if not self.needs_token_values_only:
            with_ends = " with end tokens" if self.end_token is not None else ""
            raise RecipeError(
                f"the read-out '{self.read}' of a reward model of aggregation '{self.aggregation.kind}'{with_ends} is "
                "not known from head values at every token; use 'value', or 'aggregate' of aggregation 'mean', "
                "without end tokens"
            )
        segmentation = self.segmenter.segment(self.spelled(responses))
        segments = Segments(read_ends(values, segmentation.ends), segmentation)
        of_token_values = READS[self.read].of_token_values
        assert of_token_values is not None
        return of_token_values(segments)
