"""YAML files, read as DVC reads them: YAML 1.2, in which `1e-3` is a number and `yes` and `on` are text.

DVC compares and changes values of params/ through its own parser; a value that the two parsers read differently would
train with one number and be compared by another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import DataError, invalid_path


class _Refused(yaml.YAMLError):
    """A name that `Loader` refuses.

    Attributes:
        problem, remedy: in words.
        name: as written; None for a list, a mapping or nothing.
        line: of the file.
    """

    def __init__(self, problem: str, remedy: str, key: yaml.Node) -> None:
        self.problem, self.remedy, self.line = problem, remedy, key.start_mark.line + 1
        self.name = str(key.value) if isinstance(key, yaml.ScalarNode) and key.value else None


class Loader(yaml.CSafeLoader):
    """YAML 1.2 without what YAML would settle silently: a setting set twice, or one whose name is not text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise _Refused("a name must be text", "Write one name in quotes before the colon", key)
            if key.value in seen:
                raise _Refused("is set twice", "Delete one", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


Loader.yaml_implicit_resolvers = {}  # YAML 1.1's, otherwise
#: Plain scalars by kind, with the characters that they may begin with: the expressions of ruamel.yaml, DVC's parser.
_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "float": (
        r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    "int": (r"[-+]?0b[01]+|[-+]?0o[0-7]+|[-+]?[0-9][0-9_]*|[-+]?0x[0-9a-fA-F]+", "-+0123456789"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "timestamp": (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "0123456789"),
}
_BASES = {"0b": 2, "0o": 8, "0x": 16}
#: Mappings and lists in each other, and a line that may be within as many.
DEEPEST, _INDENTED = 100, re.compile(r"^(?:[-?:][ \t]| ){100}", re.M)
#: Whole numbers are below it in size, as the 64 bits of seeds are.
LARGEST = 2**63


def _int(loader: Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    base = _BASES.get(digits[:2], 10)
    number = sign * int(digits if base == 10 else digits[2:], base)
    if abs(number) >= LARGEST:
        raise OverflowError(number)
    return number


def _checked(kind: str, construct: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a constructor of scalars whose error names the line."""

    def constructed(loader: Loader, node: yaml.Node) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, KeyError, OverflowError):
            problem = f"{str(node.value)[:40]!r} is not a valid {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    return constructed


for _kind, (_pattern, _first) in _SCALARS.items():
    _tag = f"tag:yaml.org,2002:{_kind}"
    Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))
    Loader.add_constructor(_tag, _checked(_kind, _int if _kind == "int" else Loader.yaml_constructors[_tag]))


def nested_too_deeply(text: str) -> bool:
    """Returns whether a YAML text is nested so deeply that the parser, which recurses in C, would end this process."""
    if text.count("[") + text.count("{") <= DEEPEST and not _INDENTED.search(text):
        return False
    depth = 0
    with suppress(yaml.YAMLError):  # whoever reads the text says what is wrong
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                return True
    return False


def folders_of(path: Path) -> list[Path]:
    """Returns the folders in a folder, by name."""
    return sorted(each for each in path.iterdir() if each.is_dir()) if path.is_dir() else []


def read_mapping(path: Path) -> dict[str, Any]:
    """Returns a YAML file's mapping.

    Raises:
        DataError: the file cannot be read, is not YAML, is not a mapping, or sets something twice.
    """
    try:
        return parse_mapping(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise DataError("file does not exist", file=str(path), remedy="Check the path") from None
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", file=str(path), remedy="Check the path") from None
    except UnicodeDecodeError as error:
        raise DataError(f"not valid YAML ({error})", file=str(path), remedy="It must be YAML in UTF-8") from None
    except ValueError as error:  # of a NUL character or a lone surrogate in the path
        raise invalid_path(path, error) from None


def parse_mapping(text: str, file: str) -> dict[str, Any]:
    """Returns the mapping of a YAML text."""
    if nested_too_deeply(text):
        raise DataError("nested too deeply", file=file, remedy=f"At most {DEEPEST} mappings and lists in each other")
    try:
        if "*" in text and any(isinstance(one, yaml.AliasToken) for one in yaml.scan(text, Loader=yaml.CSafeLoader)):
            raise DataError("has an alias", file=file, remedy="Write out what each *name stands for")
        value = yaml.load(text, Loader=Loader)
    except _Refused as wrong:
        raise DataError(wrong.problem, file=file, line=wrong.line, field=wrong.name, remedy=wrong.remedy) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise DataError(f"not valid YAML ({error.problem})", file=file, line=line, remedy="Correct it there") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"not valid YAML ({reason})", file=file, remedy="It must be YAML in UTF-8") from None
    if not isinstance(value, dict):
        raise DataError("expected a mapping of settings", file=file, remedy="It needs lines of the form name: value")
    return value


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all, for who may be reading it meanwhile; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class _Plain(yaml.CSafeDumper):
    """YAML without anchors, which readers of a generated file would have to follow."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Page(_Plain):
    """YAML that `Loader` reads as it was: text that looks like a number of YAML 1.2 is in quotes."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


def yaml_text(content: Any) -> str:
    """Returns the text of a generated file: block style, in the order given, without anchors."""
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, width=110)


def page_text(entries: Mapping[str, Any], header: str = "") -> str:
    """Returns the text of a page of settings.

    Args:
        entries: whole settings by name.
        header: a comment above the page, of one line.
    """
    above = f"# {header}\n" if header else ""
    return above + yaml.dump(dict(entries), Dumper=_Page, sort_keys=False, width=110, allow_unicode=True)
