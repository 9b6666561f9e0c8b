"""One word has one meaning: each is defined once in docs/vocabulary.md, and no two classes share a name."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "vocabulary.md"
PACKAGES = ("rlhf_core", "tasks", "flows")
#: Words whose several meanings have misled readers; the page settles one for each.
SETTLED = {
    "record", "scale", "benchmark", "hack", "model registry", "template", "solution", "run", "comparison", "outcome"
}  # fmt: skip


def defined_words(text: str) -> list[str]:
    """The words of the page's lines."""
    return re.findall(r"^- \*\*([^*]+)\*\*: \w", text, re.MULTILINE)


def public_classes(source: str) -> list[str]:
    """Names of a module's classes, those inside others and in functions included, without private ones."""
    found = (node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return [name for name in found if not name.startswith("_")]


def shared_names() -> dict[str, list[str]]:
    """Class names that several modules of the product define, with the modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in public_classes(path.read_text(encoding="utf-8")):
                places[name].append(path.relative_to(ROOT).as_posix())
    return {name: found for name, found in places.items() if len(found) > 1}


def test_each_word_is_defined_once() -> None:
    counts = Counter(word.lower() for word in defined_words(PAGE.read_text(encoding="utf-8")))
    assert {word: count for word, count in counts.items() if count > 1} == {}
    assert counts.keys() >= SETTLED


def test_every_line_of_the_page_has_a_word_and_a_meaning() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(defined_words(text)) == len(re.findall(r"^- ", text, re.MULTILINE)) <= 60


def test_no_two_classes_share_a_name() -> None:
    shared = shared_names()
    assert not shared, f"classes of one name: {shared}; rename one, by the words of docs/vocabulary.md"
