"""Pages: several entries of one kind in a YAML file, a base and, for each entry, what differs.

    # params/par/rows_optimisers.yaml, shortened
    base:
      kind: reward
      reward_model: standard
      shaping: [{kind: length_penalty, ...}]
      optimiser: {kind: grpo}
    grpo-vanilla:
      title: GRPO, Vanilla
    grpo-par:
      title: GRPO, PAR
      shaping: [{kind: length_penalty, ...}, {kind: par}]

An address names an entry, such as `params/par/rows_optimisers.yaml:grpo-par`, or a whole file if it has no key.

How an entry is merged with the base:
    1. mappings are merged key by key, at every depth;
    2. a mapping whose `kind` differs from the base's replaces the base's, the entry itself included;
    3. lists and single values replace;
    4. `null` removes what the base sets; where the base sets nothing, it is the value null.

A page that makes every variant under every name of a list has `each` and `variants` instead of entries: the entries
are `<name>-<variant>`, and the word in braces is the name.

    each: {reward: [length, flattery]}
    base: {reward_model: '{reward}', optimiser: {kind: ppo}}
    variants:
      vanilla: {title: 'Vanilla, reward {reward}'}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.typed import is_number
from tasks.params.yaml_files import read_mapping

BASE, EACH, VARIANTS = "base", "each", "variants"
#: Names of entries. A dot separates levels in DVC's names of parameters.
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
#: Names of pages.
FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*\.yaml")
FILE_RULE = "letters, digits, '-', '_' and '.', and ends with '.yaml'"
NAME_RULE = "small letters, digits, '-' and '_', a letter or digit first"
_ADDRESS = re.compile(r"(.+\.ya?ml):([^/:]*)", re.DOTALL)


class Address(str):
    """A settings file, or an entry of a page as `FILE:key`; relative to the repository, or absolute."""

    __slots__ = ()

    def __new__(cls, value: str | Path) -> Address:
        return super().__new__(cls, str(value))

    @property
    def file(self) -> Path:
        """Returns the file without the key."""
        found = _ADDRESS.fullmatch(self)
        return Path(found.group(1) if found else self)

    @property
    def key(self) -> str | None:
        """Returns the entry's name in its settings page, None for a whole file."""
        found = _ADDRESS.fullmatch(self)
        return found.group(2) if found else None

    @property
    def name(self) -> str:
        """Returns the entry's name; of a whole file, the file's name without its ending."""
        return self.file.stem if self.key is None else self.key

    def under(self, root: Path) -> Address:
        """Returns the address below a folder that it is relative to."""
        return Address(root / self)


@dataclass(frozen=True)
class Page:
    """A page's content.

    Attributes:
        file: where it was read.
        base: what all entries have in common.
        entries: what each entry (or variant) says, by name.
        each: the names that every variant is made under; empty for a page of plain entries.
        word: what stands for such a name in a variant, such as `reward`.
    """

    file: Path
    base: Mapping[str, Any]
    entries: Mapping[str, Mapping[str, Any]]
    each: tuple[str, ...] = ()
    word: str = ""

    @classmethod
    def of(cls, file: Path, content: Mapping[str, Any]) -> Page:
        """Returns the page that a mapping is.

        Raises:
            DataError: an entry that is not a mapping, or an invalid name.
        """
        if VARIANTS in content:
            return cls._of_variants(file, content)
        entries = {name: values for name, values in content.items() if name != BASE}
        _check_entries(file, {BASE: content.get(BASE, {}), **entries})
        return cls(file, content.get(BASE) or {}, {name: values or {} for name, values in entries.items()})

    @classmethod
    def _of_variants(cls, file: Path, content: Mapping[str, Any]) -> Page:
        for name in content:
            if name not in (BASE, EACH, VARIANTS):
                remedy = f"A page with 'variants' has {BASE}, {EACH} and {VARIANTS} only"
                raise DataError("is not part of a page of variants", file=str(file), field=name, remedy=remedy)
        each, variants = content.get(EACH), content[VARIANTS]
        lists = list(each.items()) if isinstance(each, Mapping) else []
        if len(lists) != 1 or not isinstance(lists[0][1], list) or not isinstance(variants, Mapping):
            remedy = "Write each: {reward: [length, flattery]}, and variants: as a mapping"
            raise DataError("expected one list of names", file=str(file), field=EACH, remedy=remedy)
        word, names = lists[0]
        if not names:
            remedy = "Name at least one; every variant is made for each"
            raise DataError("names nothing", file=str(file), field=f"{EACH}.{word}", remedy=remedy)
        _check_entries(file, {BASE: content.get(BASE, {}), **variants, **{str(name): {} for name in names}})
        made = {name: values or {} for name, values in variants.items()}
        return cls(file, content.get(BASE) or {}, made, tuple(map(str, names)), word)

    @property
    def names(self) -> list[str]:
        """Returns the names of the entries in the page's order."""
        return [f"{name}-{variant}" for name in self.each for variant in self.entries] if self.each else [*self.entries]

    def _part(self, key: str) -> tuple[str, str] | None:
        """Returns the name under which an entry is made and what it is made of; None for an unknown entry."""
        if not self.each:
            return ("", key) if key in self.entries else None
        parts = ((name, key.removeprefix(f"{name}-")) for name in self.each if key.startswith(f"{name}-"))
        return next((part for part in parts if part[1] in self.entries), None)

    def entry(self, key: str) -> dict[str, Any]:
        """Returns an entry, merged with the base."""
        found = self._part(key)
        if found is None:
            raise RecipeError(f"{self.file}: no entry '{key}'{hint(key, sorted(self.names), more=3)}")
        name, of = found
        merged = merge(self.base, self.entries[of])
        filled: dict[str, Any] = _filled(merged, "{" + self.word + "}", name) if self.each else merged
        return filled

    def keys(self, key: str) -> list[str]:
        """Returns the page's keys that an entry is made of, as DVC names parameters: `base` and `par`, or
        `variants.par`."""
        found = self._part(key)
        own = [] if found is None else [f"{VARIANTS}.{found[1]}" if self.each else found[1]]
        return [*([BASE] if self.base else []), *own]


def _check_entries(file: Path, entries: Mapping[str, Any]) -> None:
    for name, values in entries.items():
        if not NAME.fullmatch(name):
            raise DataError(f"a name has {NAME_RULE}", file=str(file), field=name, remedy="Rename it")
        if values is not None and not isinstance(values, Mapping):
            remedy = "Each entry of a page is a mapping of settings"
            raise DataError(f"is {values!r}", file=str(file), field=name, remedy=remedy)


def merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an entry's settings over the base's, by the rules above; neither is changed."""
    if "kind" in base and own.get("kind") is not None and not _same(own["kind"], base["kind"]):
        return deepcopy(dict(own))
    merged = deepcopy(dict(base))
    for name, value in own.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = merge(merged[name], value)
        elif value is None and name in base:
            del merged[name]
        else:
            merged[name] = deepcopy(value)
    return merged


def overrides(own: Mapping[str, Any], scale: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's own settings over the scale's; `{times: 2}` is twice the scale's value.

    Raises:
        RecipeError: a multiple that is not a finite number, or of what is not a number.
    """
    return {name: _multiple(name, value, scale.get(name)) for name, value in own.items() if name != "kind"}


def _multiple(name: str, value: Any, own: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    times = value.get("times")
    for number, whose in ((times, "the row"), (own, "the scale")):
        if set(value) != {"times"} or not is_number(number):
            raise RecipeError(
                f"{name} is {str(dict(value))[:80]}, but {whose} gives {str(number)[:40]}; state a number, or "
                "{times: 2} of that number"
            )
    if not is_number(found := times * own):
        raise RecipeError(f"{name} is {times} times {own}, which is too large; it must be a finite number")
    return round(found) if isinstance(own, int) else found


def _same(one: Any, other: Any) -> bool:
    """Returns whether two values are the same to their type: 1 and 1.0 are not."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _filled(value: Any, place: str, name: str) -> Any:
    """Returns the value with a placeholder replaced by the name everywhere."""
    if isinstance(value, Mapping):
        return {_filled(key, place, name): _filled(inner, place, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, place, name) for inner in value]
    return value.replace(place, name) if isinstance(value, str) else value


def read_page(file: Path) -> Page:
    """Returns the page of a file; read once as long as the file stays as it is."""
    try:
        state = file.stat()
    except OSError:
        return Page.of(file, read_mapping(file))  # says what is wrong
    return _read_page(file, state.st_mtime_ns, state.st_size, state.st_ino)


@lru_cache(maxsize=512)
def _read_page(file: Path, *_: int) -> Page:
    return Page.of(file, read_mapping(file))


def read_settings(address: Address | Path | str) -> dict[str, Any]:
    """Returns the settings at an address: an entry merged with its page's base, or a whole file's mapping.

    Raises:
        DataError: the file cannot be read, is not YAML, or sets something twice.
        RecipeError: the page has no such entry.
    """
    address = Address(address)
    return read_mapping(address.file) if address.key is None else read_page(address.file).entry(address.key)


def settings_digest(address: Address) -> str:
    """Returns SHA-256 of an entry's settings, whatever else the page says."""
    text = json.dumps(read_settings(address), sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def page_files(folder: Path, kind: str) -> list[Path]:
    """Returns the pages of a kind in a folder: `rows.yaml` and, where one would be long, `rows_<topic>.yaml`.

    Links that lead nowhere are among them, for whoever reads the page to refuse.
    """
    first = folder / f"{kind}.yaml"
    return [*([first] if os.path.lexists(first) else []), *sorted(folder.glob(f"{kind}_*.yaml"))]


def entries(root: Path, folder: Path | str, kind: str) -> dict[str, Address]:
    """Returns addresses of a kind's entries by name, over all its pages in a folder below the root; relative to the
    root.

    Raises:
        DataError: a page that cannot be read, or whose file has a name that cannot be on a command line.
        RecipeError: an entry of two pages.
    """
    found: dict[str, Address] = {}
    for file in page_files(root / folder, kind):
        if not FILE_NAME.fullmatch(file.name):
            raise DataError(f"the name of a page has {FILE_RULE}", file=str(file), remedy="Rename the file")
        page, where = read_page(file), file.relative_to(root).as_posix()
        for name in page.names:
            if name in found:
                raise RecipeError(f"{where}: '{name}' is in {found[name].file}, too; delete one")
            found[name] = Address(f"{where}:{name}")
    return found
