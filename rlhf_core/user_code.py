"""Things of the user's own that a recipe names as `package.module:name`.

Naming one is asking for that module to be imported: recipes are code as far as trust goes.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rlhf_core.errors import RecipeError, RewardsmithError, hint

T = TypeVar("T")
#: Packages of this platform, whose errors of other kinds are faults of the platform.
_PLATFORM = ("rlhf_core", "tasks", "flows")


def import_callable(name: str, what: str) -> Callable[..., Any]:
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
    except SystemExit:
        raise RecipeError(f"{what} '{name}': module {module} ends the process when it is imported") from None
    found = getattr(imported, attribute, None)
    if found is None:
        public = [known for known in vars(imported) if not known.startswith("_")]
        raise RecipeError(f"{what} '{name}': module {module} has no '{attribute}'{hint(attribute, public)}")
    return found


def called(maker: Callable[..., T], arguments: Mapping[str, Any], where: str = "") -> T:
    """Returns what a class or function makes of arguments.

    Raises:
        RecipeError: a class or function of the user's own raised an error; the message has the place.
    """
    try:
        return maker(**arguments)
    except RewardsmithError:
        raise
    except Exception as error:
        module = getattr(maker, "__module__", None)
        if module is None or module.partition(".")[0] in _PLATFORM:
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"line {last.lineno} of {last.filename}: {type(error).__name__}: {error}"
        raise RecipeError(f"{where}: {place}" if where else place) from error
