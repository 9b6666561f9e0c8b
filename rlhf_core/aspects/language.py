"""Language confidence through lingua, and readability through textstat (ALARM, §4.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.aspects.aspect import Density, Scored
from rlhf_core.errors import RecipeError, ToolError


class LanguageConfidence:
    """Probability in [0, 1] that the response is in the target language, among several languages.

    Args:
        language: the target language's name, as lingua has it.
        among: the languages told apart, the target among them.
    """

    name = "confidence"
    density = Density.SEQUENCE
    higher_is_better = True

    def __init__(
        self,
        language: str = "english",
        among: Sequence[str] = ("english", "spanish", "french", "german", "italian", "portuguese"),
    ) -> None:
        try:
            from lingua import Language, LanguageDetectorBuilder
        except ImportError:
            raise RecipeError("aspect 'confidence' needs lingua: pip install 'rewardsmith[tools]'") from None
        known = {each.name.lower(): each for each in Language.all()}
        for name in (language, *among):
            if name.lower() not in known:
                raise RecipeError(
                    f"aspect 'confidence': lingua knows no language '{name}'; names are English, as 'spanish'"
                )
        if language.lower() not in {name.lower() for name in among} or len(set(among)) < 2:
            raise RecipeError(f"aspect 'confidence': among must contain '{language}' and another language")
        self._target = known[language.lower()]
        self._detector = LanguageDetectorBuilder.from_languages(*(known[n.lower()] for n in among)).build()

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        # lingua gives 0 for a text without letters, and another last digit at each call.
        values = [round(self._detector.compute_language_confidence(text, self._target), 9) for text in responses]
        return [Scored(((0, len(text)),), (value,)) for text, value in zip(responses, values, strict=True)]


#: Readability formulas of textstat, and the sign that makes higher mean easier to read.
FORMULAS = {
    "flesch_reading_ease": 1.0,
    "flesch_kincaid_grade": -1.0,
    "gunning_fog": -1.0,
    "automated_readability_index": -1.0,
    "coleman_liau_index": -1.0,
}


class Readability:
    """Ease of reading by a formula of textstat; higher is easier unless the recipe sets the other direction.

    Args:
        formula: one of `FORMULAS`. Those of letters and words (automated_readability_index, coleman_liau_index) need
            nothing else; those of syllables need NLTK's cmudict.
        limit: values beyond +-limit, which a handful of characters can reach, are cut to it.
        easier: False pays for what is harder to read, as ALARM's released code does with the Flesch-Kincaid grade.
    """

    name = "readability"
    density = Density.SEQUENCE
    higher_is_better = True

    def __init__(self, formula: str = "automated_readability_index", limit: float = 100.0, easier: bool = True) -> None:
        if formula not in FORMULAS:
            raise RecipeError(f"aspect 'readability': unknown formula '{formula}'; known: {', '.join(FORMULAS)}")
        if not limit > 0:
            raise RecipeError(f"aspect 'readability': limit is {limit}; it must be above 0")
        try:
            import textstat
        except ImportError:
            raise RecipeError("aspect 'readability' needs textstat: pip install 'rewardsmith[tools]'") from None
        self._formula, self._limit = getattr(textstat, formula), limit
        self._sign = FORMULAS[formula] if easier else -FORMULAS[formula]
        try:
            self._formula("A short sentence.")
        except LookupError:
            raise ToolError(
                f"aspect 'readability': {formula} counts syllables by NLTK's cmudict, which is not installed; run "
                "`python -m nltk.downloader cmudict`, or use automated_readability_index"
            ) from None

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        return [Scored(((0, len(text)),), (self._value(text),)) for text in responses]

    def _value(self, text: str) -> float:
        if not any(character.isalnum() for character in text):
            return -self._limit
        value = self._sign * float(self._formula(text))
        if not math.isfinite(value):
            raise ToolError(f"aspect 'readability': {value} for {text[:60]!r}")
        return max(-self._limit, min(self._limit, value))
