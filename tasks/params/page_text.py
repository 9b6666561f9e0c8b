"""Text of a page: the shortest base for some entries, what each says beside it, and YAML that DVC leaves as it is.

DVC rewrites a page when `dvc exp run -S` changes a value in it. What is written here is what its writer gives: mappings
in lines, lists at their name's indent, and short flow mappings of at most 80 columns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rlhf_core.errors import RecipeError
from tasks.params.pages import BASE, difference
from tasks.params.yaml_files import Loader

WIDTH = 78


def best_base(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the values that most entries have, at every depth: what a page's base says.

    Entries of another `kind` than most say everything themselves. A value that some entry sets to null is left to the
    entries, since null there would remove it.
    """
    if len(entries) < 2:
        return {}
    kinds = [entry["kind"] if isinstance(entry.get("kind"), str) else "" for entry in entries]
    kind = Counter(kinds).most_common(1)[0][0]
    own = [entry for entry, of in zip(entries, kinds, strict=True) if of in (kind, "")]
    names = dict.fromkeys(name for entry in own for name in entry)
    base: dict[str, Any] = {}
    for name in names:
        values = [entry[name] for entry in own if name in entry]
        if len(own) - len(values) > len(own) // 9 or len(values) < 2:  # each entry without it would say null
            continue
        nulls = [value for value in values if value is None]
        mappings = [value for value in values if isinstance(value, Mapping)]
        if 2 * len(mappings) > len(own) and not nulls:
            common = best_base(mappings)
            if common:
                base[name] = common
            continue
        texts = Counter(json.dumps(value, sort_keys=True) for value in values)
        text, count = texts.most_common(1)[0]
        chosen = next(value for value in values if json.dumps(value, sort_keys=True) == text)
        if count > 1 and 2 * count > len(own) and (not nulls or chosen is None):
            base[name] = chosen
    return base


def page_text(entries: Mapping[str, Mapping[str, Any]], header: str = "") -> str:
    """Returns the page of some entries.

    Args:
        entries: whole settings by name.
        header: a comment above the page.
    """
    base = best_base([*entries.values()])
    try:
        own = {name: difference(base, entry) for name, entry in entries.items()}
    except RecipeError:
        base, own = {}, {name: dict(entry) for name, entry in entries.items()}
    parts = [_comment(header)] if header else []
    parts += [_block({BASE: base})] if base else []
    for name, values in own.items():
        parts.append(_block({name: {part: values[part] for part in sorted(values, key=lambda part: part != "title")}}))
    return "".join(parts)


def _comment(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def _block(values: Mapping[str, Any], indent: int = 0) -> str:
    lines = []
    for name, value in values.items():
        lead = f"{' ' * indent}{_scalar(name)}:"
        flow = f"{lead} {_flow(value)}"
        if not isinstance(value, Mapping | list):
            lines.append(f"{lead} {_scalar(value, 'a: {}')}\n")
        elif not value or (indent and len(flow) <= WIDTH and not _of_mappings(value)):
            lines.append(f"{flow}\n")
        elif isinstance(value, Mapping):
            lines.append(f"{lead}\n{_block(value, indent + 2)}")
        else:
            lines.append(f"{lead}\n" + "".join(_item(part, indent) for part in value))
    return "".join(lines)


def _of_mappings(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(part, Mapping) for part in value)


def _item(value: Any, indent: int) -> str:
    """Returns an item of a list in lines."""
    flow = f"{' ' * indent}- {_flow(value)}\n"
    if len(flow) <= WIDTH or not isinstance(value, Mapping):
        return flow
    return f"{' ' * indent}- {_block(value, indent + 2).lstrip()}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(name)}: {_flow(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any, within: str = "[{}, 0]") -> str:
    """Returns a value or name as it is written within a flow collection, or within the given text."""
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    text = str(value)
    try:
        read = yaml.load(within.format(text), Loader=Loader)
        plain = read in ([text, 0], {"a": text}) and "\n" not in text
    except yaml.YAMLError:
        plain = False
    quoted = text.replace("'", "''")
    return text if plain else f"'{quoted}'"
