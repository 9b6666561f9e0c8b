"""The SaT segmenter: sentences add up to the text, long ones are cut again, and our tagger loads as SaT does."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import DataError
from rlhf_core.rollout import Responses
from rlhf_core.segmentation.boundary_tagger import GoldText, sentence_scores
from rlhf_core.segmentation.sat import SPLIT_MARKERS, SaT, load_splitter, split_long, text_digest


@given(st.text(alphabet="ab1 .,;!\n\t", max_size=80), st.integers(1, 30))
def test_a_long_sentence_is_cut_without_losing_a_character(sentence: str, limit: int) -> None:
    parts = split_long(sentence, limit)
    assert "".join(parts) == sentence
    for part in parts:
        if len(part) > limit:
            assert not any(f"a{marker}b" in part for marker in SPLIT_MARKERS)


def test_a_long_sentence_is_cut_at_the_first_marker_that_it_holds() -> None:
    sentence = "It weighs 1,250.5 kg; it eats grapes, nuts; and sleeps"
    assert split_long(sentence, 60) == [sentence]
    assert split_long(sentence, 44) == ["It weighs 1,250.5 kg; it eats grapes, nuts; ", "and sleeps"]
    assert split_long(sentence, 22) == ["It weighs 1,250.5 kg; ", "it eats grapes, nuts; ", "and sleeps"]
    assert split_long("without any mark at all", 5) == ["without any mark at all"]


class Fixed(SaT):
    """A SaT that cuts at '|' instead of asking a model, and remembers what it is asked."""

    def _split(self, texts: list[str]) -> list[list[str]]:
        self.__dict__.setdefault("asked", []).extend(texts)
        return [[part for part in text.replace("|", "|\0").split("\0") if part] for text in texts]


def sat(**options: Any) -> Fixed:
    return Fixed("nowhere", **options)


@given(st.lists(st.text(alphabet="a.é \n|", max_size=12), min_size=1, max_size=4))
def test_sentences_add_up_to_the_text(texts: list[str]) -> None:
    for text, ends in zip(texts, sat(max_sentence_chars=4).sentence_ends(texts), strict=True):
        assert ends == sorted(set(ends))
        assert (ends[-1] == len(text)) if text else (ends == [])
        parts = [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        assert "".join(parts) == text
        assert all(part.strip() for part in parts) or not text.strip()


def test_each_text_is_asked_for_once_and_known_texts_never() -> None:
    segmenter = sat(known={text_digest("known|text"): [3, 10]})
    assert segmenter.sentence_ends(["one|two", "known|text", "one|two", "", "  ", "?"]) == [
        [4, 7],
        [3, 10],
        [4, 7],
        [],
        [2],
        [1],
    ]
    assert segmenter.__dict__["asked"] == ["one|two"]


def spelled(rows: list[tuple[list[str], bool]]) -> Responses:
    width = max(len(pieces) for pieces, _ in rows)
    mask = torch.tensor([[i < len(pieces) for i in range(width)] for pieces, _ in rows])
    return Responses(mask.long(), mask, torch.tensor([e for _, e in rows]), pieces=[pieces for pieces, _ in rows])


def test_segments_end_at_boundary_tokens_and_eos_belongs_to_none() -> None:
    responses = spelled(
        [
            (["Hi", ".|", " Yes", " it|is|", " so", "<eos>"], True),
            (["no", " boundary"], False),
            (["<eos>"], True),
            (["cut|", " off"], False),
        ]
    )
    segmentation = sat().segment(responses)
    assert segmentation.spans(0) == [(0, 2), (2, 4), (4, 4), (4, 5)]
    assert segmentation.index[0].tolist() == [0, 0, 1, 1, 3, -1]
    assert [segmentation.spans(i) for i in (1, 2, 3)] == [[(0, 2)], [(0, 1)], [(0, 1), (1, 2)]]


def statements(n: int, seed: int = 0) -> list[GoldText]:
    """Texts of short statements, some of them without a full stop, with decimals."""
    rng, texts = random.Random(seed), []
    for _ in range(n):
        text, ends = "", []
        for _ in range(rng.randint(1, 4)):
            said = rng.choice(("It weighs 1.25 kg", "The fox eats grapes", "They live near the lake"))
            text += (" " if text else "") + said + rng.choice((".", "!", ""))
            ends.append(len(text))
        texts.append(GoldText(text, tuple(ends)))
    return texts


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-layer tagger trained for some seconds."""
    pytest.importorskip("wtpsplit")
    from rlhf_core.segmentation.boundary_tagger import save_tagger, train_tagger
    from rlhf_core.segmentation.sat import TaggerConfig
    from rlhf_core.supervised.config import TrainingConfig

    config = TaggerConfig(layers=1, hidden=32, heads=2, vocabulary=320, window=24, dropout=0.0)
    training = TrainingConfig(epochs=12, batch=16, microbatch=16, learning_rate=1e-2)
    model, tokenizer = train_tagger(statements(300), config, training, seed=0)
    folder = tmp_path_factory.mktemp("tagger") / "small" / "model"
    save_tagger(model, tokenizer, folder, threshold=0.5, max_sentence_chars=256)
    return folder


def test_our_tagger_loads_as_sat_and_finds_sentences(tagger: Path) -> None:
    gold = statements(40, seed=1)
    ends = SaT(str(tagger)).sentence_ends([item.text for item in gold])
    assert sentence_scores(ends, gold)["f1"] > 0.9


def test_a_batch_finds_what_one_by_one_finds_and_longer_texts_than_the_window_work(tagger: Path) -> None:
    segmenter = SaT(str(tagger))
    texts = [item.text for item in statements(12, seed=2)]
    texts += [" ".join(texts) * 3, "Überall – naïve 日本語 🙂.\n\n\tYes.", "\u200b", "x"]
    together = segmenter.sentence_ends(texts)
    assert together == [segmenter.sentence_ends([text])[0] for text in texts]
    assert together == dataclasses.replace(segmenter, batch=3).sentence_ends(texts)
    assert len(together[12]) > 10
    assert all(ends[-1] == len(text) for text, ends in zip(texts, together, strict=True))


def test_a_missing_model_says_where_to_get_it_and_what_works_offline(tmp_path: Path) -> None:
    pytest.importorskip("wtpsplit")
    with pytest.raises(DataError, match=r"huggingface.co/segment-any-text.*Without a network"):
        load_splitter(str(tmp_path))
