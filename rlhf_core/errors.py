"""Errors a user can act on: each message names what is wrong, where, and the remedy."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import ParamSpec

Arguments = ParamSpec("Arguments")


class RewardsmithError(Exception):
    """Base of every error that is the caller's to fix; command lines print it without a traceback.

    Attributes:
        exit_status: of a command that ends with the error.
    """

    exit_status = 2


def prints_errors(main: Callable[Arguments, int]) -> Callable[Arguments, int]:
    """Lets a command's main function print an error that is the user's to fix, and return its exit status."""

    @functools.wraps(main)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> int:
        try:
            return main(*arguments, **options)
        except RewardsmithError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_status

    return run


class DataError(RewardsmithError):
    """Input data that cannot be used.

    Args:
        problem: what is wrong, in one sentence without a full stop.
        file: the file or source that holds it.
        row: 1-based number or id of the row of data at fault.
        line: 1-based line of the file, where it is not data.
        field: the field at fault.
        remedy: what to do about it.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        row: int | str | None = None,
        line: int | None = None,
        field: str | None = None,
        remedy: str | None = None,
    ) -> None:
        where = ", ".join(
            part
            for part in (
                f"file {file}" if file else "",
                f"row {row}" if row is not None else "",
                f"line {line}" if line is not None else "",
                f"field '{field}'" if field else "",
            )
            if part
        )
        message = f"{where}: {problem}" if where else problem
        if remedy:
            message += f". {remedy}"
        super().__init__(message)
        self.problem, self.file, self.row, self.field, self.remedy = problem, file, row, field, remedy


#: Errors of the file system that the caller can mend.
PATH_ERRORS = (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)


def path_error(error: OSError) -> DataError:
    """Returns an error of the file system as one that names the path and the remedy."""
    return DataError(
        f"cannot be used ({error.strerror})", file=str(error.filename), remedy="Check the path and its permissions"
    )


def invalid_path(path: object, error: ValueError) -> DataError:
    """Returns the error of a path that no file can have, such as one with a NUL character."""
    remedy = "Remove the characters that are shown with a backslash"
    return DataError(f"invalid path ({error})", file=ascii(str(path)).strip("'"), remedy=remedy)


class RecipeError(RewardsmithError):
    """A recipe or setting that is unknown, contradictory or of the wrong type."""


class UserCodeError(RecipeError):
    """An error that a function of the user's own raised; it is the cause (`__cause__`)."""


class NumericsError(RewardsmithError):
    """A non-finite loss, reward or probability; the run stops."""


class FunctionNumericsError(NumericsError):
    """A value of the user's own function that is not finite; no file of data is at fault."""


class JudgeError(RewardsmithError):
    """A judge that cannot be reached or whose answers cannot be parsed within the allowed retries."""


class ToolError(RewardsmithError):
    """A tool behind a reward that cannot be reached, is too slow or answers nonsense, within the allowed retries."""


#: Most known words that a message lists.
MOST_KNOWN = 20


def nearest(word: object, known: Iterable[object], *, more: int = 1, cutoff: float = 0.6) -> list[str]:
    """Returns up to `more` known words that are like a given one, the most similar first.

    Capitals do not matter; words that differ in capitals, '-', '_' and spaces only are always alike.
    """
    names = [str(name) for name in known]
    same = [name for name in names if _plain(name) == _plain(str(word))]
    lowered = {name.lower(): name for name in names}
    close = get_close_matches(str(word).lower(), list(lowered), n=more, cutoff=cutoff)
    return list(dict.fromkeys([*same, *(lowered[name] for name in close)]))[:more]


def _plain(word: str) -> str:
    """Returns a word without capitals and separators."""
    return "".join(letter for letter in word.lower() if letter not in "-_ ")


def hint(word: object, known: Iterable[object], *, more: int = 1) -> str:
    """Returns the end of a message about an unknown word: the nearest known one, or those that are known where none is
    near, at most `MOST_KNOWN`.

    Args:
        word: what was given.
        known: what is known.
        more: near ones to name.
    """
    names = [str(name) for name in known]
    if isinstance(word, list | tuple | set | Mapping):
        return f"; it must be text, one of {', '.join(names) or 'none'}"
    near = nearest(word, names, more=more)
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    rest = f" and {len(names) - MOST_KNOWN} more" if len(names) > MOST_KNOWN else ""
    return f"; known: {', '.join(names[:MOST_KNOWN]) or 'none'}{rest}"
