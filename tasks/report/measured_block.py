"""Measured results as blocks of documents, made from the committed references and never typed.

A document holds `<!-- measured: NAME -->` and `<!-- end of measured -->`, where NAME is a paper of `make demo-all` or
`demo`. The block has the headline metrics of every row in `reference/demo_all.json` or `reference/demo.json`.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, hint
from tasks.graph.headlines import headlines
from tasks.running.artifacts import read_json

DEMO = "demo"
REFERENCES = {DEMO: "reference/demo.json", "": "reference/demo_all.json"}
BLOCK = re.compile(r"(<!-- measured: (?P<name>[a-z]+) -->\n).*?(<!-- end of measured -->)", re.DOTALL)
#: Kinds of stages that end a row, the last one first; of a row that has several, the first of these counts.
ENDS = ("best_of_n", "reward_bench", "policy", "sft")


def with_measured(root: Path, text: str, document: Path) -> str:
    """Returns the text of a document with its blocks rendered from the references.

    Raises:
        DataError: a reference is missing, or has no row of the block's paper.
    """

    def rendered(block: re.Match[str]) -> str:
        return f"{block[1]}\n{measured_block(root, block['name'], document)}\n\n{block[3]}"

    return BLOCK.sub(rendered, text)


def measured_block(root: Path, paper: str, document: Path) -> str:
    """Returns the table of a paper's rows: the mean of their worlds, with its standard error where there are several.

    Raises:
        DataError: as `with_measured`.
    """
    file = root / REFERENCES.get(paper, REFERENCES[""])
    if not file.exists():
        raise DataError("there is no reference to make the block from", file=file.as_posix())
    stages = read_json(file)["stages"]
    papers = sorted({address.partition("/")[0] for address in stages} - {"shared"})
    if paper not in papers:
        raise DataError(f"'{paper}' has no row in {file.name}{hint(paper, papers)}", file=document.as_posix())
    rows = _rows(root, paper, stages)
    metrics = list(dict.fromkeys(name for values in rows.values() for name in values))
    lines = ["| row | seeds | " + " | ".join(f"`{name}`" for name in metrics) + " |", "|---" * (len(metrics) + 2) + "|"]
    for row, values in rows.items():
        seeds = max(len(each) for each in values.values())
        lines.append(f"| `{row}` | {seeds} | " + " | ".join(_cell(values.get(name, [])) for name in metrics) + " |")
    return "\n".join(lines)


def _rows(root: Path, paper: str, stages: Mapping[str, Any]) -> dict[str, dict[str, list[float]]]:
    """Returns the headline metrics of each row by seed, in the order of `params.yaml`."""
    found: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(dict)
    for address, stage in stages.items():
        owner, _, rest = address.partition("/")
        name, _, _ = rest.partition("/")[2].rpartition("/")
        if stage["kind"] not in ENDS or owner not in (paper, "shared"):
            continue
        of_row = found[name].setdefault(stage["kind"], {})
        for metric, value in headlines(stage["kind"], stage["metrics"]).items():
            of_row.setdefault(metric, []).append(value)
    named = _named(root, paper, found)
    return {row: next(found[row][kind] for kind in ENDS if kind in found[row]) for row in named if row in found}


def _named(root: Path, paper: str, found: Iterable[str]) -> list[str]:
    """Returns the rows of the demo or of a paper in `make demo-all`."""
    import yaml

    params = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    listed = params.get("demo_all", {}) if paper != DEMO else params.get("demo", {})
    return list(listed.get(paper, {}).get("rows", found))


def _cell(values: list[float]) -> str:
    """Returns mean ± standard error (ddof 1) to four significant digits, empty without a value."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):.4g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.2g}"
