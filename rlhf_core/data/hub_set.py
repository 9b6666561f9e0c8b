"""Selection from a Hugging Face data set, as a settings file describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf_core.typed import Checked


@dataclass(frozen=True)
class HubSet(Checked):
    """One Hugging Face data set and how its columns become our fields.

    Args:
        path: hub id, a folder written by `save_to_disk`, or a packaged loader ("json") with `data_files`.
        mapping: {our field: their column, or a dotted path into it such as "chosen.1.content"}. A step may
            be a key, an index (negative from the end) or a slice ("chosen.:-1"). A list of chat messages
            given as `prompt` is kept as `messages`, and its text form becomes the prompt. An index or slice into a
            text reads it as a dialogue of "Human:" and "Assistant:" turns.
        kind: record type; None takes the one that fits.
        config: configuration name of the data set.
        revision: commit or tag; pin it, or the data may change under a result.
        splits: {our split: their split}.
        data_files: {their split: file for a packaged loader, or files}.
    """

    path: str
    mapping: Mapping[str, str]
    kind: str | None = None
    config: str | None = None
    revision: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: {"train": "train", "test": "test"})
    data_files: Mapping[str, str | tuple[str, ...]] | None = None
