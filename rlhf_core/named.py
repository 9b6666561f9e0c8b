"""Things of the user's own that a recipe names as `package.module:name`.

Naming one is asking for that module to be imported: recipes are code as far as trust goes.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from rlhf_core.errors import RecipeError, hint


def import_named(name: str, what: str) -> Callable[..., Any]:
    """Returns the callable of a name; the working directory is searched, too.

    Args:
        name: `package.module:name`.
        what: its noun in errors, as in 'reward function'.

    Raises:
        RecipeError: a name of another form, a module that cannot be imported, or nothing callable in it.
    """
    found = import_attribute(name, what)
    if not callable(found):
        module, _, attribute = name.partition(":")
        raise RecipeError(f"{what} '{name}': module {module} has no callable '{attribute}'")
    return found  # type: ignore[no-any-return]


def import_attribute(name: str, what: str) -> Any:
    """Returns the attribute of a module that a name says; the working directory is searched, too.

    Args:
        name: `package.module:name`.
        what: its noun in errors.

    Raises:
        RecipeError: a name of another form, a module that cannot be imported, or one without that attribute.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise RecipeError(f"{what} '{name}': name it as 'package.module:name'")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(f"{what} '{name}': {error}") from None
    except Exception as error:  # whatever the module does when it is imported
        place = f"line {error.lineno} of {error.filename}: " if isinstance(error, SyntaxError) else ""
        detail = error.msg if isinstance(error, SyntaxError) else str(error)
        raise RecipeError(
            f"{what} '{name}': module {module} cannot be imported: {place}{type(error).__name__}: {detail}"
        ) from error
    found = getattr(imported, attribute, None)
    if found is None:
        public = [known for known in vars(imported) if not known.startswith("_")]
        raise RecipeError(f"{what} '{name}': module {module} has no '{attribute}'{hint(attribute, public)}")
    return found
