"""A supervised run of a stage: what it minimises, and the training loop with its progress, history and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rlhf_core import distributed
from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.policy import Policy
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.passes import pair_tokens
from rlhf_core.rewards.aggregation import Aggregation
from rlhf_core.rewards.preference_losses import BRADLEY_TERRY, PreferenceLoss
from rlhf_core.rewards.preference_training import PLAIN_MEAN, pair_loss
from rlhf_core.segmentation.segments import SegmentedSequence
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.supervised.objectives import Objective, sft_loss
from rlhf_core.supervised.training import train
from rlhf_core.training_state import State, restoring
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.device_settings import apply_supervised_device_settings
from tasks.running.progress import progress
from tasks.running.stage import name_file_in_numeric_errors


class Likelihood:
    """-log p of responses, divided by the number of their tokens."""

    every, compared = 10, False

    def __init__(self, policy: Policy, sequences: Sequence[EncodedSequence]) -> None:
        self.policy, self.sequences = policy, sequences
        self.lengths = [len(sequence) for sequence in sequences]

    def loss(self, rows: Sequence[int]) -> tuple[Tensor, float, dict[str, float]]:
        return *sft_loss(self.policy, [self.sequences[i] for i in rows]), {}

    def weight(self, rows: Sequence[int]) -> float:
        return float(sum(len(self.sequences[i].response) for i in rows))


class PairComparison:
    """A reward model's loss on pairs of responses, divided by the number of pairs."""

    every = 5

    def __init__(
        self,
        model: ScalarModel,
        chosen: Sequence[SegmentedSequence],
        rejected: Sequence[SegmentedSequence],
        pad_id: int,
        aggregation: Aggregation = PLAIN_MEAN,
        preference_loss: PreferenceLoss = BRADLEY_TERRY,
    ) -> None:
        self.model, self.chosen, self.rejected, self.pad_id = model, chosen, rejected, pad_id
        self.aggregation, self.preference_loss = aggregation, preference_loss
        self.compared = preference_loss.minimum_pairs > 1
        self.lengths = pair_tokens([a.sequence for a in chosen], [b.sequence for b in rejected], packed=model.packs)

    def loss(self, rows: Sequence[int]) -> tuple[Tensor, float, dict[str, float]]:
        sides = [self.chosen[i] for i in rows], [self.rejected[i] for i in rows]
        return pair_loss(self.model, *sides, self.pad_id, self.aggregation, self.preference_loss)

    def weight(self, rows: Sequence[int]) -> float:
        return float(len(rows))


def fit(
    model: nn.Module,
    target: Objective,
    config: TrainingConfig,
    *,
    seed: int,
    checkpoints: RunCheckpoints,
    label: str,
    file: Path,
    shared: AbstractContextManager[RunCheckpoints | None] | None = None,
    frozen: Sequence[nn.Module] = (),
    measured: Callable[[int], Mapping[str, float]] = lambda step: {},
) -> list[dict[str, float]]:
    """Trains a model on all rows of a target, with the settings of the device that it is on; returns the history.

    Args:
        model, config: trained in place, and how.
        target: its loss over the rows.
        seed: of the order of rows.
        checkpoints, label, measured: see `train_resumably`.
        file: of the rows, which an error of their numbers names.
        shared: gives the checkpoints that stages share (`reuse_training`).
        frozen: models that are held beside it.
    """
    apply_supervised_device_settings(model, config, max(target.lengths), frozen)
    with name_file_in_numeric_errors(file), shared or nullcontext() as reused:
        return train_resumably(
            model, target, config, seed=seed, checkpoints=checkpoints, label=label, measured=measured, shared=reused
        )


def write_model(result: Path, save: Callable[[Path], object], tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes a trained model with its tokenizer into a result.

    Ranks other than 0 write to a folder that is thrown away, so they write no model, which is large.
    """
    if not distributed.rank():
        save(result / "model")
    tokenizer.save_pretrained(result / "model")


def train_resumably(
    model: nn.Module,
    target: Objective,
    config: TrainingConfig,
    *,
    seed: int,
    checkpoints: RunCheckpoints,
    label: str,
    measured: Callable[[int], Mapping[str, float]] = lambda step: {},
    shared: RunCheckpoints | None = None,
) -> list[dict[str, float]]:
    """Trains from the start or from the last checkpoint; returns the history.

    Args:
        checkpoints: of this run.
        label: for people.
        measured: what else a step's row of the history holds; a step that it measures has a row.
        shared: where stages of a study with equal inputs find and leave the finished training (`reuse_training`).
    """
    batches = LengthBucketedBatches(target.lengths, seed=seed, rows_per_batch=config.batch)
    steps = config.steps(len(target.lengths))
    saved = checkpoints.resume(label)
    if saved is None and shared is not None:
        saved = shared.resume(f"{label}, trained by another stage")
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
            if further or step % target.every == 0 or step == steps:
                history.append({"step": step, **metrics, **further})
                checkpoints.note(history)

        def on_checkpoint(step: int, training: Callable[[], State]) -> None:
            for store in (checkpoints, shared) if step == steps else (checkpoints,):
                if store is not None:
                    store.offer(step, lambda: {"training": training(), "history": history})

        train(
            model, target.loss, batches, steps, config, on_step, target.weight, compared=target.compared,
            resume=resume, on_checkpoint=on_checkpoint,
        )  # fmt: skip
    return history
