"""Aspects that a trained model gives: slices told right or wrong, or one value for the response (ALARM, §3.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.aspects.aspect import SLICERS, Density, Scored
from rlhf_core.errors import RecipeError
from rlhf_core.lazy import torch


class TrainedAspect:
    """An aspect by a model of the stage `aspect_model`.

    Args:
        folder: its `result/model`.
        right, wrong: what a slice earns that the model calls right or wrong; a sequence aspect pays the head's value.
        batch: responses per forward pass.
        device: where the model runs.
    """

    higher_is_better = True

    def __init__(
        self, folder: str | Path, right: float = 0.5, wrong: float = -0.5, batch: int = 64, device: str = "cpu"
    ) -> None:
        self.check(right, wrong)
        from rlhf_core.data.encoding import Encoder, Limits
        from rlhf_core.data.templates import chat_template
        from rlhf_core.models.loading import load_tokenizer
        from rlhf_core.models.reward_model import ScalarModel

        self._model, trained = ScalarModel.load(Path(folder))
        missing = {"aspect", "density", "template", "limits"} - set(trained)
        if missing:
            raise RecipeError(
                f"{folder}: not an aspect model (no {', '.join(sorted(missing))}); use one of `aspect_model`"
            )
        self._model.to(torch.device(device)).eval().requires_grad_(False)
        self._encoder = Encoder(load_tokenizer(folder), chat_template(trained["template"]), Limits(**trained["limits"]))
        self._right, self._wrong, self._batch = right, wrong, batch
        self._name, self._density = str(trained["aspect"]), Density(trained["density"])

    @staticmethod
    def check(right: float = 0.5, wrong: float = -0.5, batch: int = 64) -> None:
        """Refuses options that no trained aspect has."""
        if not right > wrong:
            raise RecipeError(f"aspect 'trained': right is {right} and wrong {wrong}; right must be above wrong")

    @property
    def name(self) -> str:
        return self._name

    @property
    def density(self) -> Density:
        return self._density

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        from rlhf_core.aspects.slice_classification import all_slice_logits, slice_ends
        from rlhf_core.segmentation.segments import SegmentedSequence

        slicer = SLICERS.get(self._density)
        slices = [[(0, len(text))] if slicer is None else slicer(text) for text in responses]
        sequences = []
        for record, text, spans in zip(records, responses, slices, strict=True):
            encoded = self._encoder.sequence(record, text)
            last = [len(encoded.response) - 1]
            ends = last if slicer is None else slice_ends(self._encoder.tokenizer, encoded, spans)
            sequences.append(SegmentedSequence(encoded, ends))
        logits = all_slice_logits(self._model, sequences, self._encoder.pad_id, self._batch)
        if slicer is None:
            return [Scored(tuple(spans), (row[0],)) for spans, row in zip(slices, logits, strict=True)]
        return [
            Scored(tuple(spans), tuple(self._right if value > 0 else self._wrong for value in row))
            for spans, row in zip(slices, logits, strict=True)
        ]
