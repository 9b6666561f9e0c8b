"""Aspects keep what they declare; their values are those of the testbed's truth."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.aspects import Density, Scored, checked_scores, rate
from rlhf_core.aspects.choices import build_aspect
from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.testbed.longform import LongFormWorld
from rlhf_core.testbed.translation import TranslationWorld
from rlhf_core.testbed.translation_grammar import grammar_errors

QUESTIONS = LongFormWorld()
ROWS = QUESTIONS.labelled_answers(60, 0)
ANSWERS = [row["response"] for row in ROWS]


@dataclass(frozen=True)
class Declared:
    """An aspect that says anything of anything."""

    density: Density
    scored: Scored
    name: str = "declared"
    higher_is_better: bool = True

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        return [self.scored for _ in responses]


class Short(Declared):
    """An aspect that scores one response, however many there are."""

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        return [self.scored]


@pytest.mark.parametrize(
    ("density", "scored", "said"),
    [
        (Density.SEQUENCE, Scored(((0, 2),), (1.0,)), "one span over the whole response"),
        (Density.SEQUENCE, Scored(((0, 2), (2, 5)), (1.0, 1.0)), "declare the density it has"),
        (Density.SENTENCE, Scored(((0, 9),), (1.0,)), "outside the response"),
        (Density.SPAN, Scored(((-1, 2),), (1.0,)), "outside the response"),
        (Density.TOKEN, Scored(((2, 4), (3, 5)), (1.0, 1.0)), "before the end"),
        (Density.TOKEN, Scored(((0, 2),), ()), "0 values for 1 spans"),
    ],
)
def test_what_an_aspect_did_not_declare_is_refused(density: Density, scored: Scored, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        checked_scores(Declared(density, scored), [{}], ["hello"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_stop_the_run(value: float) -> None:
    with pytest.raises(NumericsError, match="not finite"):
        checked_scores(Declared(Density.SEQUENCE, Scored(((0, 5),), (value,))), [{}], ["hello"])


def test_every_response_is_scored() -> None:
    aspect = Declared(Density.SEQUENCE, Scored(((0, 5),), (1.0,)))
    with pytest.raises(RecipeError, match="scored 1 of 2"):
        checked_scores(Short(aspect.density, aspect.scored), [{}] * 2, ["hello", "world"])
    with pytest.raises(RecipeError, match="1 records for 2"):
        checked_scores(aspect, [{}], ["hello", "world"])


def test_truth_without_noise_is_the_truth() -> None:
    for row, text in zip(ROWS, ANSWERS, strict=True):
        for kind in ("relevance", "factuality"):
            (scored,) = checked_scores(
                build_aspect({"kind": f"testbed-{kind}", "right": 1, "wrong": -1}), [row], [text]
            )
            told = [[a, b, value > 0] for (a, b), value in zip(scored.spans, scored.values, strict=True)]
            assert told == row["labels"][kind]
        (complete,) = build_aspect({"kind": "testbed-completeness"}).score([row], [text])
        assert complete.values[0] == pytest.approx(row["labels"]["completeness"], abs=1e-5)


def test_rates_of_slices_are_shares_and_half_without_any() -> None:
    aspect = Declared(Density.SENTENCE, Scored((), ()))
    assert rate(aspect, Scored(((0, 1), (1, 2), (2, 3)), (0.5, -0.5, 0.5))) == pytest.approx(2 / 3)
    assert rate(aspect, Scored((), ())) == 0.5
    token = Declared(Density.TOKEN, Scored((), ()))
    assert rate(token, Scored(((0, 1), (1, 2)), (-1.0, 0.0))) == 0.5
    assert rate(token, Scored((), ())) == 0.0
    assert rate(token, Scored(((0, 1), (1, 2), (2, 3), (3, 4)), (-1.0, -1.0, 0.0, 0.0), errors=1)) == 0.25
    assert rate(Declared(Density.SEQUENCE, Scored((), ())), Scored(((0, 3),), (2.5,))) == 2.5


def test_grammar_of_the_testbed_is_the_checker_on_the_tokens_given() -> None:
    rows = TranslationWorld().sft_examples(50, 0)
    texts = [row["response"] for row in rows]
    letters = build_aspect({"kind": "testbed-grammar"}, offsets=lambda text: [(i, i + 1) for i in range(len(text))])
    words = build_aspect({"kind": "testbed-grammar"})
    for text, by_letter, by_word in zip(
        texts, checked_scores(letters, rows, texts), checked_scores(words, rows, texts), strict=True
    ):
        wrong = {i for span in grammar_errors(text) for i in range(*span)}
        assert [i for (i, _), v in zip(by_letter.spans, by_letter.values, strict=True) if v < 0] == sorted(wrong)
        assert -sum(by_word.values) == len(grammar_errors(text))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"kind": "factualty"}, "unknown aspect 'factualty'"),
        ({"kind": "testbed-factuality"} | {"noize": 0.1}, "did you mean 'noise'"),
        ({"kind": "testbed-factuality", "noise": 0.7}, r"noise is 0.7; it must be from 0 to 0.5"),
        ({"kind": "length", "mean_tokens": 0}, "mean_tokens is 0; it must be above 0"),
        ({"kind": "trained"}, "folder"),
        ({}, "aspect: 'kind' is missing"),
        ({"kind": "no_such_module_here:Politeness"}, "aspect 'no_such_module_here:Politeness': No module named"),
        ({"kind": "math:sqrt"}, "aspect 'math:sqrt'"),
    ],
)
def test_a_wrong_specification_is_refused_by_name(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        build_aspect(spec)


def test_an_aspect_of_ones_own_is_imported_by_name_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_aspects.py").write_text(
        "from rlhf_core.aspects import Density, Scored\n\n\n"
        "class Shouting:\n"
        "    name, density, higher_is_better = 'shouting', Density.SEQUENCE, True\n\n"
        "    def __init__(self, mark='!'):\n        self.mark = mark\n\n"
        "    def score(self, records, responses):\n"
        "        return [Scored(((0, len(text)),), (float(text.count(self.mark)),)) for text in responses]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    aspect = build_aspect({"kind": "own_aspects:Shouting", "mark": "?"}, offsets=None)
    assert checked_scores(aspect, [{}], ["What? No!"])[0].values == (1.0,)
    with pytest.raises(RecipeError, match="unknown option 'marks'; did you mean 'mark'"):
        build_aspect({"kind": "own_aspects:Shouting", "marks": "?"})


def test_truth_of_a_record_without_it_is_refused() -> None:
    with pytest.raises(DataError, match="no 'facts' in its meta"):
        build_aspect({"kind": "testbed-factuality"}).score([{"prompt": "x"}], ["The cat."])


def test_confidence_knows_english_from_spanish_and_from_nothing() -> None:
    pytest.importorskip("lingua")
    aspect = build_aspect({"kind": "confidence"})
    texts = ["The old dog sees an apple.", "El perro viejo ve una manzana.", "", "123 456"]
    english, spanish, empty, digits = (one.values[0] for one in checked_scores(aspect, [{}] * 4, texts))
    assert english > 0.5 > 0.2 > spanish
    assert 0 <= empty <= 1
    assert 0 <= digits <= 1
    with pytest.raises(RecipeError, match="knows no language 'klingon'"):
        build_aspect({"kind": "confidence", "language": "klingon"})


def test_readability_falls_with_longer_words_and_is_finite_for_anything() -> None:
    pytest.importorskip("textstat")
    aspect = build_aspect({"kind": "readability"})
    texts = ["The cat sat on the mat.", "Incomprehensible institutionalisation notwithstanding.", "", "...", "a" * 5000]
    values = [one.values[0] for one in checked_scores(aspect, [{}] * 5, texts)]
    assert values[0] > values[1]
    assert min(values) >= -100
    harder = build_aspect({"kind": "readability", "easier": False})
    texts = ["The cat sat on the mat.", "Incomprehensible characteristics notwithstanding."]
    ways = [[one.values[0] for one in way.score([{}, {}], texts)] for way in (aspect, harder)]
    assert ways[1] == [-value for value in ways[0]]
    with pytest.raises(RecipeError, match="unknown formula"):
        build_aspect({"kind": "readability", "formula": "flesch"})
