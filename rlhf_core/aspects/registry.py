"""The aspects that a recipe names. A new one is a class with `score` and a line here.

One of the user's own needs no line: `{kind: my_aspects:Politeness}` imports it by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from rlhf_core.aspects.aspect import Aspect
from rlhf_core.aspects.language import LanguageConfidence, Readability
from rlhf_core.aspects.language_tool import LanguageToolGrammar
from rlhf_core.aspects.length import Length
from rlhf_core.aspects.trained import TrainedAspect
from rlhf_core.aspects.truth import TrueCompleteness, TrueGrammar, true_factuality, true_relevance
from rlhf_core.errors import RecipeError
from rlhf_core.named import import_named

#: Each aspect's factory; its keyword arguments are the options that a recipe may give.
ASPECTS: dict[str, Callable[..., Aspect]] = {
    "length": Length,
    "trained": TrainedAspect,
    "grammar": LanguageToolGrammar,
    "confidence": LanguageConfidence,
    "readability": Readability,
    "testbed-relevance": true_relevance,
    "testbed-factuality": true_factuality,
    "testbed-completeness": TrueCompleteness,
    "testbed-grammar": TrueGrammar,
}


def _hint(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known) or 'none'}"


def build_aspect(spec: Mapping[str, Any], **provided: Any) -> Aspect:
    """The aspect that a specification says.

    Args:
        spec: `kind`, one of `ASPECTS` or `package.module:name` of the user's own, and its options.
        provided: what no file can hold, given to those aspects that take it: `offsets`, the character spans of the
            policy's tokens.

    Raises:
        RecipeError: an unknown kind or option, with the nearest known; an option that is missing or out of range.
    """
    kind = str(spec.get("kind"))
    if kind not in ASPECTS and ":" not in kind:
        raise RecipeError(f"unknown aspect '{kind}'{_hint(kind, list(ASPECTS))}")
    factory = ASPECTS[kind] if kind in ASPECTS else import_named(kind, "aspect")
    known = list(inspect.signature(factory).parameters)
    options = {str(name): value for name, value in spec.items() if name != "kind"}
    for name in options:
        if name not in known:
            raise RecipeError(f"aspect '{kind}': unknown option '{name}'{_hint(name, known)}")
    options |= {name: value for name, value in provided.items() if name in known and name not in options}
    try:
        aspect = factory(**options)
    except TypeError as error:
        raise RecipeError(f"aspect '{kind}': {error}") from None
    if not isinstance(aspect, Aspect):
        raise RecipeError(f"aspect '{kind}' lacks name, density, higher_is_better or score")
    return aspect
