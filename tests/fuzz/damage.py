"""Damage to stored files: what a crash, a disk, a hand or another version leaves of them."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import PATH_ERRORS, path_error

#: A case of an area: it makes a random input and asserts what must hold. A refusal in words is right, too.
Area = Callable[[random.Random], object]

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 5, 10**400, float("nan"), float("inf"), "", "x", "${X}", [], [1], {}, {"kind": None}, {1: 2},
    "\0", {"kind": 5},
)  # fmt: skip
#: Values of files, beyond those: of every type, and beyond what a program's own writer puts there.
STORED: tuple[Any, ...] = (
    *VALUES, 2**63, 1e308, -1e-320, "1", "\ud800", "../..", "a" * 5000, [[]], [None], {"": {}}, False, 1.5, -(2**31),
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_INSERTS = (
    b"\0", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\r", b"\n", b"[" * 10_000, b"{\"a\":" * 10_000, b"- " * 10_000,
    b"9" * 5000, b"1e999", b"NaN", b"-0", b"{", b"]", b'"', b":", b",", b"&a [*a]", b"!!python/name:os.system", b"#",
    b"yes", b"on", b"1e3", b"1_000", b"0o17", b"017", b"0x1F", b"12:30:45", b"2020-01-01", b"~", b".5", b"+1", b"''",
    "\u2028".encode(), "\ufeff".encode(), b"null", b"<<<<<<< HEAD\n", b"\t", b"? ", b"<<: *a\n",
)  # fmt: skip


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """Returns a content with one kind of damage to its bytes."""

    def place() -> int:
        return rng.randrange(len(content) + 1)

    a, b = sorted((place(), place()))
    lines = content.splitlines(keepends=True) or [b""]
    line, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    numbers = list(_NUMBER.finditer(content))
    found = rng.choice(numbers) if numbers else None
    made: tuple[Callable[[], bytes], ...] = (
        lambda: content[:a],
        lambda: content[:a] + content[b:],
        lambda: content[:a] + rng.choice(_INSERTS) + content[a:],
        lambda: content[:a] + bytes([rng.randrange(256)]) + content[a + 1 :],
        lambda: content[:a] + b"\0" * (b - a) + content[b:],
        lambda: content + content,
        lambda: b"".join([*lines[:line], *lines[line + 1 :]]),
        lambda: b"".join([*lines[:line], lines[other], *lines[line:]]),
        lambda: content if found is None else content[: found.start()] + rng.choice(_INSERTS) + content[found.end() :],
        lambda: rng.choice((b"", *_INSERTS, content.decode("utf-8", "replace").encode("utf-16"))),
    )
    return rng.choice(made)()


def damaged_value(rng: random.Random, value: Any) -> Any:
    """Returns a nested value in which one place is changed, removed, renamed or nested anew."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice([*STORED, [value], {"a": value}, str(value)[:5000]])
    copy: Any = value.copy()
    key = rng.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    how = rng.random()
    if how < 0.15:
        del copy[key]
    elif how < 0.25 and isinstance(copy, dict):
        copy[rng.choice(["", "x", f"{key}x"])] = copy.pop(key)
    else:
        copy[key] = damaged_value(rng, copy[key])
    return copy


def damaged_json(rng: random.Random, content: bytes) -> bytes:
    """Returns a JSON text, or one with a value in every line, with damage to its bytes or to a value."""
    if rng.random() < 0.5:
        return damaged_bytes(rng, content)
    try:
        return json.dumps(damaged_value(rng, json.loads(content))).encode()
    except ValueError:
        lines = [line for line in content.splitlines() if line.strip()] or [b"{}"]
        at = rng.randrange(len(lines))
        lines[at] = json.dumps(damaged_value(rng, json.loads(lines[at]))).encode()
        return b"\n".join(lines) + b"\n"


def damaged_yaml(rng: random.Random, content: bytes) -> bytes:
    """Returns a YAML text with damage to its bytes or to a value."""
    if rng.random() < 0.6:
        return damaged_bytes(rng, content)
    value = damaged_value(rng, yaml.load(content, yaml.CSafeLoader))
    return yaml.dump(value, Dumper=yaml.SafeDumper, sort_keys=False).encode("utf-8", "surrogatepass")


def damage_file(rng: random.Random, file: Path, of: Callable[[random.Random, bytes], bytes]) -> str:
    """Damages a file in place; in few cases it becomes a folder or is removed.

    Returns:
        what was done, for the message about a fault.
    """
    written, how = of(rng, file.read_bytes()), rng.random()
    file.chmod(0o644)
    file.unlink()
    if how < 0.02:
        file.mkdir()
        return f"{file}: a folder"
    if how < 0.05:
        return f"{file}: removed"
    file.write_bytes(written)
    shown = written[:2000].decode("ascii", "backslashreplace")
    return f"{file}: {len(written)} bytes: {shown}"


def remove(path: Path) -> None:
    """Removes a file or a folder, whichever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def as_commands() -> Iterator[None]:
    """Turns errors of paths into refusals in words, as every command and stage does."""
    try:
        yield
    except PATH_ERRORS as error:
        raise path_error(error) from error


@contextmanager
def damaged_tree(root: Path, done: str) -> Iterator[None]:
    """Removes a case's folder after the block that reads it; an error is told with what was done to the folder."""
    try:
        with as_commands():
            yield
    except BaseException as error:
        error.add_note(done)
        raise
    finally:
        shutil.rmtree(root)
