"""Stage `reward_model`: training on preference pairs with aggregated segment rewards, and its measures.

A spec with `merge` is not trained: it averages the weights of the reward models that `--reward-model` gives. Source:
WARM, as in PAR §4.1.

The stage reports pairwise accuracy (strict), calibration and the annotator's Bayes ceiling. On data with true clause
rewards it also reports credit-assignment fidelity: how well the reward paid to a clause agrees with its true reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, cast

from rlhf_core import distributed
from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.data.encoding import Encoder
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.fidelity import ScoredResponse, boundary_scores, fidelity
from rlhf_core.evaluation.reward_models import calibration, pairwise_accuracy
from rlhf_core.models.loading import load_language_model
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.rewards.aggregation import Aggregation, build_aggregation
from rlhf_core.rewards.preference_losses import BRADLEY_TERRY, PreferenceLoss, build_loss
from rlhf_core.rewards.preference_training import MEAN, pair_loss, score_all, score_parts
from rlhf_core.rewards.warm import averaged
from rlhf_core.segmentation import Segmenter
from rlhf_core.segmentation.end_tokens import add_end_token
from rlhf_core.supervised.config import TrainingConfig
from tasks.params.pages import Address, read_settings
from tasks.params.reward_model import MergeSpec, RewardModelSpec
from tasks.params.settings import typed
from tasks.running.artifacts import read_json, write_json, write_jsonl
from tasks.running.checkpoints import RunCheckpoints, resumable_output
from tasks.running.launch import join_processes
from tasks.running.loading import load_encoder, load_segmenter
from tasks.running.result_rows import ColouredExample, Example, PreferencePair, read_rows
from tasks.running.stage import command_line, device, run_stage, training_on
from tasks.running.supervised import train_resumably
from tasks.scoring.entropies import load_entropies, resolve_segmenter
from tasks.scoring.segmenting import (
    SegmentedPairs,
    segment_pairs,
    segmented,
    token_rewards,
)

#: Raise it when the result changes; DVC then runs the stage again.
VERSION = 4
STAGE = "reward_model"


def train_reward_model(
    spec_path: Annotated[Address, "reward-model spec (YAML)"],
    scale_path: Annotated[Address, "training settings (YAML)"],
    data: Path,
    sft: Path,
    entropies: Path | None,
    seed: int,
    out: Path,
    sentences: Path | None = None,
    reward_model: Annotated[tuple[Path, ...] | None, "results of `reward_model` that a merge averages"] = None,
) -> None:
    """Trains the reward model of a spec, or averages the reward models that it merges, and measures the result."""
    join_processes()
    values, members = read_settings(spec_path), reward_model or ()
    merge = typed(MergeSpec, values, str(spec_path)) if "merge" in values else None
    spec = _merged_spec(merge, members, spec_path) if merge else typed(RewardModelSpec, values, str(spec_path))
    if members and not merge:
        raise RecipeError(f"{spec_path}: reward models are given, but the spec merges none: state 'merge'")
    config, loss = typed(TrainingConfig, read_settings(scale_path), str(scale_path)), build_loss(spec.loss)
    config = replace(config, learning_rate=config.learning_rate * spec.learning_rate_share)
    if config.microbatch < loss.least_pairs:
        raise RecipeError(
            f"{scale_path}: microbatch is {config.microbatch}, but the loss of {spec_path} compares the responses of "
            f"one microbatch with each other; it needs at least {loss.least_pairs} pairs"
        )
    inputs: list[Path | str | None] = [spec_path, scale_path, data, sft, entropies, sentences, *members]
    with resumable_output(out, stage=STAGE, version=VERSION, inputs=inputs, seed=seed) as (result, checkpoints):
        encoder = load_encoder(data, sft / "model")
        segmenter_spec = resolve_segmenter(spec.segmenter, entropies)
        segmenter = load_segmenter(segmenter_spec, sentences)
        aggregation = build_aggregation(spec.aggregation)
        base = load_language_model(sft / "model")
        end_token = add_end_token(encoder.tokenizer, base) if spec.end_token else None
        splits = {
            split: segment_pairs(
                read_rows(data / f"preference.{split}.jsonl", PreferencePair),
                encoder,
                segmenter,
                load_entropies(entropies, split) if entropies and segmenter.needs_entropies else None,
                aggregation=aggregation,
                end_token=end_token,
            )
            for split in ("train", "validation", "ood")
            if split != "ood" or (data / "preference.ood.jsonl").exists()
        }
        own_seed, head = seed + spec.seed_offset, loss.heads[0]
        if members:
            model = averaged([ScalarModel.load(path / "model")[0] for path in members]).to(device()).eval()
            history: list[dict[str, float]] = []
        else:
            options = {"heads": loss.heads, "seed": own_seed, "projections": aggregation.projections}
            model = ScalarModel.from_language_model(base, **options).to(device())
            label = f"reward model {Address(spec_path).name} seed {seed}"
            with training_on(data / "preference.train.jsonl"):
                history = fit(model, splits["train"], encoder.pad_id, config, own_seed, label, checkpoints, loss)
        metrics: dict[str, float] = {
            "segments_per_response": _mean([len(s) for s in splits["train"].spans]),
            "segment_length": _mean([end - start for spans in splits["train"].spans for start, end in spans]),
        }
        for split in (name for name in splits if name != "train"):
            prefix = "" if split == "validation" else "ood_"
            measured = measure(model, splits[split], encoder, head)
            metrics |= {f"{prefix}{name}": value for name, value in measured.items()}
        ceiling = read_json(data / "data.json").get("bayes_ceiling", {})
        if ceiling:
            metrics |= {
                "bayes_ceiling": ceiling["validation"],
                "share_of_ceiling": metrics["accuracy"] / ceiling["validation"],
                "ood_bayes_ceiling": ceiling["ood"],
            }
        trained_on: dict[str, Any] = {"segmenter": segmenter_spec, "aggregation": spec.aggregation, "loss": spec.loss}
        trained_on |= {"end_token": True} if spec.end_token else {}
        trained_on |= {"merge": list(merge.merge)} if merge else {}
        if not distributed.rank():
            model.save(result / "model", trained_on)
        encoder.tokenizer.save_pretrained(result / "model")
        write_jsonl(result / "history.jsonl", history)
        stored = load_entropies(entropies, "examples") if entropies and segmenter.needs_entropies else None
        rows = read_rows(data / "examples.jsonl", Example)
        examples = scored_examples(model, rows, encoder, segmenter, stored, aggregation, end_token, head)
        write_jsonl(result / "examples.jsonl", examples)
        write_json(result / "metrics.json", {k: v for k, v in metrics.items() if math.isfinite(v)})


def _merged_spec(merge: MergeSpec, members: Sequence[Path], where: Address) -> RewardModelSpec:
    """Returns the spec that all merged models were trained with.

    Raises:
        RecipeError: the number of models differs from the spec's, or the models differ in segmentation or heads.
    """
    if len(members) != len(merge.merge):
        raise RecipeError(
            f"{where}: merge names {len(merge.merge)} reward models, but {len(members)} result(s) are given as "
            "--reward-model"
        )
    trained = [ScalarModel.trained_on(path / "model") for path in members]
    for name, found in zip(merge.merge, trained, strict=True):
        for field_ in ("segmenter", "aggregation", "heads", "end_token"):
            if found.get(field_) != trained[0].get(field_):
                raise RecipeError(
                    f"{where}: '{name}' has {field_} {found.get(field_)} and '{merge.merge[0]}' "
                    f"{trained[0].get(field_)}; average models that differ in seed and learning rate only"
                )
    known = {name: trained[0][name] for name in ("segmenter", "aggregation", "loss")}
    return RewardModelSpec(merge.title, merge.backbone, end_token=bool(trained[0].get("end_token")), **known)


def fit(
    model: ScalarModel,
    pairs: SegmentedPairs,
    pad_id: int,
    config: TrainingConfig,
    seed: int,
    label: str,
    checkpoints: RunCheckpoints,
    preference: PreferenceLoss = BRADLEY_TERRY,
) -> list[dict[str, float]]:
    """Trains a reward model on preference pairs and returns the history of the training."""
    chosen, rejected = pairs.sequences[: pairs.pairs], pairs.sequences[pairs.pairs :]
    lengths = [max(len(a.sequence), len(b.sequence)) for a, b in zip(chosen, rejected, strict=True)]
    batches = LengthBucketedBatches(lengths, seed=seed, rows_per_batch=config.batch)
    steps = max(1, round(config.epochs * pairs.pairs / config.batch))

    def loss(indices: Any) -> Any:
        sides = [chosen[i] for i in indices], [rejected[i] for i in indices]
        return pair_loss(model, *sides, pad_id, pairs.aggregation, preference)

    return train_resumably(
        model, loss, batches, steps, config, lambda indices: float(len(indices)),
        checkpoints=checkpoints, label=label, every=5,
    )  # fmt: skip


def measure(model: ScalarModel, pairs: SegmentedPairs, encoder: Encoder, head: str = "reward") -> dict[str, float]:
    """Returns the accuracy, loss, calibration and (if true clauses are known) fidelity of a head on a split."""
    e, segments = score_all(model, pairs.sequences, encoder.pad_id, pairs.aggregation, head=head)
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
        row, is_chosen = rows[i % pairs.pairs], i < pairs.pairs
        text = row["chosen"] if is_chosen else row["rejected"]
        clauses = row["meta"]["chosen_clauses" if is_chosen else "rejected_clauses"]
        _, offsets = token_spans(encoder.tokenizer, pairs.sequences[i].sequence.response)
        rewards = token_rewards(pairs.spans[i], segments[i], len(offsets))
        scored.append(ScoredResponse(rewards, offsets, [(start, end, reward) for start, end, _, reward in clauses]))
        starts = [start for start, end in pairs.spans[i] if start < end]
        predicted.append([_text_start(text, offsets[start][0]) for start in starts])
        true.append([_text_start(text, start) for start, *_ in clauses])
    agreement = asdict(fidelity(scored))
    boundaries = asdict(boundary_scores(predicted, true))
    metrics |= {f"fidelity_{name}": float(agreement[name]) for name in _FIDELITY}
    metrics |= {f"boundary_{name}": float(boundaries[name]) for name in ("precision", "recall", "f1")}
    return metrics


_FIDELITY = ("pearson", "spearman", "within_pearson", "within_spearman")


def _text_start(text: str, position: int) -> int:
    """Returns the first position, from `position` on, that is not white space."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def scored_examples(
    model: ScalarModel,
    rows: list[Example],
    encoder: Encoder,
    segmenter: Segmenter,
    entropies: list[list[float]] | None,
    aggregation: Aggregation = MEAN,
    end_token: int | None = None,
    head: str = "reward",
) -> list[ColouredExample]:
    """Returns responses with the reward of every token and segment, for the report's coloured texts.

    The segments have weights where the model's aggregation has weights.
    """
    encoded = [encoder.sequence(row, row["response"]) for row in rows]
    sequences, spans = segmented(encoded, encoder, segmenter, entropies, end_token)
    _, parts = score_parts(model, sequences, encoder.pad_id, aggregation, head=head)
    coloured: list[ColouredExample] = []
    for row, sequence, row_spans, part in zip(rows, sequences, spans, parts, strict=True):
        found = {
            "label": "chosen",
            "tokens": encoder.pieces(sequence.sequence.response),
            "rewards": token_rewards(row_spans, part["worth"], len(sequence.sequence.response)),
            "segments": [[start, end, value] for (start, end), value in zip(row_spans, part["worth"], strict=True)],
        }
        example = cast(ColouredExample, {**row, **found})
        if aggregation.projections:
            example["weights"], example["segment_rewards"] = part["weights"], part["rewards"]
        coloured.append(example)
    return coloured


def _mean(values: list[int]) -> float:
    return sum(values) / max(1, len(values))


main = command_line(train_reward_model)


if __name__ == "__main__":
    run_stage(main, several_processes=True)
