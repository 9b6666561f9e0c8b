"""Training a reward model on preference pairs: Bradley-Terry loss over aggregated segment rewards.

e(x, y) aggregates the head's values at segment ends, by their plain mean unless told otherwise. Source: Segment, Eq. 3
and 4; Sentence, §3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.data.batching import own_rows_by_length
from rlhf_core.models.policy import pad_rows, pad_sequences
from rlhf_core.models.response_states import PACKED
from rlhf_core.models.reward_model import ScalarModel, SegmentStates, read_head
from rlhf_core.rewards.aggregation import Aggregated, Aggregation
from rlhf_core.rewards.preference_losses import BRADLEY_TERRY, PreferenceLoss
from rlhf_core.rewards.readout import read_ends
from rlhf_core.segmentation.segments import SegmentedSequence

PLAIN_MEAN = Aggregation("mean")


def aggregate(
    model: ScalarModel,
    batch: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    head: str = "reward",
) -> tuple[Aggregated, Tensor]:
    """Returns (rewards of the responses and their segments, ends [batch, max_segments] with -1 beyond each count)."""
    device = next(model.parameters()).device
    ends = pad_rows([s.ends for s in batch], -1, "right")[0].to(device)
    states = model.at_ends(*pad_sequences([s.sequence for s in batch], pad_id, device), ends, head=head)
    return aggregation(states), ends


def can_share_prompts(model: ScalarModel, longest: int) -> bool:
    """Returns whether the backbone honours a mask of its own making for sequences of up to `longest` tokens.

    Encoder-decoders read the prompt apart anyway; flash attention takes no mask; a sliding window would be lost; packed
    rows have a mask of their own.
    """
    if getattr(model.backbone, PACKED, False):
        return False
    config = model.backbone.config
    attention = getattr(config, "_attn_implementation", None)
    window = getattr(config, "sliding_window", None) or longest
    return not config.is_encoder_decoder and attention in ("sdpa", "eager") and longest <= window


def head_evaluations(
    model: ScalarModel,
    chosen: Sequence[SegmentedSequence],
    rejected: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    heads: Sequence[str] = ("reward",),
) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the sequence evaluations by each head, of the chosen and of the rejected.

    Each prompt is computed once if it can be; then all heads share one forward pass, too.
    """
    longest = max(len(s.sequence) for s in (*chosen, *rejected))
    same = all(a.sequence.prompt == b.sequence.prompt for a, b in zip(chosen, rejected, strict=True))
    if same and can_share_prompts(model, longest):
        return _shared_evaluations(model, chosen, rejected, pad_id, aggregation, heads)
    found = {head: aggregate(model, [*chosen, *rejected], pad_id, aggregation, head)[0].total for head in heads}
    return {head: (e[: len(chosen)], e[len(chosen) :]) for head, e in found.items()}


def shared_prompt_mask(prompts: Tensor, chosen: Tensor, rejected: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the attention and positions of rows of a prompt, its chosen and its rejected response, and padding.

    Both responses attend to the prompt and to their own past, and both go on counting positions where it ends.

    Args:
        prompts, chosen, rejected: [pairs] tokens of each part.

    Returns:
        (mask [pairs, length, length] bool, True where the row's token attends to the column's, padding to itself;
        positions [pairs, length]).
    """
    first, second = prompts + chosen, prompts + chosen + rejected
    place = torch.arange(int(second.max()), device=prompts.device)[None]
    part = (place >= prompts[:, None]).long() + (place >= first[:, None]) + (place >= second[:, None])
    own = part[:, :, None] == part[:, None, :]
    past = place[0][:, None] >= place[0][None, :]
    real = (part < 3)[:, :, None]
    mask = (past & real & (own | (part == 0)[:, None, :])) | torch.eye(place.shape[1], dtype=torch.bool).to(own.device)
    return mask, torch.where(part == 2, place - chosen[:, None], place)


def _shared_evaluations(
    model: ScalarModel,
    chosen: Sequence[SegmentedSequence],
    rejected: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation,
    heads: Sequence[str],
) -> dict[str, tuple[Tensor, Tensor]]:
    device = next(model.parameters()).device
    rows = [[*a.sequence.prompt, *a.sequence.response, *b.sequence.response]
            for a, b in zip(chosen, rejected, strict=True)]  # fmt: skip
    ids, _ = pad_rows(rows, pad_id, "right")
    prompts, good, bad = (
        torch.tensor(lengths, device=device)
        for lengths in (
            [len(s.sequence.prompt) for s in chosen],
            *([len(s.sequence.response) for s in side] for side in (chosen, rejected)),
        )
    )
    mask, positions = shared_prompt_mask(prompts, good, bad)
    dtype = model.backbone.dtype  # every attention takes a mask of 0 and of the least number in the model's dtype
    additive = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill(~mask, torch.finfo(dtype).min)
    hidden = model.backbone(
        input_ids=ids.to(device), attention_mask=additive[:, None], position_ids=positions, use_cache=False
    ).last_hidden_state
    evaluated = {}
    for head in heads:
        values = read_head(model.heads[head], hidden).squeeze(-1)
        sides = ((chosen, prompts), (rejected, prompts + good))
        good_e, bad_e = (aggregation(_states(model, hidden, values, prompts, *side)).total for side in sides)
        evaluated[head] = (good_e, bad_e)
    return evaluated


def _states(
    model: ScalarModel,
    hidden: Tensor,
    values: Tensor,
    prompts: Tensor,
    side: Sequence[SegmentedSequence],
    start: Tensor,
) -> SegmentStates:
    """Returns the values at segment ends of responses that start `start` [pairs] positions behind shared prompts.

    States are [pairs, length, hidden], a head's values of them [pairs, length]; prompts have [pairs] lengths.
    """
    ends, read = pad_rows([s.ends for s in side], -1, "right")
    ends, read = ends.to(values.device), read.to(values.device)
    places = torch.where(read, ends + start[:, None], -1)
    return SegmentStates(
        values=read_ends(values, places),
        mask=read,
        base=values.gather(1, prompts[:, None] - 1).squeeze(1),
        hidden=hidden.gather(1, places.clamp(min=0)[..., None].expand(-1, -1, hidden.shape[-1])),
        heads=dict(model.projections.items()),
    )


def pair_loss(
    model: ScalarModel,
    chosen: Sequence[SegmentedSequence],
    rejected: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    loss: PreferenceLoss = BRADLEY_TERRY,
) -> tuple[Tensor, float, dict[str, float]]:
    """Returns (sum of the loss over pairs, number of pairs, sums of measures); one forward pass for both sides.

    Accuracy and margin are of the loss's first head.
    """
    evaluated = head_evaluations(model, chosen, rejected, pad_id, aggregation, loss.heads)
    good, bad = evaluated[loss.heads[0]]
    lengths = [torch.tensor([float(len(s.sequence.response)) for s in side], device=good.device)
               for side in (chosen, rejected)]  # fmt: skip
    total, measures = loss(evaluated, (lengths[0], lengths[1]), dict(model.heads.items()))
    measures = {"accuracy": float((good > bad).sum()), "margin": float((good - bad).detach().sum()), **measures}
    return total, float(len(chosen)), measures


@torch.no_grad()
def score_parts(
    model: ScalarModel,
    sequences: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    batch: int = 64,
    head: str = "reward",
) -> tuple[Tensor, list[dict[str, list[float]]]]:
    """Returns (rewards e [n] float32 of responses; `worth`, `rewards` and `weights` of each one's segments)."""
    result = torch.zeros(len(sequences))
    parts: list[dict[str, list[float]]] = [{} for _ in sequences]
    for rows in own_rows_by_length([len(each.sequence) for each in sequences], batch):
        found, ends = aggregate(model, [sequences[i] for i in rows], pad_id, aggregation, head)
        result[rows] = found.total.float().cpu()
        for name, values in (("worth", found.worth), ("rewards", found.rewards), ("weights", found.weights)):
            for i, row_values, row_ends in zip(rows, values.tolist(), ends.tolist(), strict=True):
                parts[i][name] = [v for v, end in zip(row_values, row_ends, strict=True) if end >= 0]
    everyone = distributed.gathered(parts)
    parts = [next((rows[i] for rows in everyone if rows[i]), {}) for i in range(len(sequences))]
    return distributed.merged(result), parts


def score_all(
    model: ScalarModel,
    sequences: Sequence[SegmentedSequence],
    pad_id: int,
    aggregation: Aggregation = PLAIN_MEAN,
    batch: int = 64,
    head: str = "reward",
) -> tuple[Tensor, list[list[float]]]:
    """Returns (rewards e [n] float32 of responses; the worth of each one's segments)."""
    result, parts = score_parts(model, sequences, pad_id, aggregation, batch, head)
    return result, [part["worth"] for part in parts]
