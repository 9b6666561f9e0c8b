"""Stage `aspect_model`: an aspect's reward model, trained on labelled slices or on pairs that differ in the aspect.

Densities span and sentence tell slices right from wrong (accuracy and F1); sequence ranks pairs (accuracy). It reads
labelled.{train,validation}.jsonl or <aspect>.{train,validation}.jsonl of the data stage, starts from the SFT model, and
writes model/, metrics.json and history.jsonl. Source: ALARM, §3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from rlhf_core import distributed
from rlhf_core.aspects.aspect import SLICERS, Density
from rlhf_core.aspects.slice_classification import (
    LabelledSequence,
    all_slice_logits,
    classification_scores,
    slice_ends,
    slice_loss,
)
from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.data.encoding import Encoder
from rlhf_core.data.slices import relabelled
from rlhf_core.errors import DataError
from rlhf_core.evaluation.reward_models import pairwise_accuracy
from rlhf_core.models.loading import load_language_model
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.preference_training import pair_loss, score_all
from rlhf_core.segmentation.segments import SegmentedSequence
from rlhf_core.supervised.config import TrainingConfig
from tasks.params.aspects import AspectModelSpec
from tasks.params.pages import Address
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.device_settings import apply_supervised_device_settings
from tasks.running.loading import encode, load_encoder
from tasks.running.machine import device
from tasks.running.reused_training import reuse_training
from tasks.running.stage import command_line, name_file_in_numeric_errors, read_spec, run_main
from tasks.running.supervised import train_resumably

#: Increment it when the code changes the result; DVC then runs the stage again.
VERSION = 1
STAGE = "aspect_model"


History = list[dict[str, float]]


@dataclass(frozen=True)
class _Training:
    """Checkpoints of a training, with the inputs and the seed by which stages share it."""

    checkpoints: RunCheckpoints
    inputs: Sequence[Path | str]
    seed: int

    def reused_for(self, rows: Sequence[object]) -> AbstractContextManager[RunCheckpoints | None]:
        """Returns the checkpoints that a training on these rows is reused from."""
        return reuse_training(STAGE, VERSION, self.inputs, rows, self.seed)


def train_aspect_model(
    spec_path: Annotated[Address, "aspect-model spec (YAML)"],
    scale_path: Annotated[Address, "training settings (YAML)"],
    data: Path,
    sft: Path,
    seed: int,
    result: Path,
    checkpoints: RunCheckpoints,
) -> None:
    """Trains the aspect model of a spec from the SFT model and measures it."""
    spec = read_spec(AspectModelSpec, spec_path)
    config = read_spec(TrainingConfig, scale_path)
    encoder = load_encoder(data, sft / "model")
    model = ScalarModel.from_language_model(load_language_model(sft / "model"), seed=seed).to(device())
    fit = _fit_pairs if Density(spec.density) is Density.SEQUENCE else _fit_slices
    training = _Training(checkpoints, [spec_path, scale_path, sft / "model"], seed)
    metrics, history = fit(model, spec, config, data, encoder, training)
    facts = read_json(data / "data.json")
    described = {key: facts[key] for key in ("template", "limits")}
    if not distributed.rank():
        model.save(result / "model", {"aspect": spec.aspect, "density": spec.density, **described})
    encoder.tokenizer.save_pretrained(result / "model")
    write_jsonl(result / "history.jsonl", history)
    write_json(result / "metrics.json", {k: v for k, v in metrics.items() if math.isfinite(v)})


def labelled_sequences(spec: AspectModelSpec, encoder: Encoder, file: Path) -> list[LabelledSequence]:
    """Returns the answers of a file with the ends and truth of their slices; those without a slice are left out.

    Raises:
        DataError: a row without labels of the aspect, or no slice at all.
    """
    rows = read_jsonl(file)
    slicer = SLICERS[Density(spec.density)]
    sequences: list[LabelledSequence] = []
    for number, (row, sequence) in enumerate(zip(rows, encode(encoder, rows, "response", file), strict=True), start=1):
        labels = row.get("labels", {}).get(spec.aspect)
        if not isinstance(labels, list):
            known = ", ".join(sorted(name for name, found in row.get("labels", {}).items() if isinstance(found, list)))
            raise DataError(
                f"no labels of slices for aspect '{spec.aspect}'",
                file=str(file),
                row=number,
                field="labels",
                remedy=f"Labelled aspects: {known or 'none'}",
            )
        slices = slicer(row["response"])
        if slices:
            ends = slice_ends(encoder.tokenizer, sequence, slices)
            sequences.append(LabelledSequence(SegmentedSequence(sequence, ends), relabelled(slices, labels)))
    if not sequences:
        raise DataError("holds no slice to learn from", file=str(file), remedy="Give answers with words in them")
    return sequences


def _fit_slices(
    model: ScalarModel,
    spec: AspectModelSpec,
    config: TrainingConfig,
    data: Path,
    encoder: Encoder,
    training: _Training,
) -> tuple[dict[str, float], History]:
    rows, held_out = (
        labelled_sequences(spec, encoder, data / f"labelled.{split}.jsonl") for split in ("train", "validation")
    )
    kinds = {right for row in rows for right in row.right}
    if len(kinds) < 2:
        raise DataError(
            f"every slice is {'right' if kinds == {True} else 'wrong'} in aspect '{spec.aspect}': nothing to learn",
            file=str(data / "labelled.train.jsonl"),
            field="labels",
            remedy="Give answers with errors and without",
        )

    def loss(indices: Sequence[int]) -> tuple[Tensor, float, dict[str, float]]:
        return slice_loss(model, [rows[i] for i in indices], encoder.pad_id, spec.error_weight)

    def weight(indices: Sequence[int]) -> float:
        return float(sum(len(rows[i].right) for i in indices))

    lengths = [len(row.sequence.sequence) for row in rows]
    batches = LengthBucketedBatches(lengths, seed=training.seed, rows_per_batch=config.batch)
    steps = config.steps(len(rows))
    apply_supervised_device_settings(model, config, max(lengths))
    label = f"aspect {spec.aspect} seed {training.seed}"
    with name_file_in_numeric_errors(data / "labelled.train.jsonl"), training.reused_for(rows) as shared_checkpoints:
        history = train_resumably(
            model, loss, batches, steps, config, weight,
            checkpoints=training.checkpoints, label=label, history_every=5, shared_checkpoints=shared_checkpoints,
        )  # fmt: skip
    logits = all_slice_logits(model, [row.sequence for row in held_out], encoder.pad_id)
    said = [value > 0 for row in logits for value in row]
    return classification_scores(said, [right for row in held_out for right in row.right]), history


def _fit_pairs(
    model: ScalarModel,
    spec: AspectModelSpec,
    config: TrainingConfig,
    data: Path,
    encoder: Encoder,
    training: _Training,
) -> tuple[dict[str, float], History]:
    def pairs(split: str) -> tuple[list[SegmentedSequence], list[SegmentedSequence]]:
        file = data / f"{spec.aspect}.{split}.jsonl"
        rows = read_jsonl(file)
        if not rows:
            raise DataError("holds no pair", file=str(file), remedy="Give pairs that differ in the aspect")
        encoded = (encode(encoder, rows, side, file) for side in ("chosen", "rejected"))
        first, second = ([SegmentedSequence(s, [len(s.response) - 1]) for s in side] for side in encoded)
        return first, second

    (chosen, rejected), (better, worse) = pairs("train"), pairs("validation")

    def loss(indices: Sequence[int]) -> Any:
        return pair_loss(model, [chosen[i] for i in indices], [rejected[i] for i in indices], encoder.pad_id)

    lengths = [max(len(a.sequence), len(b.sequence)) for a, b in zip(chosen, rejected, strict=True)]
    batches = LengthBucketedBatches(lengths, seed=training.seed, rows_per_batch=config.batch)
    steps = config.steps(len(chosen))
    apply_supervised_device_settings(model, config, 2 * max(lengths))
    label = f"aspect {spec.aspect} seed {training.seed}"
    pairs_in_order = list(zip(chosen, rejected, strict=True))
    with (
        name_file_in_numeric_errors(data / f"{spec.aspect}.train.jsonl"),
        training.reused_for(pairs_in_order) as shared_checkpoints,
    ):
        history = train_resumably(
            model, loss, batches, steps, config, lambda indices: float(len(indices)),
            checkpoints=training.checkpoints, label=label, history_every=5, shared_checkpoints=shared_checkpoints,
        )  # fmt: skip
    e, _ = score_all(model, [*better, *worse], encoder.pad_id)
    accuracy = pairwise_accuracy(e[: len(better)], e[len(better) :])
    metrics = {name: float(accuracy[name]) for name in ("accuracy", "lower", "upper")}
    return {**metrics, "pairs": float(len(better))}, history


main = command_line(train_aspect_model, several_processes=True)


if __name__ == "__main__":
    run_main(main, several_processes=True)
