"""Stage `reward_model`: Bradley-Terry training on segment rewards aggregated by their mean, and its measures.

Reports pairwise accuracy (strict), calibration, the annotator's Bayes ceiling, and, where true clause rewards are
known, credit-assignment fidelity: how well the reward paid to each clause agrees with the clause's true reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from rlhf_core import distributed
from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.fidelity import ScoredResponse, boundary_scores, fidelity
from rlhf_core.evaluation.reward_models import calibration, pairwise_accuracy
from rlhf_core.models.loading import load_language_model
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.preference_training import SegmentedSequence, pair_loss, score_all
from rlhf_core.segmentation import Segmentation, Segmenter, build_segmenter
from rlhf_core.supervised.training import TrainingConfig
from tasks.artifacts import check_version, read_json, read_jsonl, write_json, write_jsonl
from tasks.checkpoints import RunCheckpoints, resumable_output
from tasks.entropies import load_entropies, resolve_segmenter
from tasks.launch import join_processes
from tasks.loading import load_encoder
from tasks.settings import read_settings, typed
from tasks.stage import command_line, device, run_stage, training_on
from tasks.supervised import train_resumably

VERSION = 4
STAGE = "reward_model"

Row = dict[str, Any]


@dataclass(frozen=True)
class RewardModelSpec:
    """A reward model: how responses are cut into segments, and how segment rewards become a preference.

    Args:
        title: for people.
        backbone: which SFT model it starts from.
        segmenter: `{kind: entropy, cutoff: "1.75"}` and the like.
        aggregation: 'mean' of the segment rewards.
        loss: 'bradley_terry' on the aggregated rewards.
    """

    title: str
    backbone: str
    segmenter: Mapping[str, Any]
    aggregation: str
    loss: str

    def __post_init__(self) -> None:
        if self.aggregation != "mean":
            raise RecipeError(f"aggregation is '{self.aggregation}'; known: mean")
        if self.loss != "bradley_terry":
            raise RecipeError(f"loss is '{self.loss}'; known: bradley_terry")


@dataclass(frozen=True)
class SegmentedPairs:
    """Preference pairs of one split, cut into segments: chosen then rejected responses."""

    rows: list[Row]
    sequences: list[SegmentedSequence]
    spans: list[list[tuple[int, int]]]

    @property
    def pairs(self) -> int:
        return len(self.rows)


def segment_pairs(
    rows: list[Row], encoder: Encoder, segmenter: Segmenter, entropies: list[list[float]] | None, chunk: int = 512
) -> SegmentedPairs:
    """Encodes and segments both responses of every pair."""
    encoded = [encoder.sequence(row, row[side]) for side in ("chosen", "rejected") for row in rows]
    sequences, spans = segment_sequences(encoded, encoder, segmenter, entropies, chunk)
    return SegmentedPairs(rows, sequences, spans)


def segment_sequences(
    encoded: list[EncodedSequence],
    encoder: Encoder,
    segmenter: Segmenter,
    entropies: list[list[float]] | None,
    chunk: int = 512,
) -> tuple[list[SegmentedSequence], list[list[tuple[int, int]]]]:
    """Segment ends and half-open spans of every sequence's response."""
    sequences: list[SegmentedSequence] = []
    spans: list[list[tuple[int, int]]] = []
    for start in range(0, len(encoded), chunk):
        part = encoded[start : start + chunk]
        wanted = entropies[start : start + chunk] if entropies is not None else None
        segmentation: Segmentation = segmenter.segment(encoder.responses(part, wanted))
        for i, sequence in enumerate(part):
            row_spans = segmentation.spans(i)
            spans.append(row_spans)
            sequences.append(SegmentedSequence(sequence, [end - 1 for _, end in row_spans]))
    return sequences, spans


def train_reward_model(
    spec_path: Annotated[Path, "reward-model spec (YAML)"],
    scale_path: Annotated[Path, "training settings (YAML)"],
    data: Path,
    sft: Path,
    entropies: Path | None,
    seed: int,
    out: Path,
    version: int | None = None,
) -> None:
    """Trains the reward model of a spec from the SFT model and measures it."""
    check_version(STAGE, VERSION, version)
    join_processes()
    spec = typed(RewardModelSpec, read_settings(spec_path), str(spec_path))
    config = typed(TrainingConfig, read_settings(scale_path), str(scale_path))
    inputs = [spec_path, scale_path, data, sft, *([entropies] if entropies else [])]
    with resumable_output(out, stage=STAGE, version=VERSION, inputs=inputs, seed=seed) as (result, checkpoints):
        encoder = load_encoder(data, sft / "model")
        segmenter_spec = resolve_segmenter(spec.segmenter, entropies)
        segmenter = build_segmenter(segmenter_spec)
        splits = {
            split: segment_pairs(
                read_jsonl(data / f"preference.{split}.jsonl"),
                encoder,
                segmenter,
                load_entropies(entropies, split) if entropies and segmenter.needs_entropies else None,
            )
            for split in ("train", "validation", "ood")
        }
        model = ScalarModel.from_language_model(load_language_model(sft / "model"), seed=seed).to(device())
        label = f"reward model {spec_path.stem} seed {seed}"
        with training_on(data / "preference.train.jsonl"):
            history = fit(model, splits["train"], encoder.pad_id, config, seed, label, checkpoints)
        metrics: dict[str, float] = {
            "segments_per_response": _mean([len(s) for s in splits["train"].spans]),
            "segment_length": _mean([end - start for spans in splits["train"].spans for start, end in spans]),
        }
        for split in ("validation", "ood"):
            prefix = "" if split == "validation" else "ood_"
            measured = measure(model, splits[split], encoder)
            metrics |= {f"{prefix}{name}": value for name, value in measured.items()}
        ceiling = read_json(data / "data.json").get("bayes_ceiling", {})
        if ceiling:
            metrics |= {
                "bayes_ceiling": ceiling["validation"],
                "share_of_ceiling": metrics["accuracy"] / ceiling["validation"],
                "ood_bayes_ceiling": ceiling["ood"],
            }
        trained_on = {"segmenter": segmenter_spec, "aggregation": spec.aggregation, "loss": spec.loss}
        if not distributed.rank():
            model.save(result / "model", trained_on)
        encoder.tokenizer.save_pretrained(result / "model")
        write_jsonl(result / "history.jsonl", history)
        stored = load_entropies(entropies, "examples") if entropies and segmenter.needs_entropies else None
        examples = scored_examples(model, read_jsonl(data / "examples.jsonl"), encoder, segmenter, stored)
        write_jsonl(result / "examples.jsonl", examples)
        write_json(result / "metrics.json", {k: v for k, v in metrics.items() if math.isfinite(v)})


def fit(
    model: ScalarModel,
    pairs: SegmentedPairs,
    pad_id: int,
    config: TrainingConfig,
    seed: int,
    label: str,
    checkpoints: RunCheckpoints,
) -> list[dict[str, float]]:
    """Trains on the pairs; returns the history."""
    chosen, rejected = pairs.sequences[: pairs.pairs], pairs.sequences[pairs.pairs :]
    lengths = [max(len(a.sequence), len(b.sequence)) for a, b in zip(chosen, rejected, strict=True)]
    batches = LengthBucketedBatches(lengths, seed=seed, rows_per_batch=config.batch)
    steps = max(1, round(config.epochs * pairs.pairs / config.batch))

    def loss(indices: Any) -> Any:
        return pair_loss(model, [chosen[i] for i in indices], [rejected[i] for i in indices], pad_id)

    return train_resumably(
        model, loss, batches, steps, config, lambda indices: float(len(indices)),
        checkpoints=checkpoints, label=label, every=5,
    )  # fmt: skip


def measure(model: ScalarModel, pairs: SegmentedPairs, encoder: Encoder) -> dict[str, float]:
    """Accuracy, loss, calibration and, where true clauses are known, fidelity on a split."""
    e, segments = score_all(model, pairs.sequences, encoder.pad_id)
    good, bad = e[: pairs.pairs], e[pairs.pairs :]
    accuracy = pairwise_accuracy(good, bad)
    calibrated = calibration(good, bad)
    margins = (good - bad).double()
    metrics = {
        "accuracy": float(accuracy["accuracy"]),
        "accuracy_lower": float(accuracy["lower"]),
        "accuracy_upper": float(accuracy["upper"]),
        "ece": float(calibrated["ece"]),  # type: ignore[arg-type]
        "brier": float(calibrated["brier"]),  # type: ignore[arg-type]
        "loss": float((-margins.sigmoid().clamp(min=1e-12).log()).mean()),
    }
    rows = pairs.rows
    if "chosen_clauses" not in rows[0].get("meta", {}):
        return metrics
    scored, predicted, true = [], [], []
    for i in range(2 * pairs.pairs):
        row, side = rows[i % pairs.pairs], "chosen" if i < pairs.pairs else "rejected"
        clauses = row["meta"][f"{side}_clauses"]
        _, offsets = token_spans(encoder.tokenizer, pairs.sequences[i].sequence.response)
        rewards = token_rewards(pairs.spans[i], segments[i], len(offsets))
        scored.append(ScoredResponse(rewards, offsets, [(start, end, reward) for start, end, _, reward in clauses]))
        predicted.append([_text_start(row[side], offsets[start][0]) for start, _ in pairs.spans[i]])
        true.append([_text_start(row[side], start) for start, *_ in clauses])
    agreement = asdict(fidelity(scored))
    boundaries = asdict(boundary_scores(predicted, true))
    metrics |= {f"fidelity_{name}": float(agreement[name]) for name in _FIDELITY}
    metrics |= {f"boundary_{name}": float(boundaries[name]) for name in ("precision", "recall", "f1")}
    return metrics


_FIDELITY = ("pearson", "spearman", "within_pearson", "within_spearman")


def token_rewards(spans: list[tuple[int, int]], values: list[float], tokens: int) -> list[float | None]:
    """Each segment's reward divided evenly among its tokens; None outside every segment."""
    rewards: list[float | None] = [None] * tokens
    for (start, end), value in zip(spans, values, strict=True):
        rewards[start:end] = [value / (end - start)] * (end - start)
    return rewards


def _text_start(text: str, position: int) -> int:
    """The position of the first character that is not white space, from `position` on."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def scored_examples(
    model: ScalarModel, rows: list[Row], encoder: Encoder, segmenter: Segmenter, entropies: list[list[float]] | None
) -> list[Row]:
    """Responses with the reward of every token and segment, for pictures."""
    encoded = [encoder.sequence(row, row["response"]) for row in rows]
    sequences, spans = segment_sequences(encoded, encoder, segmenter, entropies)
    _, values = score_all(model, sequences, encoder.pad_id)
    return [
        {
            **row,
            "label": "chosen",
            "tokens": encoder.pieces(sequence.response),
            "rewards": token_rewards(row_spans, row_values, len(sequence.response)),
            "segments": [[start, end, value] for (start, end), value in zip(row_spans, row_values, strict=True)],
        }
        for row, sequence, row_spans, row_values in zip(rows, encoded, spans, values, strict=True)
    ]


def _mean(values: list[int]) -> float:
    return sum(values) / max(1, len(values))


main = command_line(train_reward_model)


if __name__ == "__main__":
    run_stage(main, several_processes=True)
