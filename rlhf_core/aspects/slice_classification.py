"""Training of span and sentence aspects: is this slice right? Binary cross-entropy on a head read at each slice's end.

Source: ALARM, §3.1; Wu et al. 2023, §4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.data.slices import Span
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.errors import DataError
from rlhf_core.models.policy import pad_rows
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.segmentation.segments import SegmentedSequence, boundary_tokens


@dataclass(frozen=True)
class LabelledSequence:
    """A sequence with the tokens at which its slices end, and whether each slice is right."""

    sequence: SegmentedSequence
    right: list[bool]


def slice_ends(tokenizer: PreTrainedTokenizerBase, sequence: EncodedSequence, slices: Sequence[Span]) -> list[int]:
    """Returns the response token that closes each slice; slices behind a cut response close on its last token."""
    _, spans = token_spans(tokenizer, sequence.response)
    starts = [start for start, end in spans if start < end]
    if not starts:
        return [0] * len(slices)
    return boundary_tokens(starts, [end for _, end in slices])


def slice_logits(model: ScalarModel, batch: Sequence[SegmentedSequence], pad_id: int) -> tuple[Tensor, Tensor]:
    """Returns (logits [batch, max_slices] float32, above 0 where the slice is right; mask of the same shape)."""
    device = next(model.parameters()).device
    prompt_ids, prompt_mask = pad_rows([s.sequence.prompt for s in batch], pad_id, "left")
    response_ids, response_mask = pad_rows([s.sequence.response for s in batch], pad_id, "right")
    ends, _ = pad_rows([s.ends for s in batch], -1, "right")
    states = model.at_ends(*(t.to(device) for t in (prompt_ids, prompt_mask, response_ids, response_mask, ends)))
    return states.values, states.mask


def slice_loss(
    model: ScalarModel, batch: Sequence[LabelledSequence], pad_id: int, error_weight: float = 1.0
) -> tuple[Tensor, float, dict[str, float]]:
    """Returns (sum of the cross-entropies, number of slices, {accuracy: slices told right}).

    Args:
        model: in training.
        batch: rows with at least one slice each.
        pad_id: of the tokenizer.
        error_weight: weight of slices that are wrong, which are fewer.
    """
    logits, mask = slice_logits(model, [row.sequence for row in batch], pad_id)
    labels, _ = pad_rows([[int(r) for r in row.right] for row in batch], 1, "right")
    right = labels.to(logits.device).bool()
    losses = F.binary_cross_entropy_with_logits(logits, right.float(), reduction="none")
    losses = losses * torch.where(right, 1.0, error_weight)
    told = ((logits > 0) == right) & mask
    return torch.where(mask, losses, 0.0).sum(), float(mask.sum()), {"accuracy": float(told.sum())}


@torch.no_grad()
def all_slice_logits(
    model: ScalarModel, sequences: Sequence[SegmentedSequence], pad_id: int, batch: int = 64
) -> list[list[float]]:
    """Returns logits of every slice of every sequence, in batches of similar length."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].sequence))
    found: list[list[float]] = [[] for _ in sequences]
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        logits, _ = slice_logits(model, [sequences[i] for i in chosen], pad_id)
        for row, i in enumerate(chosen):
            found[i] = [float(value) for value in logits[row, : len(sequences[i].ends)].cpu()]
    return found


def classification_scores(said: Sequence[bool], right: Sequence[bool]) -> dict[str, float]:
    """Returns the accuracy and F1 of what was said of slices.

    Args:
        said: whether each slice was called right.
        right: whether it is.

    Returns:
        accuracy; f1 of the two classes' mean, f1_right and f1_wrong of each; share_right; majority, the accuracy of
        always saying the commoner one; slices.

    Raises:
        DataError: no slice.
    """
    if not right or len(said) != len(right):
        raise DataError(f"{len(said)} judgements of {len(right)} slices; accuracy needs at least one slice")
    pairs = list(zip(said, right, strict=True))
    scores = {}
    for name, target in (("right", True), ("wrong", False)):
        true = sum(a == target and b == target for a, b in pairs)
        claimed, actual = sum(a == target for a, _ in pairs), sum(b == target for _, b in pairs)
        scores[f"f1_{name}"] = 2 * true / (claimed + actual) if claimed + actual else 0.0
    share = sum(right) / len(right)
    return {
        "accuracy": sum(a == b for a, b in pairs) / len(pairs),
        "f1": (scores["f1_right"] + scores["f1_wrong"]) / 2,
        **scores,
        "share_right": share,
        "majority": max(share, 1 - share),
        "slices": float(len(right)),
    }
