"""Settings and examples as they were used, noted where a model samples or learns, for the record of a stage.

What a stage was told to use is in its settings; these notes say what it did use:

1. `sampling`: for each purpose, such as answers or rollouts, every setting that responses were drawn with.
2. settings of each training loop, without those that suit a device.
3. `examples`: for each side of the training examples a digest of their tokens in the order in which they were learnt.

They are the same on any machine, however a batch is cut up. A checkpoint keeps them, so that a resumed run notes what
an uninterrupted one notes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rlhf_core import distributed

if TYPE_CHECKING:
    from rlhf_core.data.encoding import EncodedSequence

#: Notes by name: lists of settings, settings, or digests.
Notes = dict[str, Any]
#: Settings that suit a device, and that change no result beyond rounding.
OF_DEVICE = frozenset({"microbatch", "gradient_checkpointing", "padding_free", "engine"})

_notes: Notes = {}
_learning = False


def note_sampling(purpose: str, sampling: Any) -> None:
    """Notes the settings that responses are drawn with.

    Args:
        purpose: of the responses, such as 'answers'.
        sampling: a dataclass of settings.
    """
    known = _notes.setdefault("sampling", {}).setdefault(purpose, [])
    if (settings := _plain(asdict(sampling))) not in known:
        known.append(settings)
        known.sort(key=lambda one: json.dumps(one, sort_keys=True))


def note_settings(loop: str, settings: Any) -> None:
    """Notes the settings, a dataclass, of a training loop."""
    _notes[loop] = _plain(asdict(settings))


def note_steps(steps: int) -> None:
    """Notes how many steps a training over fixed examples has, which follows from their number."""
    _notes.setdefault("examples", {})["steps"] = str(steps)


@contextmanager
def learning() -> Iterator[None]:
    """Lets `note_examples` note in this block: the same losses are measured on examples that are not learnt, too."""
    global _learning
    before, _learning = _learning, True
    try:
        yield
    finally:
        _learning = before


def note_examples(side: str, sequences: Sequence[EncodedSequence], labels: Iterable[Any] = ()) -> None:
    """Notes examples that a model learns next; of several processes, each of which sees a part, nothing is noted.

    Args:
        side: 'chosen' or 'rejected' of a pair, else 'examples'.
        sequences: prompts and responses in tokens.
        labels: of each sequence, if it has any.
    """
    if _learning:
        _note_rows(side, ([_ids(each.prompt), _ids(each.response)] for each in sequences), labels)


def note_texts(side: str, texts: Sequence[Any], labels: Iterable[Any] = ()) -> None:
    """Notes examples that are not prompts with responses; see `note_examples`."""
    if _learning:
        _note_rows(side, texts, labels)


def _note_rows(side: str, rows: Iterable[Any], labels: Iterable[Any]) -> None:
    if distributed.world_size() > 1:
        return
    known, labelled = _notes.setdefault("examples", {}), iter(labels)
    for row in rows:
        label = next(labelled, None)
        text = json.dumps([known.get(side, ""), row, label if label is None else list(label)])
        known[side] = hashlib.sha256(text.encode()).hexdigest()[:16]


def _ids(tokens: Iterable[Any]) -> list[int]:
    return [int(token) for token in tokens]


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings as JSON has them, without those of a device."""
    found: dict[str, Any] = json.loads(json.dumps(settings, sort_keys=True))
    return {name: value for name, value in found.items() if name not in OF_DEVICE}


def notes_so_far() -> Notes:
    """Returns a copy of the notes since `take_notes` was last called."""
    copy: Notes = json.loads(json.dumps(_notes))
    return copy


def restore(saved: Notes) -> None:
    """Goes on from the notes of an interrupted run, beside the samplings that this process has noted."""
    own = notes_so_far().get("sampling", {})
    _notes.clear()
    _notes.update(json.loads(json.dumps(saved)))
    for purpose, settings in own.items():
        known = _notes.setdefault("sampling", {}).setdefault(purpose, [])
        known.extend(one for one in settings if one not in known)
        known.sort(key=lambda one: json.dumps(one, sort_keys=True))


def take_notes() -> Notes:
    """Returns the notes since this was last called; empty where a stage neither sampled nor trained."""
    found = notes_so_far()
    _notes.clear()
    return found
