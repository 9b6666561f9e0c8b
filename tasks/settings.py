"""Setting files: YAML mappings turned into typed values, with unknown fields refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.typed import typed as typed


class _Twice(yaml.YAMLError):
    """A setting that stands twice in one mapping."""

    def __init__(self, name: str, row: int) -> None:
        self.name, self.row = name, row


class _Loader(yaml.CSafeLoader):
    """Refuses what YAML would settle silently by the later one: two values of one setting."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _Twice(key.value, key.start_mark.line + 1)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_settings(path: Path) -> dict[str, Any]:
    """A YAML file's mapping.

    Raises:
        DataError: it cannot be read, is no YAML, no mapping, or has a setting twice.
    """
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path), remedy="Check the path") from None
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", file=str(path), remedy="Check the path") from None
    except _Twice as twice:
        raise DataError(
            "stands twice", file=str(path), row=twice.row, field=twice.name, remedy="Keep the one that is meant"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        row = mark.line + 1 if mark else None
        raise DataError(
            f"not valid YAML ({error.problem})", file=str(path), row=row, remedy="Correct it there"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"not valid YAML ({reason})", file=str(path), remedy="It must be YAML in UTF-8") from None
    if not isinstance(value, dict):
        raise DataError(
            "expected a mapping of settings", file=str(path), remedy="It needs lines of the form name: value"
        )
    return value


def overrides(own: Mapping[str, Any], scale: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's own settings over the scale's; `{times: 2}` is twice the scale's value.

    Raises:
        RecipeError: a multiple of what is no number.
    """
    return {name: _multiple(name, value, scale) for name, value in own.items() if name != "kind"}


def _multiple(name: str, value: Any, scale: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    times, own = value.get("times"), scale.get(name)
    for number, whose in ((times, "the row"), (own, "the scale")):
        known = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        if set(value) != {"times"} or not known:
            raise RecipeError(
                f"{name} is {dict(value)}, {whose} gives {number}; state a number, or {{times: 2}} of the scale's"
            )
    found = times * own  # type: ignore[operator]
    return round(found) if isinstance(own, int) else found
