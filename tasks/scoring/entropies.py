"""The SFT model's entropies on responses: measured, read, and the cutoffs in nats that segmenters name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.policy import Policy
from rlhf_core.segmentation.segmenters import cutoff_names
from rlhf_core.supervised.objectives import sequence_statistics
from tasks.running.artifacts import read_json, read_tensors


@torch.no_grad()
def response_entropies(policy: Policy, sequences: list[EncodedSequence], batch: int = 64) -> list[torch.Tensor]:
    """Returns entropies per response token of each sequence, in batches of similar length."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    result: list[torch.Tensor] = [torch.zeros(0)] * len(sequences)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        statistics, mask = sequence_statistics(policy, [sequences[i] for i in rows], with_entropy=True)
        for i, values, real in zip(rows, statistics.entropies.cpu(), mask.cpu(), strict=True):
            result[i] = values[real].clone()
    return result


def load_entropies(folder: Path, split: str) -> list[list[float]]:
    """Returns entropies per response of a split (all chosen, then all rejected) or of the `examples`."""
    names = (f"{split}.values", f"{split}.lengths")
    stored = read_tensors(folder / "entropies.safetensors", names)
    values, lengths = (stored[name] for name in names)
    return [row.tolist() for row in values.split(lengths.tolist())]


def segmenter_with_cutoffs(spec: Mapping[str, Any], entropies: Path | None) -> dict[str, Any]:
    """Returns a segmenter spec with its entropy cutoffs in nats.

    Raises:
        RecipeError: a segmenter with cutoffs, without the result of the `entropies` stage.
        DataError: a cutoff that the result does not have.
    """
    stated = cutoff_names(spec)
    if not stated:
        return dict(spec)
    if entropies is None:
        raise RecipeError(f"a segmenter of kind {spec['kind']} needs the SFT model's entropies: give --entropies")
    known = read_json(entropies / "cutoffs.json")
    for name in map(str, stated.values()):
        if name not in known:
            raise DataError(
                f"entropy cutoff {name} is not among {sorted(known)}",
                file=str(entropies / "cutoffs.json"),
                remedy="Add it to `cutoffs` of `entropies` in the scale's stages.yaml",
            )
    return {**spec, **{option: known[str(name)] for option, name in stated.items()}}
