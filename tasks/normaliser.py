"""Stage `normaliser`: calibration of a reward model's rewards, and the regression of Mean(p) and Std(p).

Segments of chosen and rejected training responses are pooled. All normalisers of the paper are fitted at once (global,
last, sequence, location-aware by Huber and by least squares), so that their ablation costs one pass.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated

import torch

from rlhf_core.errors import RecipeError
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.normalisers import calibrate
from rlhf_core.rewards.aggregation import build_aggregation
from rlhf_core.rewards.preference_training import score_all
from rlhf_core.segmentation import from_spans
from rlhf_core.segmentation.end_tokens import end_token_id
from rlhf_core.signals import Segments
from tasks.params.pages import Address, read_settings
from tasks.params.reward_model import CalibrationSpec
from tasks.params.settings import typed
from tasks.running.artifacts import stage_output, write_json
from tasks.running.loading import load_encoder, load_segmenter
from tasks.running.result_rows import PreferencePair, read_rows
from tasks.running.stage import command_line, device, run_stage, set_threads
from tasks.scoring.entropies import load_entropies
from tasks.scoring.segmenting import segment_pairs

VERSION = 3
STAGE = "normaliser"


def calibration_places(spec: CalibrationSpec, rows: int) -> list[int]:
    """Returns which training pairs calibrate, in order."""
    count = min(spec.pairs, rows)
    return sorted(random.Random("calibration").sample(range(rows), count)) if spec.drawn else list(range(count))


def fit_normalisers(
    scale_path: Annotated[Address, "calibration settings (YAML)"],
    data: Path,
    sft: Path,
    entropies: Path | None,
    reward_model: Path,
    out: Path,
    sentences: Path | None = None,
) -> None:
    """Writes normaliser.json: coefficients, bins and counts of one reward model."""
    set_threads()
    spec = typed(CalibrationSpec, read_settings(scale_path), str(scale_path))
    inputs: list[Path | str | None] = [scale_path, data, sft, entropies, sentences, reward_model]
    with stage_output(out, stage=STAGE, version=VERSION, inputs=inputs) as result:
        model, trained = ScalarModel.load(reward_model / "model")
        encoder = load_encoder(data, reward_model / "model")
        end_token = end_token_id(encoder.tokenizer) if trained.get("end_token") else None
        aggregation = build_aggregation(trained["aggregation"])
        model.to(device())
        model.eval()
        segmenter = load_segmenter(trained["segmenter"], sentences)
        rows = read_rows(data / "preference.train.jsonl", PreferencePair)
        places = calibration_places(spec, len(rows))
        if segmenter.needs_entropies and entropies is None:
            raise RecipeError("the reward model cuts by entropies: give --entropies")
        values = load_entropies(entropies, "train") if entropies and segmenter.needs_entropies else None
        if values is not None:
            values = [values[start + i] for start in (0, len(rows)) for i in places]
        chosen = [rows[i] for i in places]
        pairs = segment_pairs(chosen, encoder, segmenter, values, aggregation=aggregation, end_token=end_token)
        e, segments = score_all(model, pairs.sequences, encoder.pad_id, aggregation, head=trained["heads"][0])
        segmentation = from_spans(pairs.spans, max(len(s.sequence.response) for s in pairs.sequences))
        padded = torch.zeros(segmentation.ends.shape)
        for i, row in enumerate(segments):
            padded[i, : len(row)] = torch.tensor(row)
        fitted = calibrate(
            [Segments(padded, segmentation)],
            e.double().numpy(),
            floor_fraction=spec.floor_fraction,
            min_samples=spec.min_samples,
            own=spec.own,
        )
        write_json(result / "normaliser.json", fitted)
        metrics = {**fitted["counts"], "global_mean": fitted["global"]["mean"]}
        for estimator, coefficients in fitted["location_aware"].items():
            metrics |= {f"{estimator}_{name}": value for name, value in coefficients.items()}
        metrics |= {"global_std": fitted["global"]["std"], "sequence_mean": fitted["sequence"]["mean"]}
        metrics |= {"sequence_std": fitted["sequence"]["std"]}
        write_json(result / "metrics.json", {name: float(value) for name, value in metrics.items()})


main = command_line(fit_normalisers)


if __name__ == "__main__":
    run_stage(main)
