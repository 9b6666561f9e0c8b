"""Stage `reward_model`: trains a reward model on preference pairs, and evaluates it.

The model rewards the segments of a response, and an aggregation computes the response's reward from them.

With `merge` in its spec the stage trains nothing: it averages the weights of the reward models that `--reward-model`
gives. Source: WARM, as in PAR §4.1.

Where the scale's settings name a `zero_shot` model, nothing is trained either: the result holds that model's settings,
and later stages read rewards from its answer probabilities. Source: ALARM, section 2.3.

The stage reports pairwise accuracy (a tie counts as wrong), calibration, and the Bayes ceiling: the accuracy of a
predictor that knows the annotator's true utilities. On data with true clause rewards it also reports credit-assignment
fidelity: how well the reward paid to a clause agrees with its true reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch

from rlhf_core.data.encoding import Encoder
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.fidelity import ScoredResponse, boundary_scores, fidelity
from rlhf_core.evaluation.reward_bench import calibration, pairwise_accuracy
from rlhf_core.models.loading import load_language_model
from rlhf_core.models.reward_model import ScalarModel, average_weights
from rlhf_core.rewards.aggregation import Aggregation, build_aggregation
from rlhf_core.rewards.preference_losses import build_loss
from rlhf_core.rewards.preference_training import score_all, score_parts
from rlhf_core.segmentation.end_tokens import add_end_token
from rlhf_core.typed import typed
from tasks.params.pages import Address, read_settings
from tasks.params.reward_model import MergeSpec, RewardModelSpec, ZeroShotScale, reward_model_scale
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl
from tasks.running.checkpoints import RunCheckpoints, reuse_training
from tasks.running.loading import load_encoder, load_segmenter
from tasks.running.machine import device
from tasks.running.stage import stage
from tasks.running.supervised import PairComparison, fit, write_model
from tasks.scoring.classifiers import ZeroShotModel, write_zero_shot_settings
from tasks.scoring.segmenting import (
    Reading,
    SegmentedPairs,
    divide_among_tokens,
    segmenter_with_cutoffs,
)

VERSION = 5
STAGE = "reward_model"


def train_reward_model(
    spec_path: Annotated[Address, "reward-model spec (YAML)"],
    scale_path: Annotated[Address, "training settings (YAML)"],
    data: Path,
    sft: Path,
    entropies: Path | None,
    seed: int,
    result: Path,
    checkpoints: RunCheckpoints,
    sentences: Path | None = None,  # result of the stage `segmenter`, for segmenters whose model it makes
    reward_model: Annotated[tuple[Path, ...] | None, "results of `reward_model` that a merge averages"] = None,
) -> None:
    """Trains the reward model of a spec, or averages the reward models that it merges, and measures the result."""
    values, merged = read_settings(spec_path), reward_model or ()
    merge = typed(MergeSpec, values, str(spec_path)) if "merge" in values else None
    spec = _spec_of_merged(merge, merged, spec_path) if merge else typed(RewardModelSpec, values, str(spec_path))
    scale, preference_loss = reward_model_scale(read_settings(scale_path), str(scale_path)), build_loss(spec.loss)
    if isinstance(scale, ZeroShotScale):
        write_zero_shot_result(scale, data, result)
        return
    # the models that WARM averages differ in learning rate and seed: their specs have a share and an offset
    config = replace(scale, learning_rate=scale.learning_rate * spec.learning_rate_share)
    encoder = load_encoder(data, sft / "model")
    segmenter_spec = segmenter_with_cutoffs(spec.segmenter, entropies)
    aggregation, base = build_aggregation(spec.aggregation), load_language_model(sft / "model")
    end_token = add_end_token(encoder.tokenizer, base) if spec.end_token else None
    reading = Reading(encoder, load_segmenter(segmenter_spec, sentences), end_token)
    files = {split: data / f"preference.{split}.jsonl" for split in ("train", "validation", "ood")}
    splits = {
        split: reading.pairs(read_jsonl(file), reading.stored_entropies(entropies, split), file)
        for split, file in files.items()
        if split != "ood" or file.exists()
    }
    training_seed = seed + spec.seed_offset
    # the reward; the loss ODIN trains a second head, which takes up what length explains and is never read
    head = preference_loss.heads[0]
    history: list[dict[str, float]] = []
    if merge:
        model = average_weights([ScalarModel.load(path / "model")[0] for path in merged]).to(device()).eval()
    else:
        # projections: queries and keys, where the aggregation is an attention
        options = {"heads": preference_loss.heads, "seed": training_seed, "projections": aggregation.projections}
        model = ScalarModel.from_language_model(base, **options).to(device())
        pairs = splits["train"]
        sides = pairs.sequences[: pairs.count], pairs.sequences[pairs.count :]
        read: list[Path | str] = [spec_path, scale_path, sft / "model"]
        history = fit(
            model,
            PairComparison(model, *sides, encoder.pad_id, aggregation, preference_loss),
            config,
            seed=training_seed,
            checkpoints=checkpoints,
            label=f"reward model {Address(spec_path).name} seed {seed}",
            file=data / "preference.train.jsonl",
            shared=reuse_training(STAGE, VERSION, read, pairs.sequences, training_seed),
        )
    metrics: dict[str, float] = {
        "segments_per_response": _mean([len(s) for s in splits["train"].spans]),
        "segment_length": _mean([end - start for spans in splits["train"].spans for start, end in spans]),
    }
    for split in (name for name in splits if name != "train"):
        prefix = "" if split == "validation" else "ood_"
        measured = measure(model, splits[split], encoder, aggregation, head)
        metrics |= {f"{prefix}{name}": value for name, value in measured.items()}
    metrics |= {f"{split}_pairs_dropped": pairs.dropped for split, pairs in splits.items() if pairs.dropped}
    facts = read_json(data / "data.json")
    if trained_on := facts.get("overlap", {}).get("preference.ood"):
        metrics["ood_prompts_trained_on"] = trained_on
    ceiling = facts.get("bayes_ceiling", {})
    if ceiling:
        metrics |= {
            "bayes_ceiling": ceiling["validation"],
            "share_of_ceiling": metrics["accuracy"] / ceiling["validation"],
            "ood_bayes_ceiling": ceiling["ood"],
        }
    settings: dict[str, Any] = {"segmenter": segmenter_spec, "aggregation": spec.aggregation, "loss": spec.loss}
    settings |= {"end_token": True} if spec.end_token else {}
    settings |= {"merge": list(merge.merge)} if merge else {}
    write_model(result, partial(model.save, config=settings), encoder.tokenizer)
    write_jsonl(result / "history.jsonl", history)
    examples, found = read_jsonl(data / "examples.jsonl"), reading.stored_entropies(entropies, "examples")
    write_jsonl(result / "examples.jsonl", scored_examples(model, examples, reading, found, aggregation, head))
    write_json(result / "metrics.json", {k: v for k, v in metrics.items() if math.isfinite(v)})


def write_zero_shot_result(scale: ZeroShotScale, data: Path, result: Path) -> None:
    """Writes the settings of a zero-shot model in place of a trained one, with its accuracy and calibration on the
    validation pairs."""
    write_zero_shot_settings(result, scale.zero_shot, data)
    pairs, model = read_jsonl(data / "preference.validation.jsonl"), ZeroShotModel.load(result)
    sides = [torch.tensor(model(pairs, [str(row[side]) for row in pairs])) for side in ("chosen", "rejected")]
    metrics = pair_metrics(*sides)
    del metrics["brier"]
    write_jsonl(result / "history.jsonl", [])
    write_jsonl(result / "examples.jsonl", [])
    write_json(result / "metrics.json", {k: v for k, v in metrics.items() if math.isfinite(v)})


def _spec_of_merged(merge: MergeSpec, models: Sequence[Path], where: Address) -> RewardModelSpec:
    """Returns the spec that all merged models were trained with; of their losses, which may differ, the first model's.

    Raises:
        RecipeError: the models differ in segmenter, aggregation, heads or end token.
    """
    trained = [ScalarModel.training_settings(path / "model") for path in models]
    first = trained[0]
    for name, found in zip(merge.merge, trained, strict=True):
        for setting in ("segmenter", "aggregation", "heads", "end_token"):
            if found.get(setting) != first.get(setting):
                raise RecipeError(
                    f"{where}: '{name}' has {setting} {found.get(setting)} and '{merge.merge[0]}' has "
                    f"{first.get(setting)}; merge reward models of the same segmenter, aggregation, heads and end token"
                )
    known = {name: first[name] for name in ("segmenter", "aggregation", "loss")}
    return RewardModelSpec(merge.title, merge.backbone, end_token=bool(first.get("end_token")), **known)


def pair_metrics(chosen: torch.Tensor, rejected: torch.Tensor) -> dict[str, float]:
    """Returns how often the chosen answers of pairs have the higher reward, and how well that is calibrated."""
    found = pairwise_accuracy(chosen, rejected)
    bounds = {"accuracy_lower": found.lower, "accuracy_upper": found.upper}
    return {"accuracy": found.estimate, **bounds, **calibration(chosen, rejected)}


def measure(
    model: ScalarModel, pairs: SegmentedPairs, encoder: Encoder, aggregation: Aggregation, head: str
) -> dict[str, float]:
    """Returns the accuracy, calibration and loss of a head on a split, and, if true clauses are known, its fidelity and
    how well its segments' boundaries are those of the clauses.

    The loss is Bradley-Terry's on the rewards, whatever loss the model was trained with.
    """
    response_rewards, worths = score_all(model, pairs.sequences, encoder.pad_id, aggregation, head=head)
    chosen, rejected = response_rewards[: pairs.count], response_rewards[pairs.count :]
    margins = (chosen - rejected).double()
    metrics = pair_metrics(chosen, rejected)
    metrics["loss"] = float((-margins.sigmoid().clamp(min=1e-12).log()).mean())
    if "chosen_clauses" not in pairs.rows[0].get("meta", {}):
        return metrics
    scored, predicted, true = [], [], []
    sides = [(row, side) for side in ("chosen", "rejected") for row in pairs.rows]
    for (row, side), sequence, spans, worth in zip(sides, pairs.sequences, pairs.spans, worths, strict=True):
        text, clauses = row[side], row["meta"][f"{side}_clauses"]  # type: ignore[literal-required]
        _, offsets = token_spans(encoder.tokenizer, sequence.sequence.response)
        rewards = divide_among_tokens(spans, worth, len(offsets))
        # a clause: start, end, kind, true reward
        scored.append(ScoredResponse(rewards, offsets, [(start, end, reward) for start, end, _, reward in clauses]))
        starts = [offsets[start][0] for start, end in spans if start < end]
        predicted.append([_skip_white_space(text, start) for start in starts])
        true.append([_skip_white_space(text, start) for start, *_ in clauses])
    metrics |= {f"fidelity_{name}": value for name, value in fidelity(scored).items()}
    return metrics | {f"boundary_{name}": value for name, value in boundary_scores(predicted, true).items()}


def _skip_white_space(text: str, position: int) -> int:
    """Returns the first position, from `position` on, that is not white space."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def scored_examples(
    model: ScalarModel,
    rows: list[dict[str, Any]],
    reading: Reading,
    entropies: list[list[float]] | None,
    aggregation: Aggregation,
    head: str,
) -> list[dict[str, Any]]:
    """Returns examples with the worth of every segment and each token's part of it, for the report's coloured texts.

    Every label is "chosen", also of code solutions and of the wrong solutions that `solution_pairs` gives alone. An
    attention, which has projections, adds each segment's own reward and its weight.
    """
    encoder = reading.encoder
    sequences, spans = reading.cut([encoder.sequence(row, row["response"]) for row in rows], entropies)
    _, parts = score_parts(model, sequences, encoder.pad_id, aggregation, head=head)
    coloured: list[dict[str, Any]] = []
    for row, sequence, row_spans, part in zip(rows, sequences, spans, parts, strict=True):
        found = {
            "label": "chosen",
            "tokens": encoder.pieces(sequence.sequence.response),
            "rewards": divide_among_tokens(row_spans, part["worth"], len(sequence.sequence.response)),
            "segments": [[start, end, value] for (start, end), value in zip(row_spans, part["worth"], strict=True)],
        }
        example = {**row, **found}
        if aggregation.projections:
            example["weights"], example["segment_rewards"] = part["weights"], part["rewards"]
        coloured.append(example)
    return coloured


def _mean(values: list[int]) -> float:
    return sum(values) / max(1, len(values))


main = stage(train_reward_model, several_processes=True)
