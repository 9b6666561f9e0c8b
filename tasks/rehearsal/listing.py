"""The list at the end of a rehearsal: empty cells with reasons, unread settings, quarantine, time and a forecast."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.models.memory import GIB, Sharding
from tasks.graph.items import Item
from tasks.graph.matrix import printed_backbones
from tasks.graph.rows import RowSpec, raw_row, read_rows, row_named
from tasks.graph.scale import Scale
from tasks.graph.scale_check import check_scale
from tasks.graph.times import RunTimes, last_run
from tasks.params.pages import read_settings
from tasks.params.scales import KINDS, RESOURCES, scale_entries
from tasks.rehearsal.cells import BROKEN, REASONS, AskedRows, EmptyCell, Walked, walked_cells
from tasks.rehearsal.rows import OWN
from tasks.rehearsal.tree import SEED, Rehearsal
from tasks.running.artifacts import read_json

#: Files of the list in the tree.
JSON_FILE, TEXT_FILE = "rehearsal.json", "rehearsal.md"
#: Fields that name further entries of a scale.
NAMING = {"data": "data", "tokenizer": "tokenizers", "evaluation": "evaluation"}


@dataclass
class Listing:
    """List of what a rehearsal found.

    Attributes:
        scale, rows: what was rehearsed: rows by paper.
        cells: printed cells by paper.
        failed: message of each failed stage.
        unread: entries of the scale's pages, and data sets in them, that no stage reads.
        quarantined: rows in quarantine by data set.
        origins, models, replaced: see `Rehearsal`.
        seconds: of the whole rehearsal, of its stages, and core-seconds of these.
        equal: rows that have a copy of another row's results, and that row.
        forecast: lines of `rewardsmith doctor --scale`, by paper.
    """

    scale: str
    rows: dict[str, int] = field(default_factory=dict)
    cells: dict[str, Walked] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    quarantined: dict[str, int] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    forecast: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    equal: dict[str, str] = field(default_factory=dict)

    @property
    def unstated(self) -> list[EmptyCell]:
        """Returns the empty cells without a reason, or with one that says that something is broken."""
        empty = (cell for walked in self.cells.values() for cell in walked.empty)
        return [cell for cell in empty if cell.reason is None or cell.reason in BROKEN]

    @property
    def status(self) -> int:
        """Returns the exit status: 1 if a cell is empty without a reason or a stage failed."""
        return int(bool(self.unstated or self.failed))


@dataclass(frozen=True)
class ForecastGpus:
    """The GPUs that the forecast is for.

    Attributes:
        gpus: how many.
        memory_gb: GiB of each.
        deepspeed: a DeepSpeed configuration, None for none.
    """

    gpus: int
    memory_gb: float
    deepspeed: Mapping[str, Any] | None = None


def listing_of(
    rehearsal: Rehearsal, asked: Mapping[str, Collection[str]], seconds: float, for_: ForecastGpus
) -> Listing:
    """Returns the list of a rehearsal that has run.

    Args:
        asked: names of the rows by paper; empty for all rows of the paper.
        seconds: that the rehearsal took.
        for_: what the forecast is for.
    """
    here = Scale(rehearsal.tree, rehearsal.name)
    found = Listing(rehearsal.scale, origins=rehearsal.origins, models=rehearsal.models, replaced=rehearsal.replaced)
    outs: set[str] = set()
    for paper, names in asked.items():
        known = {row.name: row for row in rows_of(rehearsal.tree, here, paper)}
        chosen = {name: row_named(rehearsal.tree, paper, name, known) for name in names or known}
        items = {name: here.row(row, SEED) for name, row in chosen.items()}
        outs |= {item.out for some in items.values() for item in some}
        failed = {name for name, some in items.items() if not _has_results(rehearsal.tree, some)}
        of_paper = AskedRows(frozenset(known), frozenset(chosen), frozenset(failed))
        found.rows[paper] = len(chosen)
        found.cells[paper] = walked_cells(rehearsal.tree / here.results, paper, of_paper)
        found.forecast[paper] = forecast(rehearsal, paper, for_)
    found.failed = failures(rehearsal.tree, outs)
    found.unread = unread_settings(rehearsal.project, rehearsal.scale)
    found.quarantined = quarantined(rehearsal.tree / here.results)
    run = last_run(rehearsal.tree)
    found.seconds = {"in all": round(seconds, 1)} | (spent(run) if run is not None else {})
    return found


def rows_of(root: Path, here: Scale, paper: str) -> list[RowSpec]:
    """Returns the rows of a paper that a scale has, those of backbones as they are included."""
    rows = read_rows(root, paper)[0]
    raw = {row.backbone for row in rows.values()} | printed_backbones(paper)
    every = [*rows.values(), *(raw_row(root, paper, name) for name in sorted(raw) if name not in rows)]
    return [row for row in every if here.has(row)]


def _has_results(tree: Path, items: Iterable[Item]) -> bool:
    return all((tree / item.out / "result").exists() for item in items)


def failures(tree: Path, outs: Collection[str]) -> dict[str, str]:
    """Returns the message of each failed stage among some without a result."""
    notes = [read_json(file) for file in sorted((tree / ".work" / "failures").glob("*.json"))]
    missing = (note for note in notes if note["out"] in outs and not (tree / note["out"] / "result").exists())
    return {str(note["stage"]).rpartition(":")[2]: str(note["message"]) for note in missing}


def unread_settings(project: Path, scale: str) -> list[str]:
    """Returns entries of a scale's pages that no stage of any row reads, and data sets that no data spec names."""
    from rlhf_core.published.printed_tables import PAPERS

    here, read = Scale(project, scale), set[str]()
    for paper in PAPERS:
        for row in rows_of(project, here, paper):
            for item in here.row(row, SEED):
                read |= {str(address) for address in (*item.addresses, *item.reads)}
    found = []
    for kind in KINDS:
        for name, address in scale_entries(project, scale, kind).items():
            if str(address) not in read and name != RESOURCES:
                found.append(str(address))
            elif kind == "data":
                found += [f"{address}: sets: {one}" for one in _unnamed_sets(read_settings(address.under(project)))]
    return found


def _unnamed_sets(data: Mapping[str, Any]) -> Iterator[str]:
    """Yields the sets that a data spec describes and does not name."""
    sets = data.get("sets")
    if not isinstance(sets, Mapping):
        return
    named = {*data.get("preference", ()), *data.get("prompts", ())}
    for field_ in ("benchmarks", "references", "code"):
        named |= set(data.get(field_, {}).values())
    yield from (name for name in sets if name not in named)


def spent(run: RunTimes) -> dict[str, float]:
    """Returns the seconds of a run's stages by kind, of its last call of the flow."""
    kinds: dict[str, float] = {}
    for stage in run.stages:
        kind = stage.stage.rpartition(":")[2].partition("-")[0]
        kinds[kind] = round(kinds.get(kind, 0.0) + stage.seconds, 1)
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def quarantined(results: Path) -> dict[str, int]:
    """Returns the rows in quarantine by data set, where there are any."""
    found: dict[str, int] = {}
    for file in sorted((results / "shared" / "data").glob("*/**/result/data.json")):
        facts = read_json(file).get("quarantine", [])
        if count := sum(int(one.get("quarantined", 0)) for one in facts):
            found[file.parents[1].name] = count
    return found


def forecast(rehearsal: Rehearsal, paper: str, for_: ForecastGpus) -> list[dict[str, Any]]:
    """Returns memory and GPU hours of the real scale's training stages of a paper."""
    sharding = Sharding.of(for_.gpus, for_.deepspeed)
    try:
        stages = check_scale(rehearsal.project, rehearsal.scale, sharding, paper)
    except RecipeError as error:
        return [{"not forecast": str(error)}]
    return [
        {
            "backbone": stage.backbone,
            "stage": stage.stage,
            "gib": round(stage.total / GIB, 1),
            "fits": bool(stage.fit(for_.memory_gb)),
            "gpu_hours": round(stage.gpu_hours, 2),
        }
        for stage in stages
    ]


def text_of(found: Listing, for_: ForecastGpus) -> str:
    """Returns the list as Markdown."""
    lines = [f"# Rehearsal of scale {found.scale}", "", "**No number of a rehearsal is a result.**", ""]
    for paper, walked in found.cells.items():
        whole = walked.filled + len(walked.empty)
        lines.append(f"- {paper}: {found.rows[paper]} rows, {walked.filled} of {whole} printed cells filled")
    clocks = ", ".join(f"{name} {value:,.0f}" for name, value in found.seconds.items())
    lines += ["", f"Seconds: {clocks}", "", "## Empty cells", ""]
    lines += _empty_cells(found)
    lines += _section("Failed stages", [f"{stage}: {message}" for stage, message in found.failed.items()])
    lines += _section("Settings that no stage reads", found.unread)
    lines += _section("Rows in quarantine", [f"{name}: {count}" for name, count in found.quarantined.items()])
    lines += _section("Played by something else", [f"{what}: {by}" for what, by in sorted(found.replaced.items())])
    lines += _section("Equal rows, run once", [f"{name}: as {first}" for name, first in found.equal.items()])
    lines += _section(
        "Data sets without rows of their own",
        [f"{name}: {origin}" for name, origin in sorted(found.origins.items()) if origin != OWN],
    )
    lines += _section(
        "Models", [f"{name}: {folder}, tokenizer {own}" for name, (folder, own) in sorted(found.models.items())]
    )
    lines += ["", f"## Forecast for {for_.gpus} GPUs of {for_.memory_gb:g} GiB", ""]
    lines += ["| paper | backbone | stage | GiB each | GPU hours |", "| --- | --- | --- | ---: | ---: |"]
    for paper, stages in found.forecast.items():
        for one in stages:
            if "not forecast" in one:
                lines.append(f"| {paper} | not forecast: {one['not forecast']} | | | |")
                continue
            fits = "" if one["fits"] else " (too much)"
            lines.append(f"| {paper} | {one['backbone']} | {one['stage']} | {one['gib']}{fits} | {one['gpu_hours']} |")
    return "\n".join(lines) + "\n"


def _empty_cells(found: Listing) -> list[str]:
    """Returns the number of empty cells by paper, table and reason, and every cell without a reason."""
    lines = []
    for paper, walked in found.cells.items():
        counts = Counter((cell.table, cell.reason, cell.column) for cell in walked.empty if cell.reason)
        grouped: dict[tuple[str, str], list[str]] = {}
        for (table, reason, column), count in sorted(counts.items(), key=str):
            grouped.setdefault((table, str(reason)), []).append(f"{column} ({count})")
        lines += [
            f"- {table}: {reason}: {REASONS[reason]}: {', '.join(own)}" for (table, reason), own in grouped.items()
        ]
        unstated = [cell for cell in walked.empty if cell.reason is None]
        lines += [f"- {c.table}: {c.row}, {c.column}: WITHOUT A REASON ({c.detail})" for c in unstated]
        if not walked.empty:
            lines.append(f"- {paper}: none")
    return lines


def _section(title: str, items: Collection[str]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {one}" for one in items or ("none",))]


def write_listing(found: Listing, for_: ForecastGpus, tree: Path) -> Path:
    """Writes the list as JSON and as Markdown into a tree; returns the second."""
    content = asdict(found) | {"status": found.status}
    (tree / JSON_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (tree / TEXT_FILE).write_text(text_of(found, for_), encoding="utf-8")
    return tree / TEXT_FILE
