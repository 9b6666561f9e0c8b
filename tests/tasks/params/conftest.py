"""A copy of the project's settings in which a test sets values."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.params.pages import merge

ROOT = Path(__file__).resolve().parents[3]
Set = Callable[[str, str, Any], None]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project's settings, which every test leaves as it found it."""
    root = tmp_path_factory.mktemp("settings")
    shutil.copytree(ROOT / "params", root / "params")
    shutil.copyfile(ROOT / "params.yaml", root / "params.yaml")
    return root


@pytest.fixture
def set_value(tree: Path) -> Iterator[Set]:
    """Sets a value of a page until the test ends: `par/rows.yaml`, `par.shaping.references`."""
    before: dict[Path, str | None] = {}

    def change(page: str, place: str, value: Any) -> None:
        file = tree / "params" / page
        before.setdefault(file, file.read_text(encoding="utf-8") if file.exists() else None)
        *above, last = place.split(".")
        changed: Any = {last: value}
        for name in reversed(above):
            changed = {name: changed}
        content = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(yaml.safe_dump(merge(content, changed), sort_keys=False), encoding="utf-8")

    yield change
    for file, text in before.items():
        file.unlink() if text is None else file.write_text(text, encoding="utf-8")
