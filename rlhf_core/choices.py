"""Tables of choices: for each step of a reward design, name -> the class or function that is called.

    SHAPINGS = Choices("shaping", {"tanh": Tanh, "steep": partial(Sigmoid, k=3.0)})

    SHAPINGS["tanh"]                              # Tanh
    SHAPINGS["tang"]                              # UnknownChoice: unknown shaping 'tang'; did you mean 'tanh'?
    SHAPINGS.build({"kind": "sigmoid", "k": 2})   # Sigmoid(k=2), its options checked
    SHAPINGS["my_package:Cubic"]                  # a user's own, imported by name

Adding a choice is one class or function and one line in its table. What a choice needs is said by attributes of its
entry, so that nothing else lists names.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from rlhf_core.errors import RecipeError, hint
from rlhf_core.typed import checked_arguments, init_fields, typed
from rlhf_core.user_code import called, import_attribute

C = TypeVar("C")


class UnknownChoice(RecipeError, KeyError):
    """A name that a table of choices does not have.

    Attributes:
        name: what was given.
        near: the end of a message: the nearest known names.
    """

    name: object = None
    near: str = ""

    @classmethod
    def of(cls, noun: str, name: object, known: Iterable[str]) -> UnknownChoice:
        """Returns the error of an unknown name; `noun` names the table's choices, as in 'shaping'."""
        near = hint(name, known)
        shown = repr(name) if isinstance(name, list | Mapping) else f"'{name}'"
        error = cls(f"unknown {noun} {shown}{near}")
        error.name, error.near = name, near
        return error

    def __str__(self) -> str:
        return Exception.__str__(self)


class Choices(Mapping[str, C], Generic[C]):
    """A table of choices.

    Args:
        noun: for messages, as in 'shaping'.
        entries: class, function, or object that describes a function, by name.
        needs: attributes that a user's own entry must have.
        dataclasses: whether a user's own entry must be a dataclass, whose fields are the options.
    """

    def __init__(
        self, noun: str, entries: Mapping[str, C], *, needs: tuple[str, ...] = (), dataclasses: bool = False
    ) -> None:
        self.noun, self.needs, self.dataclasses = noun, needs, dataclasses
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> C:
        if isinstance(name, str) and name in self._entries:
            return self._entries[name]
        if isinstance(name, str) and ":" in name:
            return self._own(name)
        raise UnknownChoice.of(self.noun, name, self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._entries

    def refusal(self, name: Any) -> str | None:
        """Returns the problem of a name that is not one of these choices, as the end of a message; None if it is."""
        if isinstance(name, str) and ":" not in name:
            return None if name in self._entries else hint(name, self._entries).removeprefix("; ")
        if not isinstance(name, str):
            return f"it must be one of {', '.join(self._entries)}"
        try:
            self._own(name)
        except RecipeError as error:
            return str(error)
        return None

    def _own(self, name: str) -> C:
        found = import_attribute(name, self.noun)
        target = found.func if isinstance(found, partial) else found
        if self.dataclasses and not (isinstance(found, type) and is_dataclass(found)):
            raise RecipeError(f"{self.noun} '{name}' is not a dataclass; write @dataclass above its class")
        missing = [attribute for attribute in self.needs if not hasattr(target, attribute)]
        if missing:
            raise RecipeError(f"{self.noun} '{name}' lacks {', '.join(missing)}")
        like = next(iter(self._entries.values()), found)
        for form, fits in (("callable", callable), ("a mapping", lambda one: isinstance(one, Mapping))):
            if fits(like) and not fits(found):
                raise RecipeError(f"{self.noun} '{name}' is not {form}, as each {self.noun} is")
        own: C = found
        return own

    def named(self, name: str) -> Any:
        """Returns a choice's class or function, without the options that its name fixes."""
        found = self[name]
        return found.func if isinstance(found, partial) else found

    def _fixed(self, name: str) -> dict[str, Any]:
        found = self[name]
        return dict(found.keywords) if isinstance(found, partial) else {}

    def kind_of(self, spec: Any) -> str:
        """Returns the name that a specification states.

        Raises:
            RecipeError: neither a name nor a mapping with a `kind`, or a kind that is not known.
        """
        if not isinstance(spec, str | Mapping):
            raise RecipeError(f"{self.noun} is {spec!r}; it must be a mapping, as in {{kind: {next(iter(self))}}}")
        kind = spec if isinstance(spec, str) else spec.get("kind")
        if kind is None:
            raise RecipeError(f"{self.noun}: 'kind' is missing{hint('', self._entries)}")
        self[kind]
        return str(kind)

    def options(self, kind: str) -> tuple[str, ...]:
        """Returns the names of the options that a choice takes."""
        target, fixed = self.named(kind), self._fixed(kind)
        names = list(init_fields(target)) if isinstance(target, type) and is_dataclass(target) else []
        try:
            names = names or list(inspect.signature(target).parameters)
        except ValueError:  # of a builtin
            raise RecipeError(
                f"{self.noun} '{kind}' does not say which options it takes; wrap it in a function"
            ) from None
        return tuple(name for name in names if name not in fixed)

    def stated_options(self, spec: str | Mapping[str, Any], *, without: Collection[str] = ()) -> dict[str, Any]:
        """Returns the options that a specification states.

        Args:
            spec: of a file.
            without: options that no file may state.
        """
        kind = self.kind_of(spec)
        options = {} if isinstance(spec, str) else {name: value for name, value in spec.items() if name != "kind"}
        known = [name for name in self.options(kind) if name not in without]
        for name in options:
            if name not in known:
                raise RecipeError(f"{self.noun} '{kind}': unknown option '{name}'{hint(name, known)}")
        return options

    def build(self, spec: str | Mapping[str, Any], **provided: Any) -> Any:
        """Returns the choice that a specification describes: a name, or `{kind: name, option: value, ...}`.

        Args:
            spec: of a file.
            provided: options that no file can hold, given to a choice that takes them.

        Raises:
            RecipeError: an unknown kind or option, with the nearest known; an option that is missing or wrong.
        """
        kind, stated = self.kind_of(spec), self.stated_options(spec)
        known = self.options(kind)
        options = {name: value for name, value in provided.items() if name in known} | stated
        target, fixed = self.named(kind), self._fixed(kind)
        where = f"{self.noun} '{kind}'"
        if isinstance(target, type) and is_dataclass(target):
            return typed(target, {**fixed, **options}, where)
        try:
            inspect.signature(target).bind(**fixed, **options)
        except TypeError as error:
            raise RecipeError(f"{where}: {error}") from None
        return called(target, {**fixed, **checked_arguments(target, options, where)}, where)
