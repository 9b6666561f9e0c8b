"""The aspects that a recipe names. A new one is a class with `score` and a line here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from rlhf_core.aspects.aspect import Aspect
from rlhf_core.aspects.length import Length
from rlhf_core.errors import RecipeError

#: Each aspect's factory; its keyword arguments are the options that a recipe may give.
ASPECTS: dict[str, Callable[..., Aspect]] = {
    "length": Length,
}


def _hint(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known) or 'none'}"


def build_aspect(spec: Mapping[str, Any]) -> Aspect:
    """The aspect that a specification says.

    Args:
        spec: `kind`, one of `ASPECTS`, and its options.

    Raises:
        RecipeError: an unknown kind or option, with the nearest known; an option that is missing or out of range.
    """
    kind = str(spec.get("kind"))
    if kind not in ASPECTS:
        raise RecipeError(f"unknown aspect '{kind}'{_hint(kind, list(ASPECTS))}")
    factory = ASPECTS[kind]
    known = list(inspect.signature(factory).parameters)
    options = {str(name): value for name, value in spec.items() if name != "kind"}
    for name in options:
        if name not in known:
            raise RecipeError(f"aspect '{kind}': unknown option '{name}'{_hint(name, known)}")
    try:
        aspect = factory(**options)
    except TypeError as error:
        raise RecipeError(f"aspect '{kind}': {error}") from None
    if not isinstance(aspect, Aspect):
        raise RecipeError(f"aspect '{kind}' lacks name, density, higher_is_better or score")
    return aspect
