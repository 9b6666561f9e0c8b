"""Sentences by SaT: a token classifier says where sentences end, rules cut what stays too long.

The model is a folder that wtpsplit's `SaT` loads: a released one (sat-1l, sat-3l, sat-9l) or one that the project
trained itself (`rlhf_core.segmentation.boundary_tagger`). Source: Sentence, §3.1 and appendix A.5.

1. Sentences put together are the source text, white space and line ends included.
2. A text in which no end is found is one sentence; an empty response is one segment, its EOS.
3. Longer texts than the model's window are read in windows that overlap by half.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.rollout import Responses
from rlhf_core.segmentation.segments import Segmentation, Segmenter, boundary_tokens, closing_positions, from_ends
from rlhf_core.typed import Checked, at_least, between

#: Markers behind which a sentence over the limit is cut again, in the order in which they are tried. Source: appendix
#: A.5, whose list the print garbles.
SPLIT_MARKERS = ("...", "\n", "!", "?", ";", ":", ".", ",", "\t")
SETTINGS_FILE = "segmenter.json"
KNOWN_FILE = "sentences.json"
RELEASED = ("sat-1l", "sat-3l", "sat-9l")


def text_digest(text: str) -> str:
    """Returns the key of a text among known sentences."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def split_long(sentence: str, limit: int, markers: Sequence[str] = SPLIT_MARKERS) -> list[str]:
    """Returns a sentence cut into parts of at most `limit` characters where markers allow it.

    It is cut behind every occurrence of the first marker that it holds, and the parts are put together again as long
    as they stay within the limit; parts still too long are cut at the next marker. A marker between two digits does
    not count. A part without a marker stays as long as it is.
    """
    if len(sentence) <= limit or not markers:
        return [sentence]
    cuts = [end for end in _marker_ends(sentence, markers[0]) if end < len(sentence)]
    parts: list[str] = []
    for start, end in zip([0, *cuts], [*cuts, len(sentence)], strict=True):
        part = sentence[start:end]
        if parts and len(parts[-1]) + len(part) <= limit:
            parts[-1] += part
        else:
            parts.append(part)
    return [piece for part in parts for piece in split_long(part, limit, markers[1:])]


def _marker_ends(sentence: str, marker: str) -> list[int]:
    """Returns the ends of a marker's occurrences, after the white space that follows them."""
    ends, place = [], sentence.find(marker)
    while place >= 0:
        end = place + len(marker)
        number = place > 0 and sentence[place - 1].isdigit() and sentence[end : end + 1].isdigit()
        while end < len(sentence) and sentence[end].isspace():
            end += 1
        if not number and sentence[:place].strip():
            ends.append(end)
        place = sentence.find(marker, end)
    return ends


@dataclass(frozen=True)
class StatedSaT(Checked):
    """A SaT segmenter as a file states it: a file of the scale's segmenters/, which holds the options."""

    model: str


@dataclass(frozen=True)
class SaT(Checked, Segmenter):
    """Sentences of a SaT model; each ends at its boundary token, and EOS belongs to none.

    Args:
        model: a folder, or a hub id such as sat-3l while the hub can be reached.
        max_sentence_chars: longer sentences are cut again.
        threshold: probability above which a character ends a sentence; None takes the model's own.
        batch: windows per forward pass.
        known: sentence ends by text digest that a stage has already found, besides those in the model's folder.
    """

    model: str
    max_sentence_chars: Annotated[int, at_least(1)] = 256
    threshold: Annotated[float, between(0, 1, open_low=True, open_high=True)] | None = None
    batch: Annotated[int, at_least(1)] = 32
    known: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    needs_spelling: ClassVar[bool] = True
    stated: ClassVar[type[Any]] = StatedSaT

    @classmethod
    def of_stage(cls, folder: Path) -> SaT:
        """Returns the segmenter that a `segmenter` stage made, with the sentences that it has found."""
        settings = folder / "model" / SETTINGS_FILE
        if not settings.is_file():
            raise DataError(f"no model/{SETTINGS_FILE}: this is not a result of the segmenter stage", file=str(folder))
        stored = json.loads(settings.read_text(encoding="utf-8"))
        known = json.loads((folder / KNOWN_FILE).read_text(encoding="utf-8"))
        return cls(str(folder / "model"), stored["max_sentence_chars"], stored["threshold"], known=known)

    @cached_property
    def splitter(self) -> Any:
        """Returns wtpsplit's `SaT`, loaded when first needed."""
        return load_splitter(self.model)

    @property
    def decision(self) -> float:
        """Returns the given threshold, else that in the model's folder, else wtpsplit's for released models."""
        if self.threshold is not None:
            return self.threshold
        settings = Path(self.model) / SETTINGS_FILE
        if settings.is_file():
            return float(json.loads(settings.read_text(encoding="utf-8"))["threshold"])
        # wtpsplit looks for "sm" anywhere in a path, so that a folder called `small` would change it.
        return 0.25 if Path(self.model).name.endswith("-sm") else 0.025

    def sentence_ends(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the increasing character ends of each text's sentences, the last one the text's length.

        Known texts cost nothing; the others go through the model together, in the order of their lengths.
        """
        keys = [text_digest(text) for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.known}
        ordered = sorted(missing.items(), key=lambda item: (len(item[1]), item[0]))
        found = dict(zip((key for key, _ in ordered), self._find([text for _, text in ordered]), strict=True))
        return [list(self.known[key] if key in self.known else found[key]) for key in keys]

    def _find(self, texts: list[str]) -> list[list[int]]:
        """Ends of texts that differ, by the model and the rules."""
        result = [[len(text)] if text else [] for text in texts]
        worth = [i for i, text in enumerate(texts) if len(list(islice(filter(_is_visible, text), 2))) > 1]
        for start in range(0, len(worth), 256):
            rows = worth[start : start + 256]
            for i, sentences in zip(rows, self._split([texts[i] for i in rows]), strict=True):
                if "".join(sentences) != texts[i]:
                    raise DataError(f"the sentences of a text do not add up to it: {texts[i]!r:.200}", file=self.model)
                parts = [part for sentence in sentences for part in split_long(sentence, self.max_sentence_chars)]
                result[i] = _merged(parts)
        return result

    def _split(self, texts: list[str]) -> list[list[str]]:
        block = min(510, self.splitter.model.config.max_position_embeddings - 4)
        options = {"block_size": block, "stride": max(1, block // 2), "batch_size": self.batch}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that line ends stay within sentences, which is what is asked for
            found = self.splitter.split(texts, threshold=self.decision, split_on_input_newlines=False, **options)
            return [list(sentences) for sentences in found]

    def segment(self, responses: Responses) -> Segmentation:
        """Returns segments that end at boundary tokens; several sentences may end on one token."""
        return cut_at(responses, self.sentence_ends)


def cut_at(responses: Responses, find_ends: Callable[[Sequence[str]], Sequence[Sequence[int]]]) -> Segmentation:
    """Returns segments that end at the boundary tokens of sentences, whose ends `find_ends` finds in texts as
    `SaT.sentence_ends` does."""
    rows = [responses.spelled(row) for row in range(len(responses.ids))]
    dense = responses.dense_lengths.tolist()
    ends = []
    for (text, spans), sentences, n in zip(rows, find_ends([t for t, _ in rows]), dense, strict=True):
        tokens = boundary_tokens([start for start, _ in spans[:n]], closing_positions(text, sentences))
        # White space behind the last sentence and tokens without text belong to it; without text, all is one.
        ends.append([*tokens[:-1], n - 1] if n else [])
    return from_ends(ends, responses.ids.shape[1]).to(responses.ids.device)


def _is_visible(letter: str) -> bool:
    return letter.isprintable() and not letter.isspace()


def _merged(parts: Sequence[str]) -> list[int]:
    """Ends of parts, those without visible characters joined to the one before them (the first, to the next)."""
    ends = list(accumulate(map(len, parts)))
    kept: list[int] = []
    for part, end in zip(parts, ends, strict=True):
        if part.strip() or not kept:
            kept.append(end)
        else:
            kept[-1] = end
    if len(kept) > 1 and not parts[0].strip():
        del kept[0]
    return kept


def load_splitter(model: str) -> Any:
    """Returns wtpsplit's `SaT` from a folder, or by hub id with the released models' tokenizer."""
    try:
        # Before the tokenizer: this registers the model type.
        import wtpsplit.models  # noqa: F401
        from wtpsplit import SaT as Splitter
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"the SaT segmenter needs {error.name}: `pip install rewardsmith` installs it with wtpsplit, or use "
            "the segmenter 'sentence', which needs no model"
        ) from None
    folder = Path(model)
    local = (folder / "config.json").is_file()
    try:
        options = {"tokenizer_name_or_path": model} if local and (folder / "tokenizer.json").is_file() else {}
        splitter = Splitter(model, **options)
    except (OSError, ValueError) as error:
        raise DataError(
            f"the SaT model cannot be loaded ({str(error).strip().splitlines()[0]})",
            file=model,
            remedy=f"Released models ({', '.join(RELEASED)}) are at https://huggingface.co/segment-any-text: give a "
            "hub id while the hub can be reached, or a folder with config.json, model.safetensors and tokenizer files. "
            "Without a network: train one (`source: train` in the segmenter's spec), or use the segmenter 'sentence'",
        ) from None
    splitter.model.model.eval()
    return splitter


@dataclass(frozen=True)
class TaggerConfig(Checked):
    """Size of a tagger.

    Args:
        layers: 1, 3 or 9 in the paper.
        hidden: width.
        heads: attention heads.
        vocabulary: tokens of its byte-level tokenizer.
        window: tokens that it sees at once.
        dropout: while training.
    """

    layers: Annotated[int, at_least(1)] = 3
    hidden: Annotated[int, at_least(1)] = 96
    heads: Annotated[int, at_least(1)] = 4
    vocabulary: Annotated[int, at_least(1)] = 1024
    window: Annotated[int, at_least(8)] = 126
    dropout: Annotated[float, between(0, 1, open_high=True)] = 0.1

    def _check_together(self) -> None:
        if self.hidden % self.heads:
            raise RecipeError(f"hidden is {self.hidden}; it must be a multiple of the {self.heads} heads")
