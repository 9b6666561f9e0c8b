"""Numbers, verdicts, figures, metrics and curves of all papers, made from invented results, as they were pinned.

`python -m tests.tasks.report.test_pinned_tables` writes the pin anew, once VERSION of the stage was stepped.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.published.printed_tables import PAPERS
from tasks import tables
from tests.tasks.report.claim_results import make_claim_results
from tests.tasks.report.fixture_results import make_results, sign

PIN = Path(__file__).with_name("pinned_tables.json")
#: Invented results of each pin: every row of a paper, and richer ones of one.
MADE = {**dict.fromkeys(PAPERS), "segment-texts": "segment"}
#: What is pinned of each row and cell of a table.
ROW = ("name", "key", "main", "is_main", "broken")
CELL = (
    "published", "status", "mean", "se", "seeds", "difference", "interval", "worlds", "missing", "word", "p",
    "smallest_visible", "reason", "verdict", "outcome", "unparsable", "one_sided",
)  # fmt: skip


def make_tables(name: str, root: Path) -> Path:
    """Returns the result of the tables stage on invented results."""
    if name == "segment-texts":
        results = make_results(root)
    else:
        results = make_claim_results(root / "results" / "testbed", name, (0, 1))
    paper = MADE[name] or name
    tables.build(results, paper, (0, 1), root / "tables")
    sign(root / "tables")
    return root / "tables" / "result"


def leaves(value: Any) -> Iterator[Any]:
    """Yields keys and values of plain data in their order."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from leaves(each)
    elif isinstance(value, list):
        yield len(value)
        for each in value:
            yield from leaves(each)
    else:
        yield value


def summary(value: Any, root: Path) -> list[Any]:
    """Returns a digest of all that is no fraction, the number of fractions, and two weighted sums of them."""
    every = list(leaves(value))
    fractions = [each for each in every if isinstance(each, float)]
    words = "\n".join(str(each) for each in every if not isinstance(each, float)).replace(str(root), "")
    sums = [math.fsum(math.cos(turn * place) * each for place, each in enumerate(fractions)) for turn in (0, 1)]
    return [hashlib.sha256(words.encode()).hexdigest()[:16], len(fractions), *sums]


def numbers_of_table(table: dict[str, Any]) -> list[Any]:
    """Returns the columns, and the numbers and verdicts of each row."""
    columns = [[column[name] for name in ("key", "metric", "primary", "published")] for column in table["columns"]]
    rows = [
        [
            {name: row[name] for name in ROW},
            {key: [[cell[name] for name in CELL], cell.get("partial")] for key, cell in row["cells"].items()},
        ]
        for row in table["rows"]
    ]
    return [table["evaluator"], table["exploratory"], columns, rows]


def content_of_figure(figure: dict[str, Any]) -> list[Any]:
    """Returns what a figure shows."""
    return [figure["kind"], figure["status"], figure["panels"], figure["blocks"]]


def summaries(name: str, root: Path) -> dict[str, list[Any]]:
    """Returns the summary of each table, figure and file of the tables stage on invented results."""
    return summaries_of(make_tables(name, root), root)


def summaries_of(made: Path, root: Path) -> dict[str, list[Any]]:
    content, figures, metrics = (
        json.loads((made / f"{of}.json").read_text()) for of in ("tables", "figures", "metrics")
    )
    found = {table["name"]: summary(numbers_of_table(table), root) for table in content["tables"]}
    found |= {figure["key"]: summary(content_of_figure(figure), root) for figure in figures["figures"]}
    curves = [[float(cell) if "." in cell else cell for cell in line.split(",")]
              for line in (made / "curves.csv").read_text().splitlines()]  # fmt: skip
    return found | {"counts": summary(content["counts"], root), "metrics": summary(metrics, root),
                    "curves": summary(curves, root)}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_numbers_verdicts_and_figures_are_those_pinned(name: str, tmp_path: Path) -> None:
    known = json.loads(PIN.read_text(encoding="utf-8"))
    found = summaries(name, tmp_path)
    assert known["version"] == tables.VERSION, "write the pin anew"
    assert [*found] == [*known[name]]
    assert not changes(known[name], found), "step VERSION in tasks/tables.py, and write the pin anew"


def changes(known: dict[str, list[Any]], found: dict[str, list[Any]]) -> list[str]:
    """Returns the parts of a pin that differ."""
    return [
        part
        for part in (*known, *(part for part in found if part not in known))
        if found.get(part, [])[:2] != known.get(part, [])[:2]
        or found[part][2:] != pytest.approx(known[part][2:], rel=1e-9, abs=1e-7)
    ]


if __name__ == "__main__":
    import sys
    import tempfile

    pin: dict[str, Any] = json.loads(PIN.read_text(encoding="utf-8")) if PIN.exists() else {}
    for name in sys.argv[1:] or MADE:
        with tempfile.TemporaryDirectory() as folder:
            found = summaries(name, Path(folder))
        if pin.get("version") == tables.VERSION and (changed := changes(pin.get(name, {}), found)):
            sys.exit(f"{name}: {', '.join(changed)} changed; step VERSION in tasks/tables.py first")
        pin[name] = found
    pin["version"] = tables.VERSION
    parts = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in of.items())
        + "}"
        for name, of in pin.items()
        if name in MADE
    )
    PIN.write_text(f'{{"version": {tables.VERSION},\n' + ",\n".join(parts) + "}\n", encoding="utf-8")
