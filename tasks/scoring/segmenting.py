"""Responses cut into segments, as reward models are trained on them and read, and the entropies that some cut by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlhf_core.data.batching import rows_by_length
from rlhf_core.data.encoding import EncodedSequence, Encoder, whole_pairs
from rlhf_core.data.tokenizers import require_offset_mapping, token_spans
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.policy import Policy, sequence_statistics
from rlhf_core.segmentation.end_tokens import with_end_tokens
from rlhf_core.segmentation.segmenters import cutoff_names
from rlhf_core.segmentation.segments import SegmentedSequence, Segmenter
from tasks.running.artifacts import read_json, read_tensors
from tasks.running.result_rows import PreferencePair

NO_SENTENCES = "this reward model reads a token behind each sentence: use a segmenter that finds sentences, such as sat"
#: Responses that are cut at a time.
CHUNK = 512


@dataclass(frozen=True)
class SegmentedPairs:
    """Preference pairs of one split that the limits left whole, cut into segments: chosen then rejected responses;
    `dropped` is the number of the other pairs."""

    rows: list[PreferencePair]
    sequences: list[SegmentedSequence]
    spans: list[list[tuple[int, int]]]
    dropped: int

    @property
    def count(self) -> int:
        """Returns the number of pairs; there are twice as many sequences."""
        return len(self.rows)


@dataclass(frozen=True)
class Reading:
    """Way in which a reward model reads responses.

    Args:
        encoder: their tokens.
        segmenter: cuts them.
        end_token: id of `<END>`, which is added behind each sentence after responses were cut to the limits; None for
            none.
    """

    encoder: Encoder
    segmenter: Segmenter
    end_token: int | None = None

    def stored_entropies(self, folder: Path | None, split: str) -> list[list[float]] | None:
        """Returns the entropies of a split by a result of `entropies`; None where the segmenter needs none."""
        if not self.segmenter.needs_entropies:
            return None
        if folder is None:
            raise RecipeError("the reward model cuts by entropies: give --entropies")
        return load_entropies(folder, split)

    def pairs(
        self, rows: list[PreferencePair], entropies: list[list[float]] | None, file: Path | None = None
    ) -> SegmentedPairs:
        """Returns both responses of every pair that the limits leave whole, encoded and cut; `entropies` are of all
        pairs, which come from `file`."""
        chosen, rejected = ([self.encoder.sequence(row, row[side]) for row in rows] for side in ("chosen", "rejected"))
        whole = whole_pairs(chosen, rejected, self.encoder.eos_id, file=None if file is None else str(file))
        if entropies is not None:
            entropies = [entropies[start + i] for start in (0, len(rows)) for i in whole.kept]
        cut = self.cut([*whole.chosen, *whole.rejected], entropies)
        return SegmentedPairs([rows[i] for i in whole.kept], *cut, whole.dropped)

    def cut(
        self, encoded: list[EncodedSequence], entropies: list[list[float]] | None
    ) -> tuple[list[SegmentedSequence], list[list[tuple[int, int]]]]:
        """Returns the sequences with the ends of their responses' segments, and the segments' half-open spans, which
        may be empty (see `Segmentation`).

        Raises:
            RecipeError: `<END>` with segments that are not sentences.
        """
        encoder, segmenter = self.encoder, self.segmenter
        sequences: list[SegmentedSequence] = []
        spans: list[list[tuple[int, int]]] = []
        if self.end_token is not None:
            find_ends = getattr(segmenter, "sentence_ends", None)
            if find_ends is None:
                raise RecipeError(NO_SENTENCES)
            texts = [token_spans(encoder.tokenizer, sequence.response)[0] for sequence in encoded]
            for sequence, text, sentences in zip(encoded, texts, find_ends(texts), strict=True):
                ids, ends = with_end_tokens(encoder.tokenizer, text, sentences, self.end_token)
                sequences.append(SegmentedSequence(EncodedSequence(sequence.prompt, [*ids, encoder.eos_id]), ends))
                spans.append([(start, end + 1) for start, end in zip([0, *(e + 1 for e in ends)], ends, strict=False)])
            return sequences, spans
        if segmenter.needs_spelling:
            require_offset_mapping(encoder.tokenizer)
        for start in range(0, len(encoded), CHUNK):
            part = encoded[start : start + CHUNK]
            wanted = entropies[start : start + CHUNK] if entropies is not None else None
            found = segmenter.segment(encoder.responses(part, wanted, spelled=segmenter.needs_spelling))
            spans += [found.spans(i) for i in range(len(part))]
            ends_of = ([end - 1 for _, end in own] for own in spans[start:])
            sequences += [SegmentedSequence(sequence, ends) for sequence, ends in zip(part, ends_of, strict=True)]
        return sequences, spans


def divide_among_tokens(spans: list[tuple[int, int]], values: list[float], tokens: int) -> list[float | None]:
    """Returns each segment's reward divided evenly among its tokens; None outside every segment.

    A segment without tokens adds its reward to the token on which it ends.
    """
    rewards: list[float | None] = [None] * tokens
    for (start, end), value in zip(spans, values, strict=True):
        if start < end:
            rewards[start:end] = [value / (end - start)] * (end - start)
        else:
            rewards[end - 1] = (rewards[end - 1] or 0.0) + value
    return rewards


@torch.no_grad()
def response_entropies(policy: Policy, sequences: list[EncodedSequence], batch: int = 64) -> list[torch.Tensor]:
    """Returns entropies per response token of each sequence, in batches of similar length."""
    result: list[torch.Tensor] = [torch.zeros(0)] * len(sequences)
    for rows in rows_by_length([len(each) for each in sequences], batch):
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
