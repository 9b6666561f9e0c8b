"""A supervised run of a stage: the training loop with its progress, history and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.supervised.training import Batches, Loss, train
from rlhf_core.training_state import State, restoring
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.progress import progress


def train_resumably(
    model: nn.Module,
    loss: Loss,
    batches: Batches,
    steps: int,
    config: TrainingConfig,
    weight: Callable[[Sequence[int]], float],
    *,
    checkpoints: RunCheckpoints,
    label: str,
    history_every: int,
    measured: Callable[[int], Mapping[str, float]] = lambda step: {},
    shared_checkpoints: RunCheckpoints | None = None,
) -> list[dict[str, float]]:
    """Trains from the start or from the last checkpoint; returns the history.

    Args:
        model, loss, batches, steps, config, weight: as for `rlhf_core.supervised.training.train`.
        checkpoints: of this run.
        label: for people.
        history_every: steps from one row of the history to the next; the last step has one too.
        measured: what else a step's row of the history holds; a step that it measures has a row.
        shared_checkpoints: where stages of a study with equal inputs find and leave the finished training
            (`reuse_training`); None outside a study.
    """
    saved = checkpoints.resume(label)
    if saved is None and shared_checkpoints is not None:
        saved = shared_checkpoints.resume(f"{label}, trained by another stage")
    with restoring():
        history: list[dict[str, float]] = [] if saved is None else saved["history"]
        resume: State | None = None if saved is None else saved["training"]
        done = 0 if resume is None else int(resume["step"])
    with progress(label, steps, done) as advance:

        def on_step(step: int, metrics: dict[str, float]) -> None:
            advance(**{name: metrics[name] for name in ("loss", "accuracy") if name in metrics})
            model.eval()
            further = measured(step)
            model.train()
            if further or step % history_every == 0 or step == steps:
                history.append({"step": step, **metrics, **further})
                checkpoints.note(history)

        def on_checkpoint(step: int, training: Callable[[], State]) -> None:
            for store in (checkpoints, shared_checkpoints) if step == steps else (checkpoints,):
                if store is not None:
                    store.offer(step, lambda: {"training": training(), "history": history})

        train(model, loss, batches, steps, config, on_step, weight, resume=resume, on_checkpoint=on_checkpoint)
    return history
