"""Setting files: YAML mappings turned into typed values, with unknown fields refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rlhf_core.errors import DataError, RecipeError

T = TypeVar("T")


def read_settings(path: Path) -> dict[str, Any]:
    """A YAML file's mapping."""
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"not valid YAML ({error})", file=str(path)) from None
    if not isinstance(value, dict):
        raise DataError("expected a mapping of settings", file=str(path))
    return value


def typed(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """A dataclass from a mapping; unknown and missing fields are named with the file that holds them."""
    assert is_dataclass(cls)
    known = {f.name for f in fields(cls)}
    for name in values:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(sorted(known))}"
            raise RecipeError(f"{where}: unknown setting '{name}'{hint}")
    converted = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    try:
        return cls(**converted)
    except TypeError as error:
        raise RecipeError(f"{where}: {error}") from None
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from None
