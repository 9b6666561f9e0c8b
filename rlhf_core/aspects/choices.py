"""The aspects that a recipe names. A new one is a class with `score` and a line here.

One of the user's own needs no line: `{kind: my_aspects:Politeness}` imports it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlhf_core.aspects.aspect import Aspect
from rlhf_core.aspects.language import LanguageConfidence, Readability
from rlhf_core.aspects.language_tool import LanguageToolGrammar
from rlhf_core.aspects.tokens import Length
from rlhf_core.aspects.trained import TrainedAspect
from rlhf_core.aspects.truth import TrueCompleteness, TrueGrammar, true_factuality, true_relevance
from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError

#: Each aspect's factory; its keyword arguments are the options that a recipe may give.
ASPECTS: Choices[Callable[..., Aspect]] = Choices(
    "aspect",
    {
        "length": Length,
        "trained": TrainedAspect,
        "grammar": LanguageToolGrammar,
        "confidence": LanguageConfidence,
        "readability": Readability,
        "testbed-relevance": true_relevance,
        "testbed-factuality": true_factuality,
        "testbed-completeness": TrueCompleteness,
        "testbed-grammar": TrueGrammar,
    },
)


def build_aspect(spec: Mapping[str, Any], **provided: Any) -> Aspect:
    """Returns the aspect that a specification says.

    Args:
        spec: `kind`, one of `ASPECTS` or `package.module:name` of the user's own, and its options.
        provided: what no file can hold, given to those aspects that take it: `offsets`, the character spans of the
            policy's tokens.

    Raises:
        RecipeError: an unknown kind or option, with the nearest known; an option that is missing or wrong.
    """
    aspect = ASPECTS.build(spec, **provided)
    if not isinstance(aspect, Aspect):
        raise RecipeError(f"aspect '{spec['kind']}' lacks name, density, higher_is_better or score")
    return aspect
