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
#: Comments by the place they are written at: the path of a setting, and () for what is above the whole.
Comments = Mapping[tuple[str, ...], str]


class Written(float):
    """A number with the digits that a person wrote: 3.0e-4."""

    text: str

    def __deepcopy__(self, _: Any) -> Written:
        return self


class _AsWritten(Loader):
    """Reads numbers as `Written`."""


def _written(loader: _AsWritten, node: yaml.ScalarNode) -> Written:
    number = Written(loader.construct_yaml_float(node))
    number.text = str(node.value)
    return number


_AsWritten.add_constructor("tag:yaml.org,2002:float", _written)


def as_written(text: str) -> dict[str, Any]:
    """Returns a YAML text's mapping whose numbers keep their digits."""
    value = yaml.load(text, Loader=_AsWritten)
    return value if isinstance(value, dict) else {}


def comments_of(text: str) -> dict[tuple[str, ...], str]:
    """Comments above a YAML text and behind its settings, without '#', by the settings' paths."""
    lines = text.splitlines()
    above = [line.removeprefix("#").strip() for line in _leading(lines)]
    found: dict[tuple[str, ...], str] = {(): "\n".join(above)} if above else {}

    def visit(node: yaml.Node | None, path: tuple[str, ...]) -> None:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            own = (*path, key.value)
            code, mark, comment = lines[key.start_mark.line].partition(" #")
            if mark and code.count("'") % 2 == 0 and code.count('"') % 2 == 0:
                found.setdefault(own, comment.strip())
            visit(value, own)

    visit(yaml.compose(text, Loader=Loader), ())
    return found


def _leading(lines: Sequence[str]) -> list[str]:
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return list(lines[:end])


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


def page_text(
    entries: Mapping[str, Mapping[str, Any]],
    comments: Mapping[str, Comments] | None = None,
    base: Mapping[str, Any] | None = None,
    header: str = "",
) -> str:
    """Returns the page of some entries.

    Args:
        entries: whole settings by name.
        comments: of each entry.
        base: the page's; the best one without it.
        header: a comment above the page.
    """
    base = best_base([*entries.values()]) if base is None else base
    try:
        own = {name: difference(base, entry) for name, entry in entries.items()}
    except RecipeError:
        base, own = {}, {name: dict(entry) for name, entry in entries.items()}
    comments = dict(comments or {})
    above_all = {own.get((), "") for own in (comments.get(name, {}) for name in entries)}
    if not header and len(above_all) == 1 and len(entries) > 1:
        header = above_all.pop()
        comments = {n: {p: t for p, t in own.items() if p} for n, own in comments.items()}
    parts = [_comment(header)] if header else []
    if base:
        parts.append(_block({BASE: base}, {(BASE, *path): text for path, text in _of_base(base, entries, comments)}))
    for name, unsorted in own.items():
        values = {part: unsorted[part] for part in sorted(unsorted, key=lambda part: part != "title")}
        said = {path: text for path, text in comments.get(name, {}).items() if path == () or _has(values, path)}
        above = said.pop((), "")
        own_text = _block({name: values}, {(name, *path): text for path, text in said.items()})
        parts.append((_comment(above) if above else "") + own_text)
    return "".join(parts)


_MISSING = object()


def _at(values: Any, path: Sequence[str]) -> Any:
    """Returns the value at a path, `_MISSING` without a value."""
    for name in path:
        values = values.get(name, _MISSING) if isinstance(values, Mapping) else _MISSING
    return values


def _has(values: Any, path: Sequence[str]) -> bool:
    return _at(values, path) is not _MISSING


def _of_base(
    base: Mapping[str, Any], entries: Mapping[str, Any], comments: Mapping[str, Comments]
) -> list[tuple[tuple[str, ...], str]]:
    """Comments of the base's values: those of entries with the same value; of a mapping, if entries agree."""
    found: dict[tuple[str, ...], set[str]] = {}
    for name, own in comments.items():
        for path, text in own.items():
            value, common = _at(entries[name], path), _at(base, path)
            if path and common is not _MISSING and (common == value or isinstance(common, Mapping)):
                found.setdefault(path, set()).add(text)
    return [(path, texts.pop()) for path, texts in found.items() if len(texts) == 1]


def _comment(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def _block(values: Mapping[str, Any], comments: Comments, indent: int = 0, path: tuple[str, ...] = ()) -> str:
    lines = []
    for name, value in values.items():
        here = (*path, name)
        behind = f" # {comments[here]}" if here in comments else ""
        lead = f"{' ' * indent}{_scalar(name)}:"
        inner = any(place[: len(here)] == here and place != here for place in comments)
        flow = f"{lead} {_flow(value)}"
        if not isinstance(value, Mapping | list):
            lines.append(f"{lead} {_scalar(value, 'a: {}')}{behind}\n")
        elif not value or (indent and not inner and len(flow) <= WIDTH and not _of_mappings(value)):
            lines.append(f"{flow}{behind}\n")
        elif isinstance(value, Mapping):
            lines.append(f"{lead}{behind}\n{_block(value, comments, indent + 2, here)}")
        else:
            lines.append(f"{lead}{behind}\n" + "".join(_item(part, indent) for part in value))
    return "".join(lines)


def _of_mappings(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(part, Mapping) for part in value)


def _item(value: Any, indent: int) -> str:
    """Returns an item of a list in lines."""
    flow = f"{' ' * indent}- {_flow(value)}\n"
    if len(flow) <= WIDTH or not isinstance(value, Mapping):
        return flow
    return f"{' ' * indent}- {_block(value, {}, indent + 2).lstrip()}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(name)}: {_flow(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any, within: str = "[{}, 0]") -> str:
    """Returns a value or name as it is written within a flow collection, or within the given text."""
    if isinstance(value, Written):
        return value.text
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
