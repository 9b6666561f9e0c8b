"""Every wrong setting of the table is refused before anything runs, by its place, value and nearest name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.graph.check import check_rows
from tasks.params.pages import merge
from tests.tasks.params.refused_settings import ACROSS, ONE_FIELD

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project's settings, which every test leaves as it found it."""
    root = tmp_path_factory.mktemp("settings")
    shutil.copytree(ROOT / "params", root / "params")
    shutil.copyfile(ROOT / "params.yaml", root / "params.yaml")
    return root


def changed(text: str, place: str, value: Any) -> str:
    """Returns a page with one value changed: `par.shaping.references`."""
    *above, last = place.split(".")
    change: Any = {last: value}
    for name in reversed(above):
        change = {name: change}
    return yaml.safe_dump(merge(yaml.safe_load(text), change), sort_keys=False)


@pytest.mark.parametrize(
    ("page", "place", "value", "row", "parts"),
    [*ONE_FIELD, *ACROSS],
    ids=[f"{case[1]}={case[2]}"[:60] for case in [*ONE_FIELD, *ACROSS]],
)
def test_a_wrong_setting_is_refused_with_its_place(
    tree: Path, page: str, place: str, value: Any, row: str, parts: tuple[str, ...]
) -> None:
    file = tree / "params" / page
    before = file.read_text(encoding="utf-8")
    file.write_text(changed(before, place, value), encoding="utf-8")
    try:
        problems = check_rows(tree, *row.split("/")[:1], [row.split("/")[1]], "testbed")
    finally:
        file.write_text(before, encoding="utf-8")
    assert any(all(part in problem for part in parts) for problem in problems), problems
