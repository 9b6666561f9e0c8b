"""One word has one meaning: each is defined once in docs/vocabulary.md, and no two classes share a name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_each_word_has_one_line_with_its_meaning() -> None:
    lines = re.findall(r"^- .*", (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8"), re.MULTILINE)
    words = [found[1] for line in lines if (found := re.match(r"- \*\*([^*]+)\*\*: \w", line))]
    assert len(set(words)) == len(lines) <= 60


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for package in ("rlhf_core", "tasks", "flows"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
