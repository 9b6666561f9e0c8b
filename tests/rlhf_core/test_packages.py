"""Packages of the library import each other one way."""

from __future__ import annotations

import ast
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[2] / "rlhf_core"


def edges(library: Path) -> dict[tuple[str, str], set[str]]:
    """(package or module at the top, one that it imports) -> where, imports within functions included."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in library.rglob("*.py"):
        own = path.relative_to(library).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == library.name and len(parts) > 1 and parts[1] != own:
                    found.setdefault((own, parts[1]), set()).add(f"{path.relative_to(library)} imports {name}")
    return found


def mutual(library: Path) -> list[tuple[str, str]]:
    found = edges(library)
    return sorted((one, other) for one, other in found if one < other and (other, one) in found)


def test_no_two_packages_import_each_other() -> None:
    found = edges(LIBRARY)
    assert len(found) > 50
    assert not mutual(LIBRARY), [found[pair] | found[pair[::-1]] for pair in mutual(LIBRARY)]


def test_an_import_within_a_function_counts(tmp_path: Path) -> None:
    library = tmp_path / "lib"
    for name, text in (("a", "from lib.b import x"), ("b", "def f():\n    from lib.a import y\n")):
        (library / name).mkdir(parents=True)
        (library / name / "__init__.py").write_text(text)
    assert mutual(library) == [("a", "b")]
