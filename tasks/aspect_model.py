"""Stage `aspect_model`: an aspect's reward model, trained on labelled slices or on pairs that differ in the aspect.

Densities span and sentence tell slices right from wrong (accuracy and F1); sequence ranks pairs (accuracy). It reads
labelled.{train,validation}.jsonl or <aspect>.{train,validation}.jsonl of the data stage, starts from the SFT model, and
writes model/, metrics.json and history.jsonl. Source: ALARM, §3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from torch import Tensor

from rlhf_core.aspects.aspect import SLICERS, Density
from rlhf_core.aspects.slice_classification import (
    LabelledSequence,
    all_slice_logits,
    classification_scores,
    slice_ends,
    slice_loss,
)
from rlhf_core.data.encoding import Encoder, whole_pairs
from rlhf_core.data.slices import relabelled
from rlhf_core.errors import DataError
from rlhf_core.evaluation.reward_bench import pairwise_accuracy
from rlhf_core.models.loading import load_language_model
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.preference_training import score_all
from rlhf_core.segmentation.segments import SegmentedSequence
from rlhf_core.supervised.config import TrainingConfig
from tasks.params.aspects import AspectModelSpec
from tasks.params.pages import Address
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl
from tasks.running.checkpoints import RunCheckpoints, reuse_training
from tasks.running.loading import encode, load_encoder
from tasks.running.machine import device
from tasks.running.stage import read_spec, stage
from tasks.running.supervised import PairComparison, fit, write_model

VERSION = 2
STAGE = "aspect_model"


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
    learned = (_Pairs if Density(spec.density) is Density.SEQUENCE else _Slices)(model, spec, data, encoder)
    history = fit(
        model,
        learned.target,
        config,
        seed=seed,
        checkpoints=checkpoints,
        label=f"aspect {spec.aspect} seed {seed}",
        file=learned.file,
        shared=reuse_training(STAGE, VERSION, [spec_path, scale_path, sft / "model"], learned.rows, seed),
    )
    metrics = learned.measured()
    facts = read_json(data / "data.json")
    described = {key: facts[key] for key in ("template", "limits")}
    described |= {"aspect": spec.aspect, "density": spec.density}
    write_model(result, partial(model.save, config=described), encoder.tokenizer)
    write_jsonl(result / "history.jsonl", history)
    write_json(result / "metrics.json", {k: v for k, v in metrics.items() if math.isfinite(v)})


def labelled_sequences(spec: AspectModelSpec, encoder: Encoder, file: Path) -> list[LabelledSequence]:
    """Returns the answers of a file with the ends and truth of their slices; those without a slice are left out.

    Raises:
        DataError: no slice at all.
    """
    rows = read_jsonl(file)
    sequences: list[LabelledSequence] = []
    for row, sequence in zip(rows, encode(encoder, rows, "response", file), strict=True):
        if slices := SLICERS[Density(spec.density)](row["response"]):
            ends = slice_ends(encoder.tokenizer, sequence, slices)
            right = relabelled(slices, row["labels"][spec.aspect])
            sequences.append(LabelledSequence(SegmentedSequence(sequence, ends), right))
    if not sequences:
        raise DataError("holds no slice to learn from", file=str(file), remedy="Give answers with words in them")
    return sequences


class _SliceLoss:
    """The loss of telling right slices from wrong ones, divided by the number of slices."""

    every, compared = 5, False

    def __init__(self, model: ScalarModel, rows: Sequence[LabelledSequence], pad_id: int, error_weight: float) -> None:
        self.model, self.rows, self.pad_id, self.error_weight = model, rows, pad_id, error_weight
        self.lengths = [len(row.sequence.sequence) for row in rows]

    def loss(self, rows: Sequence[int]) -> tuple[Tensor, float, dict[str, float]]:
        return slice_loss(self.model, [self.rows[i] for i in rows], self.pad_id, self.error_weight)

    def weight(self, rows: Sequence[int]) -> float:
        return float(sum(len(self.rows[i].right) for i in rows))


class _Slices:
    """Slices of answers, labelled right or wrong in an aspect.

    Raises:
        DataError: no slice, or slices of one label alone.
    """

    def __init__(self, model: ScalarModel, spec: AspectModelSpec, data: Path, encoder: Encoder) -> None:
        self.model, self.pad_id = model, encoder.pad_id
        self.file, validation = (data / f"labelled.{split}.jsonl" for split in ("train", "validation"))
        self.rows, self.held_out = (labelled_sequences(spec, encoder, file) for file in (self.file, validation))
        kinds = {right for row in self.rows for right in row.right}
        if len(kinds) < 2:
            raise DataError(
                f"every slice is {'right' if kinds == {True} else 'wrong'} in aspect '{spec.aspect}': nothing to learn",
                file=str(self.file),
                field="labels",
                remedy="Give answers with errors and without",
            )
        self.target = _SliceLoss(model, self.rows, encoder.pad_id, spec.error_weight)

    def measured(self) -> dict[str, float]:
        logits = all_slice_logits(self.model, [row.sequence for row in self.held_out], self.pad_id)
        said = [value > 0 for row in logits for value in row]
        return classification_scores(said, [right for row in self.held_out for right in row.right])


class _Pairs:
    """Pairs of answers that differ in an aspect.

    Raises:
        DataError: no pair.
    """

    def __init__(self, model: ScalarModel, spec: AspectModelSpec, data: Path, encoder: Encoder) -> None:
        self.model, self.pad_id = model, encoder.pad_id
        self.file, validation = (data / f"{spec.aspect}.{split}.jsonl" for split in ("train", "validation"))
        (chosen, rejected), train_dropped = _whole_pairs(encoder, self.file)
        (self.better, self.worse), dropped = _whole_pairs(encoder, validation)
        counts = {"train_pairs_dropped": train_dropped, "validation_pairs_dropped": dropped}
        self.dropped = {name: float(count) for name, count in counts.items() if count}
        self.rows = list(zip(chosen, rejected, strict=True))
        self.target = PairComparison(model, chosen, rejected, encoder.pad_id)

    def measured(self) -> dict[str, float]:
        count = len(self.better)
        rewards, _ = score_all(self.model, [*self.better, *self.worse], self.pad_id)
        accuracy = pairwise_accuracy(rewards[:count], rewards[count:])
        bounds = {"lower": accuracy.lower, "upper": accuracy.upper}
        return {"accuracy": accuracy.estimate, **bounds, "pairs": float(count), **self.dropped}


def _whole_pairs(encoder: Encoder, file: Path) -> tuple[list[list[SegmentedSequence]], int]:
    """Returns the better and the worse answers of a file's pairs that the limits leave whole, each one segment, and the
    number of the other pairs."""
    rows = read_jsonl(file)
    if not rows:
        raise DataError("holds no pair", file=str(file), remedy="Give pairs that differ in the aspect")
    chosen, rejected = (encode(encoder, rows, side, file) for side in ("chosen", "rejected"))
    whole = whole_pairs(chosen, rejected, encoder.eos_id, file=str(file))
    sides = [[SegmentedSequence(s, [len(s.response) - 1]) for s in side] for side in (whole.chosen, whole.rejected)]
    return sides, whole.dropped


main = stage(train_aspect_model, several_processes=True)
