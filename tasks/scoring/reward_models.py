"""Any reward model as a function of prompt and response: a result of the project, or a scalar Hugging Face model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError
from rlhf_core.evaluation.reward_bench import ScoredPair, check_independence
from rlhf_core.models.policy import Policy
from rlhf_core.models.reward_model import CONFIG_FILE, ScalarModel
from rlhf_core.rewards.aggregation import Aggregation, build_aggregation
from rlhf_core.rewards.preference_training import score_parts
from rlhf_core.segmentation.end_tokens import end_token_id
from rlhf_core.segmentation.sat import KNOWN_FILE
from rlhf_core.segmentation.segmenters import segmenter_class
from rlhf_core.segmentation.segments import SegmentedSequence, Segmenter
from tasks.running.artifacts import read_object
from tasks.running.loading import load_encoder, load_policy, load_segmenter
from tasks.running.machine import device
from tasks.running.result_digests import check_result
from tasks.scoring.classifiers import ScalarScorer
from tasks.scoring.segmenting import Reading, response_entropies

#: Checks that tell the results of upstream stages apart.
MARKS: dict[str, Callable[[Path], bool]] = {
    "data": lambda path: (path / "data.json").is_file(),
    "sft": lambda path: (path / "generations.jsonl").is_file(),
    "segmenter": lambda path: (path / KNOWN_FILE).is_file(),
}
Rows = Sequence[Mapping[str, Any]]


def upstream(name: str, given: Path | None, model_dir: Path) -> Path:
    """Returns the result of an upstream stage: the one given, else the one that the model's record names.

    Raises:
        DataError: it is not a reward model, or nothing names it.
    """
    if given is not None:
        if not MARKS[name](given):
            raise DataError(f"this is not a result of the {name} stage", file=str(given), remedy=f"Give {name} another")
        return given
    record = model_dir.parent.parent / "record" / "record.json"
    if not record.is_file():
        raise DataError(
            f"no record next to the model names its {name}", file=str(record), remedy=f"Name the {name} result yourself"
        )
    inputs = read_object(record)["inputs"]
    for path in map(Path, inputs):
        if MARKS[name](path):
            return path
    raise DataError(
        f"the {name} result that this model was trained on is not where its record says; it read "
        f"{', '.join(one for one in inputs if one.endswith('result')) or 'no result'}",
        file=str(record),
        remedy=f"Run from the folder in which it was trained, fetch that result, or name the {name} result yourself",
    )


@dataclass(frozen=True)
class TrainedModel:
    """A reward model of the project and the settings that it was trained with.

    Attributes:
        model: on the stage's device, without dropout.
        settings: segmenter (cutoffs in nats), aggregation, heads, end_token.
    """

    model: ScalarModel
    settings: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> TrainedModel:
        """Loads from the folder with the weights."""
        model, settings = ScalarModel.load(folder)
        model.to(device()).eval()
        return cls(model, settings)

    @property
    def aggregation(self) -> Aggregation:
        return build_aggregation(self.settings["aggregation"])

    @property
    def head(self) -> str:
        """Returns the head that pays: the first; ODIN's second one absorbs the effect of length."""
        return str(self.settings["heads"][0])

    def segmenter(self, sentences: Path | None) -> Segmenter:
        """Returns the segmenter of its training; `sentences` is the result of `segmenter` where that makes it."""
        return load_segmenter(self.settings["segmenter"], sentences)

    def end_token(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """Returns the id of `<END>`, the token behind every sentence, where it was trained with it."""
        return end_token_id(tokenizer) if self.settings.get("end_token") else None


@dataclass
class TrainedScorer:
    """A reward model of the project as a function of prompt and response, read as it was trained.

    Args:
        trained: the model.
        reading: of responses.
        policy: whose entropies the segmenter needs, None where it needs none.
        batch: rows per forward pass.
    """

    trained: TrainedModel
    reading: Reading
    policy: Policy | None = None
    batch: int = 64

    @classmethod
    def load(
        cls, folder: Path, *, data: Path | None = None, sft: Path | None = None, sentences: Path | None = None
    ) -> TrainedScorer:
        """Loads from the result of a `reward_model` stage, or its folder `model`.

        Args:
            folder: of the model.
            data: result of `prepare`, with chat template and limits.
            sft: result of `sft`, whose entropies an entropy segmenter needs.
            sentences: result of `segmenter`, which a segmenter of kind sat needs; results that are not given are those
                that the model's record names.

        Raises:
            DataError: an input that is not what it should be, or that is needed and named nowhere.
        """
        folder = model_folder(folder)
        check_result(folder.parent, weights=False)
        trained = TrainedModel.load(folder)
        encoder = load_encoder(upstream("data", data, folder), folder)
        of_stage = hasattr(segmenter_class(trained.settings["segmenter"]), "of_stage")
        segmenter = trained.segmenter(upstream("segmenter", sentences, folder) if of_stage else None)
        policy = None
        if segmenter.needs_entropies:
            policy = load_policy(upstream("sft", sft, folder) / "model", encoder)
            policy.model.eval()
        return cls(trained, Reading(encoder, segmenter, trained.end_token(encoder.tokenizer)), policy)

    @property
    def encoder(self) -> Encoder:
        return self.reading.encoder

    def segmented(
        self, rows: Rows, responses: Sequence[str]
    ) -> tuple[list[SegmentedSequence], list[list[tuple[int, int]]]]:
        """Returns every row with its response as the model reads them, and the spans of the segments."""
        encoded = [self.encoder.sequence(row, text) for row, text in zip(rows, responses, strict=True)]
        entropies = None
        if self.policy is not None:
            entropies = [values.tolist() for values in response_entropies(self.policy, encoded, self.batch)]
        return self.reading.cut(encoded, entropies)

    def parts(
        self, sequences: Sequence[SegmentedSequence], batch: int | None = None
    ) -> tuple[torch.Tensor, list[dict[str, list[float]]]]:
        """Returns (e [n] float32; `worth`, `rewards` and `weights` of each one's segments)."""
        model, pad_id, size = self.trained, self.encoder.pad_id, batch or self.batch
        return score_parts(model.model, sequences, pad_id, model.aggregation, size, head=model.head)

    def __call__(self, rows: Rows, responses: Sequence[str], batch: int | None = None) -> list[float]:
        """Returns e(x, y) of every row with its response."""
        found: list[float] = self.parts(self.segmented(rows, responses)[0], batch)[0].tolist()
        return found


Scorer = TrainedScorer | ScalarScorer


def model_folder(folder: Path) -> Path:
    """Returns the folder with the weights: of a stage's `result`, `result/model`."""
    return folder / "model" if not (folder / CONFIG_FILE).is_file() and (folder / "model").is_dir() else folder


def load_scorer(folder: Path, hub_model: Mapping[str, Any] | None = None, **above: Path | None) -> Scorer:
    """Returns any reward model: the `result` of a `reward_model` stage with results `above` it, as of
    `TrainedScorer.load`, or a folder of a Hugging Face classifier with options of `ScalarScorer.load`.

    Raises:
        DataError: a folder that holds neither.
    """
    if not folder.is_dir():
        raise DataError("no such folder", file=str(folder), remedy="Give the folder of a trained reward model")
    if (model_folder(folder) / CONFIG_FILE).is_file():
        return TrainedScorer.load(folder, **above)
    return ScalarScorer.load(folder, **(hub_model or {}))


#: Responses with which the independence of scores is checked.
PROBES = 8


def score_pairs(scorer: Scorer, rows: Sequence[Mapping[str, Any]], batch: int) -> list[ScoredPair]:
    """Returns both responses of every pair {id, prompt, chosen, rejected, section, subset} scored.

    Raises:
        NumericsError: scores that depend on their batch.
    """
    by_length = sorted(rows, key=lambda row: len(row["chosen"]))
    step = max(1, (len(by_length) - 1) // (PROBES - 1))
    probes = [row for row in by_length[::step] for _ in (0, 1)][: 2 * PROBES]
    texts = [row["rejected" if i % 2 else "chosen"] for i, row in enumerate(probes)]
    check_independence(scorer, probes, texts)
    chosen = [row["chosen"] for row in rows]
    scores = scorer([*rows, *rows], [*chosen, *(row["rejected"] for row in rows)], batch)
    return [
        ScoredPair(str(row["id"]), row["section"], row["subset"], good, bad)
        for row, good, bad in zip(rows, scores[: len(rows)], scores[len(rows) :], strict=True)
    ]
