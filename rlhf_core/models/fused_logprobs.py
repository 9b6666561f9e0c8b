"""Log-probabilities and entropies fused with the output projection: no [tokens, vocabulary] tensor, ever.

The forward pass walks over blocks of the vocabulary and of the tokens and keeps per token a running maximum m,
S = sum exp(z - m) and T = sum exp(z - m) (z - m) of the logits z (online softmax), so that log p = z_target - m - log S
and entropy = log S - T / S. The backward pass computes each block's logits again, turns them into their gradient
-p (g_logprob + g_entropy (log p + entropy)), plus g_logprob at the target, and multiplies it away at once. It costs one
more product with the projection than keeping the logits would.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

#: Logits held at a time: on a processor what its cache holds, on a GPU enough to fill it.
BLOCK_ELEMENTS = {"cpu": 2**20, "cuda": 2**26}
#: Widest block of tokens.
BLOCK_TOKENS = {"cpu": 512, "cuda": 4096}

#: Least logit in an entropy, whose token has no probability; the product of both is 0 and not NaN.
LEAST = -1e30


def can_fuse(output: nn.Module) -> bool:
    """Returns whether the projection is a plain linear layer whose weights may be read without calling it.

    Adapters, quantised layers and parametrisations are other classes; sharding engines gather weights in hooks.
    """
    if type(output) is not nn.Linear or output._forward_hooks or output._forward_pre_hooks:
        return False
    return type(output.weight) in (Tensor, nn.Parameter) and output.weight.shape == (
        output.out_features,
        output.in_features,
    )


def fused_statistics(
    hidden: Tensor,
    targets: Tensor,
    output: nn.Linear,
    *,
    softcap: float | None = None,
    with_entropy: bool = True,
    tokens: int | None = None,
    vocabulary: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each target and entropy of its distribution; differentiable once.

    Logits are computed in the layer's dtype, or autocast's, statistics and sums of gradients in float32 or better.

    Args:
        hidden, targets, softcap, with_entropy: see `token_statistics`.
        output: a layer that `can_fuse`; frozen weights get no gradient.
        tokens, vocabulary: block sizes; by default what suits the device.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else output.weight.dtype
    tokens = tokens or max(1, min(hidden.shape[0], BLOCK_TOKENS.get(device, BLOCK_TOKENS["cuda"])))
    vocabulary = vocabulary or max(1, BLOCK_ELEMENTS.get(device, BLOCK_ELEMENTS["cuda"]) // tokens)
    logprobs, entropies = _FusedStatistics.apply(
        hidden, output.weight, output.bias, targets, softcap, with_entropy, dtype, (tokens, vocabulary)
    )
    return logprobs, entropies


class _Blocks:
    """The logits of one call, block by block."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        softcap: float | None,
        dtype: torch.dtype,
        sizes: tuple[int, int],
    ) -> None:
        self.hidden, self.weight, self.bias = hidden.to(dtype), weight, bias
        self.softcap, self.dtype = softcap, dtype
        self.tokens, self.vocabulary = sizes
        self.statistics = torch.promote_types(dtype, torch.float32)

    def columns(self) -> Iterator[tuple[slice, Tensor]]:
        """Yields (place in the vocabulary, weights [block, hidden] in the dtype of the product)."""
        for start in range(0, self.weight.shape[0], self.vocabulary):
            place = slice(start, min(start + self.vocabulary, self.weight.shape[0]))
            yield place, self.weight[place].to(self.dtype)

    def rows(self) -> Iterator[slice]:
        for start in range(0, self.hidden.shape[0], self.tokens):
            yield slice(start, start + self.tokens)

    def logits(self, rows: slice, columns: slice, weight: Tensor) -> Tensor:
        """Returns [rows, columns] logits in the dtype of statistics, free to be overwritten."""
        if self.bias is None:
            logits = self.hidden[rows] @ weight.t()
        else:
            logits = torch.addmm(self.bias[columns].to(self.dtype), self.hidden[rows], weight.t())
        logits = logits.to(self.statistics)
        return logits.div_(self.softcap).tanh_().mul_(self.softcap) if self.softcap else logits


def _target_columns(targets: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Returns ([rows, 1] column of each target within the block, clamped into it; [rows] whether it lies there)."""
    place = targets - columns.start
    inside = (place >= 0) & (place < columns.stop - columns.start)
    return place.clamp(0, columns.stop - columns.start - 1)[:, None], inside


class _FusedStatistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        softcap: float | None,
        with_entropy: bool,
        dtype: torch.dtype,
        sizes: tuple[int, int],
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            blocks = _Blocks(hidden, weight, bias, softcap, dtype, sizes)
            maximum = torch.full(targets.shape, -torch.inf, dtype=blocks.statistics, device=hidden.device)
            chosen, total, moment = (torch.zeros_like(maximum) for _ in range(3))
            for columns, block in blocks.columns():
                for rows in blocks.rows():
                    logits = blocks.logits(rows, columns, block)
                    place, inside = _target_columns(targets[rows], columns)
                    chosen[rows] = torch.where(inside, logits.gather(1, place).squeeze(1), chosen[rows])
                    top = torch.maximum(maximum[rows], logits.amax(dim=1)).clamp(min=LEAST)
                    logits.sub_(top[:, None]).clamp_(min=LEAST)
                    shift = maximum[rows] - top
                    scale, p = shift.exp(), logits.exp()
                    if with_entropy:
                        before = moment[rows] + total[rows] * shift.clamp(min=torch.finfo(shift.dtype).min)
                        moment[rows] = scale * before + torch.linalg.vecdot(p, logits)
                    total[rows] = scale * total[rows] + p.sum(dim=1)
                    maximum[rows] = top
            logsumexp = maximum + total.log()
            entropies = total.log() - moment / total if with_entropy else torch.zeros_like(total)
        ctx.save_for_backward(hidden, weight, bias, targets, logsumexp, entropies)
        ctx.settings = (softcap, dtype, sizes)
        ctx.set_materialize_grads(False)
        if not with_entropy:
            ctx.mark_non_differentiable(entropies)
        return chosen - logsumexp, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor | None, grad_entropies: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, logsumexp, entropies = ctx.saved_tensors
        softcap, dtype, sizes = ctx.settings
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        with torch.autocast(hidden.device.type, enabled=False):
            blocks = _Blocks(hidden, weight, bias, softcap, dtype, sizes)
            if grad_logprobs is None:
                grad_logprobs = torch.zeros_like(logsumexp)
            constant = -grad_logprobs if grad_entropies is None else -(grad_logprobs + grad_entropies * entropies)
            grad_hidden = torch.zeros(hidden.shape, dtype=blocks.statistics, device=hidden.device)
            grad_weight = torch.empty_like(weight) if wants_weight else None
            grad_bias = torch.empty_like(bias) if wants_bias else None
            for columns, block in blocks.columns():
                block_weight = torch.zeros(block.shape, dtype=blocks.statistics, device=block.device)
                block_bias = torch.zeros(block.shape[0], dtype=blocks.statistics, device=block.device)
                for rows in blocks.rows():
                    logits = blocks.logits(rows, columns, block)
                    slope = 1 - (logits / softcap) ** 2 if softcap else None
                    log_p = logits.sub_(logsumexp[rows, None]).clamp_(min=LEAST)
                    grad = log_p.exp()
                    if grad_entropies is None:
                        grad.mul_(constant[rows, None])
                    else:
                        grad.mul_(log_p.mul_(-grad_entropies[rows, None]).add_(constant[rows, None]))
                    place, inside = _target_columns(targets[rows], columns)
                    grad.scatter_add_(1, place, torch.where(inside, grad_logprobs[rows], 0.0)[:, None])
                    if slope is not None:
                        grad.mul_(slope)
                    if wants_bias:
                        block_bias += grad.sum(dim=0)
                    grad = grad.to(dtype)
                    if wants_hidden:
                        grad_hidden[rows] += grad @ block
                    if wants_weight:
                        block_weight += grad.t() @ blocks.hidden[rows]
                if grad_weight is not None:
                    grad_weight[columns] = block_weight
                if grad_bias is not None:
                    grad_bias[columns] = block_bias
        wanted = grad_hidden.to(hidden.dtype) if wants_hidden else None
        return wanted, grad_weight, grad_bias, None, None, None, None, None
