"""Stage `segmenter`: a SaT model, trained on gold sentences or fetched once, and the sentences of all responses.

Writes model/ (what wtpsplit's `SaT` loads, with threshold and length limit in segmenter.json), sentences.json (sentence
ends of every preference response and example, by digest of the text) and metrics.json. Later stages read sentences
from there; they load the model only for texts that it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rlhf_core.data.sources import DirectorySource
from rlhf_core.segmentation.boundary_tagger import (
    GoldText,
    save_tagger,
    sentence_scores,
    train_tagger,
)
from rlhf_core.segmentation.sat import KNOWN_FILE, SaT, load_splitter, text_digest
from rlhf_core.supervised.config import TrainingConfig
from tasks.data_specs.data_sets import data_directory
from tasks.params.backbone import SegmenterSpec
from tasks.running.artifacts import read_jsonl, write_json
from tasks.running.machine import device
from tasks.running.progress import progress
from tasks.running.stage import PageEntry, stage

VERSION = 3

SPLITS = ("train", "validation", "ood")
CLAUSES = "clauses"


def gold_texts(name: str, split: str, data: Path) -> list[GoldText]:
    """Returns texts with true sentences: split `train`, `validation` or `ood` of the preference data's clauses, or of a
    set.
    """
    if name != CLAUSES:
        rows = DirectorySource(data_directory(None)).load(name, "test" if split == "ood" else split, "sentences")
        return [GoldText(row["text"], tuple(end for _, end in row["sentence_spans"])) for row in rows]
    pairs = read_jsonl(data / f"preference.{split}.jsonl")
    sides = [(row[side], row["meta"][f"{side}_clauses"]) for row in pairs for side in ("chosen", "rejected")]
    return [GoldText(text, tuple(len(text[:end].rstrip()) for _, end, *_ in clauses)) for text, clauses in sides]


def make_segmenter(
    spec: Annotated[SegmenterSpec, PageEntry("segmenter spec (YAML)")], data: Path, result: Path
) -> None:
    """Trains or loads a SaT model and finds the sentences of all responses."""
    folder = result / "model"
    if spec.source == "train" and spec.training is not None:
        metrics = _train(spec, spec.training, data, folder)
    else:
        metrics = _load(spec, folder)
    pairs = [row for split in SPLITS for row in read_jsonl(data / f"preference.{split}.jsonl")]
    texts = {row[side] for row in pairs for side in ("chosen", "rejected")}
    texts |= {row["response"] for row in read_jsonl(data / "examples.jsonl")}
    ends = SaT(str(folder), spec.max_sentence_chars).sentence_ends(sorted(texts))
    known = {text_digest(text): found for text, found in zip(sorted(texts), ends, strict=True)}
    write_json(result / KNOWN_FILE, known)
    if spec.gold is not None:
        sat = SaT(str(folder), spec.max_sentence_chars, known=known)
        for split in ("validation", "ood"):
            gold = gold_texts(spec.gold, split, data)
            scores = sentence_scores(sat.sentence_ends([item.text for item in gold]), gold)
            metrics |= {f"{'' if split == 'validation' else 'ood_'}{name}": v for name, v in scores.items()}
    metrics |= lengths_of(ends)
    write_json(result / "metrics.json", metrics)


def lengths_of(ends: Sequence[Sequence[int]]) -> dict[str, float]:
    """Returns how many sentences responses have, and how long these are, from the ends in each response."""
    lengths = [b - a for row in ends for a, b in zip([0, *row], row, strict=False)]
    return {
        "sentences_per_response": len(lengths) / max(1, len(ends)),
        "sentence_chars": sum(lengths) / max(1, len(lengths)),
        "longest_sentence_chars": float(max(lengths, default=0)),
        "one_sentence_share": sum(len(row) <= 1 for row in ends) / max(1, len(ends)),
    }


def _train(spec: SegmenterSpec, training: TrainingConfig, data: Path, folder: Path) -> dict[str, float]:
    gold = gold_texts(str(spec.gold), "train", data)[: spec.texts]
    steps = 0
    with progress(f"boundary tagger on {spec.gold}", 1) as advance:

        def on_step(step: int, of: int, metrics: dict[str, float]) -> None:
            nonlocal steps
            steps = step
            if step == of:
                advance(loss=metrics["loss"])

        model, tokenizer = train_tagger(gold, spec.tagger, training, spec.seed, on_step, device())
    threshold = 0.5 if spec.threshold is None else spec.threshold
    save_tagger(model, tokenizer, folder, threshold=threshold, max_sentence_chars=spec.max_sentence_chars)
    return {"parameters": float(sum(p.numel() for p in model.parameters())), "steps": float(steps)}


def _load(spec: SegmenterSpec, folder: Path) -> dict[str, float]:
    given = SaT(str(spec.model), spec.max_sentence_chars, spec.threshold)
    splitter = load_splitter(given.model)
    save_tagger(
        splitter.model.model,
        splitter.tokenizer,
        folder,
        threshold=given.decision,
        max_sentence_chars=spec.max_sentence_chars,
    )
    return {"parameters": float(sum(p.numel() for p in splitter.model.model.parameters()))}


main = stage(make_segmenter)
