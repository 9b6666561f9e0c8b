"""EvalPlus' sanitiser: the code of an answer, without prose, tests and what its function does not use.

sanitised(answer, "f")    imports, then the definitions that `f` reaches, in the order of the answer

Source: EvalPlus 0.3.1 (`sanitize`), which parses with tree-sitter what `ast` has accepted. Here `ast` does both, and
nothing has to be installed; tests compare the two. The longest code is found by the same rule in fewer parses: EvalPlus
parses every pair of first and last line, which takes hours for an answer of 100 kB.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate

#: Characters that are parsed for one answer; then the longest code so far is taken.
_PARSED_AT_MOST = 4_000_000
_UNREADABLE = (SyntaxError, ValueError, MemoryError, RecursionError)


def sanitised(text: str, entry_point: str) -> str:
    """Returns the imports of the longest code in a text, and of its definitions those that a function reaches.

    Decorated functions, functions without a `return`, statements that are neither definitions nor assignments, and
    imports from `__future__` are left out, as EvalPlus does. Where nothing is left, the longest code is returned.

    Args:
        text: an answer, with or without prose.
        entry_point: the function that tests call; '' keeps all definitions.
    """
    code = longest_code(text)
    return _reachable(code, entry_point).strip() or _reachable(code.strip(), entry_point) or code


def longest_code(text: str) -> str:
    """Returns the two or more consecutive lines with the most that are not blank of those that are valid Python, the
    first of equals; without any, the first line. The search ends after `_PARSED_AT_MOST` characters."""
    lines = text.split("\n")
    filled = [0, *accumulate(bool(line.strip()) for line in lines)]
    most, best, parsed = 0, (0, 0), 0
    for first in range(len(lines) - 1):
        last = len(lines) - 1
        while last > first and filled[last + 1] - filled[first] > most and parsed <= _PARSED_AT_MOST:
            code = "\n".join(lines[first : last + 1])
            parsed += len(code)
            wrong = _wrong_line(code)
            if wrong is None:
                most, best = filled[last + 1] - filled[first], (first, last)
                break
            last = min(last - 1, first + wrong)
    return "\n".join(lines[best[0] : best[1] + 1])


def _wrong_line(code: str) -> int | None:
    """Returns the line of an error, from 0, the last one if that is not known; None for valid Python."""
    try:
        _parsed(code)
    except SyntaxError as error:
        if error.lineno is not None and "f-string" not in str(error.msg):
            return max(error.lineno, error.end_lineno or 0) - 1
    except _UNREADABLE:
        pass
    else:
        return None
    return code.count("\n")


def _parsed(code: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of backslashes in strings
        return ast.parse(code)


def _reachable(code: str, entry_point: str) -> str:
    """Returns the imports and the definitions that a function reaches; '' where the code is not Python."""
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    try:
        module = _parsed(code)
    except _UNREADABLE:
        return ""
    imports: list[ast.stmt] = []
    definitions: list[tuple[str | None, ast.stmt]] = []
    known: set[str | None] = set()
    for statement in module.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            if getattr(statement, "module", None) != "__future__":
                imports.append(statement)
        elif _is_definition(statement):
            name = _name(statement)
            if name not in known:
                known.add(name)
                definitions.append((name, statement))
    if entry_point:
        used = {name: set(_identifiers(statement)) for name, statement in definitions}
        reached, waiting = {entry_point}, [entry_point]
        while waiting:
            new = used.get(waiting.pop(), set()) - reached
            reached |= new
            waiting += new
        definitions = [(name, statement) for name, statement in definitions if name in reached]
    lines = code.encode().split(b"\n")
    return "\n".join(_source(lines, statement) for statement in [*imports, *(each for _, each in definitions)])


def _is_definition(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        returns = any(isinstance(node, ast.Return) for node in ast.walk(statement))
        return returns and not statement.decorator_list
    if isinstance(statement, ast.ClassDef):
        return not statement.decorator_list
    return isinstance(statement, ast.Assign | ast.AnnAssign)


def _name(statement: ast.stmt) -> str | None:
    """Returns the name that a definition has to EvalPlus: of an assignment to anything but a name, the name on its
    right side, if that is one; None without one."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name
    assert isinstance(statement, ast.Assign | ast.AnnAssign)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    if isinstance(target, ast.Name):
        return target.id
    chained = isinstance(statement, ast.Assign) and len(statement.targets) > 1
    return statement.value.id if isinstance(statement.value, ast.Name) and not chained else None


def _identifiers(statement: ast.stmt) -> Iterator[str]:
    """Yields every identifier in a statement: names, attributes, arguments, keywords, names of imports and patterns."""
    for node in ast.walk(statement):
        for _, value in ast.iter_fields(node):
            values = value if isinstance(value, list) else [value]
            if isinstance(node, ast.Constant):
                continue
            for each in values:
                if isinstance(each, str):
                    yield from each.split(".")


def _source(lines: Sequence[bytes], statement: ast.stmt) -> str:
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    if first == last:
        return lines[first][statement.col_offset : statement.end_col_offset].decode()
    inner = [lines[first][statement.col_offset :], *lines[first + 1 : last], lines[last][: statement.end_col_offset]]
    return b"\n".join(inner).decode()
