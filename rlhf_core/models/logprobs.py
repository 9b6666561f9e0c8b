"""Log-probabilities and entropies at chosen positions, chunked so that [tokens, vocabulary] is never held whole.

A small vocabulary keeps each chunk's logits for the backward pass. A large one fuses the statistics with the output
projection where that is a plain linear layer, and else computes each chunk's logits again in the backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlhf_core.models.fused_logprobs import LEAST, can_fuse, fused_statistics

#: Above this vocabulary logits are computed again in the backward pass instead of being kept.
RECOMPUTE_VOCABULARY = 8192
#: Logits of one chunk where a large vocabulary cannot be fused.
CHUNK_ELEMENTS = 2**26


def project(hidden: Tensor, output: nn.Module, softcap: float | None) -> Tensor:
    """Returns logits [tokens, vocabulary] float32 of hidden states [tokens, hidden]."""
    logits: Tensor = output(hidden).float()
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def _chunk(
    hidden: Tensor, targets: Tensor, output: nn.Module, softcap: float | None, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    log_p = project(hidden, output, softcap).log_softmax(dim=-1)
    chosen = log_p.gather(1, targets[:, None]).squeeze(1)
    if not with_entropy:
        return chosen, torch.zeros_like(chosen)
    log_p = log_p.clamp(min=LEAST)  # a token that cannot come adds 0 to the entropy, not 0 times infinity
    return chosen, -(log_p.exp() * log_p).sum(dim=-1)


def token_statistics(
    hidden: Tensor,
    targets: Tensor,
    output: nn.Module,
    *,
    softcap: float | None = None,
    chunk: int = 4096,
    with_entropy: bool = True,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each target and Shannon entropy of its predictive distribution, temperature 1.

    Args:
        hidden: [tokens, hidden] states that predict the targets.
        targets: [tokens] int64.
        output: the output projection.
        softcap: Gemma 2's logit soft cap.
        chunk: most tokens per chunk where logits are not fused.
        with_entropy: zeros are returned for the entropy otherwise.

    Returns:
        (log-probabilities [tokens], entropies in nats [tokens]), float32.
    """
    vocabulary = getattr(output, "out_features", 0)
    large = vocabulary > RECOMPUTE_VOCABULARY
    if large and isinstance(output, nn.Linear) and can_fuse(output):
        return fused_statistics(hidden, targets, output, softcap=softcap, with_entropy=with_entropy)
    recompute = large and torch.is_grad_enabled()
    chunk = max(1, min(chunk, CHUNK_ELEMENTS // vocabulary)) if large else chunk
    logprobs, entropies = [], []
    for start in range(0, max(1, hidden.shape[0]), chunk):
        piece, wanted = hidden[start : start + chunk], targets[start : start + chunk]
        if recompute:
            result = checkpoint(_chunk, piece, wanted, output, softcap, with_entropy, use_reentrant=False)
        else:
            result = _chunk(piece, wanted, output, softcap, with_entropy)
        logprobs.append(result[0])
        entropies.append(result[1])
    return torch.cat(logprobs), torch.cat(entropies)
