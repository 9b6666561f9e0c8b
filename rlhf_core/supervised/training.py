"""One training loop for every loss over a fixed data set (SFT, reward models, DPO)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from rlhf_core import distributed
from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.errors import NumericsError
from rlhf_core.passes import RowTokens
from rlhf_core.stepper import Stepper, stepper_of
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.training_state import OnCheckpoint, State, load_trainable_state, restoring, trainable_state

#: rows of a microbatch -> (sum of the loss, what it is divided by, further sums to report)
Loss = Callable[[Sequence[int]], tuple[Tensor, float, dict[str, float]]]


def train(
    model: nn.Module,
    loss: Loss,
    batches: LengthBucketedBatches,
    steps: int,
    config: TrainingConfig,
    on_step: Callable[[int, dict[str, float]], None],
    weight: Callable[[Sequence[int]], float],
    *,
    compared: bool = False,
    resume: State | None = None,
    on_checkpoint: OnCheckpoint | None = None,
) -> None:
    """Runs optimiser steps until `steps` are done.

    The loss of a batch is its sum over microbatches divided by the batch's total weight (real tokens, pairs), so
    that accumulation equals one big batch.

    Args:
        model: trained in place.
        loss, weight: of the rows of a microbatch, and what a batch's loss sum is divided by.
        batches: row indices per step, without end.
        steps: optimiser steps in all, those before a resumption included.
        on_step: sees (step from 1, metrics).
        compared: whether the loss compares the rows of a pass, which has `microbatch` of them then, short ones too.
        resume: a state that `on_checkpoint` got. The rest of the run is then bitwise that of an uninterrupted one,
            given the same state of the global random generators.
        on_checkpoint: sees (step, function that returns the loop's state) after `on_step`.

    Raises:
        NumericsError: non-finite loss or gradient.
    """
    stepper = stepper_of(
        model, "adamw", rate=config.learning_rate, betas=config.betas, max_grad_norm=config.max_grad_norm,
        weight_decay=config.weight_decay,
    )  # fmt: skip
    done = 0
    if resume is not None:
        with restoring():
            saved = resume["model"]
            stepper.write(lambda: load_trainable_state(model, saved))
            stepper.load_optimiser_state(resume["optimiser"])
            batches.load_state_dict(resume["batches"])
            done = int(resume["step"])

    def state() -> State:
        return {
            "step": done,
            "model": stepper.read(lambda: trainable_state(model)),
            "optimiser": stepper.optimiser_state(),
            "batches": batches.state_dict(),
        }

    model.train()
    tokens = RowTokens([1] * len(batches.lengths) if compared else batches.lengths.tolist(), packed=False)
    for step, rows in zip(range(done, steps), batches, strict=False):
        rate = config.learning_rate * config.rate(step, steps)
        stepper.set_rate(rate)
        metrics = accumulate(stepper, loss, rows, weight(rows), tokens, config.microbatch)

        def check(norm: float, step: int = step, found: float = metrics["loss"], rows: Sequence[int] = rows) -> None:
            if not math.isfinite(found) or not math.isfinite(norm):
                raise NumericsError(
                    f"step {step + 1}: loss {found}, gradient norm {norm}, rows {list(rows)[:8]}...; "
                    "lower the learning rate or look at these rows"
                )

        norm = stepper.step(check)
        done = step + 1
        on_step(done, {**metrics, "grad_norm": norm, "learning_rate": rate})
        if on_checkpoint is not None:
            on_checkpoint(done, state)
    stepper.close()
    model.eval()


def accumulate(
    stepper: Stepper, loss: Loss, rows: Sequence[int], total: float, tokens: RowTokens, microbatch: int
) -> dict[str, float]:
    """Adds the gradient of a batch's loss, each rank for its rows, and returns means over the whole batch.

    The loss is a sum over rows, divided by `total` in the whole batch; a forward pass takes as many tokens
    as `microbatch` of the longest rows have.
    """
    stepper.zero_grad()
    sums: dict[str, float] = {"loss": 0.0}
    counted = 0.0
    for part, counts in tokens.shares([[i] for i in rows], microbatch):
        value, divisor, further = stepper.forward(lambda part=part: loss(part))  # type: ignore[misc]
        stepper.backward((value if counts else 0.0 * value) / max(total, 1.0))
        sums["loss"] += float(value.detach()) * counts
        counted += divisor * counts
        for name, amount in further.items():
            sums[name] = sums.get(name, 0.0) + amount * counts
    everywhere = distributed.summed_numbers({**sums, "": counted})
    counted = everywhere.pop("")
    return {name: amount / max(counted, 1.0) for name, amount in everywhere.items()}
