"""Stage `normaliser`: fits normalisers to a reward model's rewards of training responses.

Segments of chosen and rejected responses are pooled. A segment's reward is here its worth: what it contributes to the
response's reward, or its own reward (not divided by their number) with aggregation `mean`.
p = (t + 1) / T is its relative place in the response: t is its index from 0, T the number of segments. One pass fits
all normalisers of the paper Segment, so comparing them needs no second pass:

- global: mean and standard deviation of all segments' rewards;
- last: mean and standard deviation of the last segments' rewards (p = 1);
- sequence: mean and standard deviation of whole responses' rewards;
- location-aware: Mean(p) and Std(p) as functions of log p, by Huber regression and by least squares. The regression has
  one point for each bin, the segments of one p rounded to three decimals; bins of fewer than `min_samples` segments are
  dropped. Std(p) is at least `floor_fraction` of the standard deviation of all segments.

Normalisers of the user's own, `module:name` in the setting `own`, are fitted with them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch

from rlhf_core.normalisers import fit_statistics
from rlhf_core.rewards.preference_training import score_all
from rlhf_core.segmentation.segments import from_spans
from rlhf_core.signals import Segments
from tasks.params.reward_model import NormaliserSpec
from tasks.running.artifacts import read_jsonl, warn_too_few_rows, write_json
from tasks.running.loading import load_encoder
from tasks.running.result_rows import PreferencePair
from tasks.running.stage import PageEntry, stage
from tasks.scoring.classifiers import TextRewards, is_zero_shot, load_text_rewards
from tasks.scoring.reward_models import TrainedModel
from tasks.scoring.segmenting import Reading

VERSION = 4


def fit_normalisers(
    scale: Annotated[NormaliserSpec, PageEntry("settings of the calibration set and the fit (YAML)")],
    data: Path,
    sft: Path,
    entropies: Path | None,
    reward_model: Path,
    result: Path,
    sentences: Path | None = None,
) -> None:
    """Writes normaliser.json: statistics of each normaliser, location bins, and counts of segments, responses, bins.

    Of a zero-shot reward model it is empty: its policies use statistics over the SFT model's own answers, which stage
    `selection` has computed.
    """
    if is_zero_shot(reward_model):
        write_json(result / "normaliser.json", {})
        write_json(result / "metrics.json", {})
        return
    pairs = read_jsonl(data / "preference.train.jsonl")
    warn_too_few_rows(scale.pairs, len(pairs), "pairs", data / "preference.train.jsonl")
    indices = calibration_indices(scale, len(pairs))
    if (rewards := load_text_rewards(reward_model)) is not None:
        segments, responses = _text_rewards(rewards, [pairs[i] for i in indices])
    else:
        segments, responses = _segment_rewards(reward_model, data, entropies, sentences, pairs, indices)
    dropped = len(indices) - len(responses) // 2
    fitted = fit_statistics(
        [segments],
        responses.double().numpy(),
        floor_fraction=scale.floor_fraction,
        min_samples=scale.min_samples,
        own=scale.own,
    )
    write_json(result / "normaliser.json", fitted)
    counted = {"pairs_dropped": float(dropped)} if dropped else {}
    write_json(result / "metrics.json", flat_metrics(fitted) | counted)


def calibration_indices(spec: NormaliserSpec, pairs: int) -> list[int]:
    """Returns the indices, in order, of the training pairs that normalisers are fitted to."""
    count = min(spec.pairs, pairs)
    return sorted(random.Random("calibration").sample(range(pairs), count)) if spec.drawn else list(range(count))


def _segment_rewards(
    reward_model: Path,
    data: Path,
    entropies: Path | None,
    sentences: Path | None,
    training_pairs: list[PreferencePair],
    indices: list[int],
) -> tuple[Segments, torch.Tensor]:
    """Returns the rewards of segments and of whole responses [responses]: of all chosen ones, then of all rejected."""
    trained = TrainedModel.load(reward_model / "model")
    encoder = load_encoder(data, reward_model / "model")
    reading = Reading(encoder, trained.segmenter(sentences), trained.end_token(encoder.tokenizer))
    # the file has all chosen responses, then all rejected ones
    stored, sides = reading.stored_entropies(entropies, "train"), (0, len(training_pairs))
    own_entropies = None if stored is None else [stored[start + i] for start in sides for i in indices]
    pairs = reading.pairs([training_pairs[i] for i in indices], own_entropies)
    values, worths = score_all(trained.model, pairs.sequences, encoder.pad_id, trained.aggregation, head=trained.head)
    segmentation = from_spans(pairs.spans, max(len(s.sequence.response) for s in pairs.sequences))
    padded = torch.zeros(segmentation.ends.shape)  # [responses, most segments]
    for i, own in enumerate(worths):
        padded[i, : len(own)] = torch.tensor(own)
    return Segments(padded, segmentation), values


def _text_rewards(rewards: TextRewards, pairs: list[PreferencePair]) -> tuple[Segments, torch.Tensor]:
    """Returns the rewards of a model to which a response is one segment."""
    responses = [pair["chosen"] for pair in pairs] + [pair["rejected"] for pair in pairs]
    values = torch.tensor(rewards([*pairs, *pairs], responses))
    return Segments(values[:, None], from_spans([[(0, 1)]] * len(responses), 1)), values


def flat_metrics(fitted: Mapping[str, Any]) -> dict[str, float]:
    """Returns the counts, the moments of `global` and `sequence`, and the coefficients, flat: as `segments`,
    `global_mean`, or `huber_w_mean`, the slope by Huber regression of Mean(p) = w_mean log p + b_mean."""
    metrics = dict(fitted["counts"])
    for name in ("global", "sequence"):
        metrics |= {f"{name}_mean": fitted[name]["mean"], f"{name}_std": fitted[name]["std"]}
    for estimator, coefficients in fitted["location_aware"].items():
        metrics |= {f"{estimator}_{name}": value for name, value in coefficients.items()}
    return {name: float(value) for name, value in metrics.items()}


main = stage(fit_normalisers)
