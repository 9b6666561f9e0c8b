"""Every graph of the project: the demo's, the headline rows', and of each scale the papers' and what they share.

Place of each stage:
    dvc.yaml                             the demo's rows, so that plain `dvc repro` is short
    pipelines/testbed/demo-all/dvc.yaml  the headline rows of the papers and what they share
    pipelines/<scale>/shared/dvc.yaml    what belongs to no paper, or what rows of several papers read
    pipelines/<scale>/<paper>/dvc.yaml   the rest of a paper's matrix
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

from rlhf_core.errors import DataError, RecipeError, hint
from rlhf_core.published import printed_tables, row_map
from tasks.graph.items import SHARED, Graph, Input, Item, result_of
from tasks.graph.names import DEMO, DEMO_ALL
from tasks.graph.rows import RowSpec, papers, raw_row, read_rows, row_addresses, row_named
from tasks.graph.scale import Scale
from tasks.graph.typed_settings import typed_settings
from tasks.params.scales import DEFAULT_SCALE, scale_names
from tasks.params.stages import RUNS, RowsAndSeeds, Suite, run_settings

#: The folder of the headline rows.
HEADLINE_ROWS = Path("pipelines") / DEFAULT_SCALE / DEMO_ALL


def add_rows(
    graph: Graph, scale: Scale, paper: str, rows: Iterable[RowSpec], seeds: Iterable[int], tables: str
) -> None:
    """Adds rows over seeds with all above them, and of a published paper the tables stage that reads them.

    A row that is not valid is left out; `tasks.graph.check` says why.
    """
    seeds, names, needed = sorted(seeds), set(), set()
    for row in rows:
        try:
            stages = [item for seed in seeds for item in scale.row(row, seed)]
        except (RecipeError, DataError):
            continue
        graph.add(stages)
        names.add(row.name)
        needed |= table_inputs(stages)
    if paper not in printed_tables.PAPERS:
        return
    arguments: dict[str, Input] = {"results": scale.results, "paper": paper, "seeds": tuple(map(str, seeds))}
    arguments["rows"] = tuple(sorted(names))
    graph.tables[paper] = Item("tables", "", arguments, tables, paper, after=tuple(sorted(needed)))


def table_inputs(items: Iterable[Item]) -> set[str]:
    """Returns the results among some stages that tables may read."""
    return {result_of(item) for item in items if item.module not in ("check", "tokenizer")}


def results_of_rows(root: Path, scale: str, paper: str, rows: Iterable[str], seeds: Iterable[int]) -> set[str]:
    """Returns the results that tables of some rows of a paper may read: the rows' and what they were made from."""
    here = Scale(root, scale)
    specs = [row_named(root, paper, name) for name in rows]
    return {path for seed in seeds for spec in specs for path in table_inputs(here.row(spec, seed))}


def build(root: Path, wanted: Collection[Path] | None = None) -> dict[Path, Graph]:
    """Returns graphs by their folder, relative to the root; rows that are not valid are left out.

    Args:
        wanted: folders that are asked for; the graphs of their scales are made, and the demo's. None for all.

    Raises:
        RecipeError: the demo or demo_all names an unknown row.
    """
    settings, found, typed = run_settings(root), papers(root), typed_settings(root)
    demo = _chosen_rows(root, "demo", settings.demo, found)
    graphs = {Path(): demo}
    scales = set(scale_names(root)) if wanted is None else {at.parts[1] for at in wanted if at != HEADLINE_ROWS}
    headline = Graph(DEFAULT_SCALE)
    if wanted is None or DEFAULT_SCALE in scales or HEADLINE_ROWS in wanted:
        headline = _chosen_rows(root, "demo_all", settings.demo_all, found)
    if rest := [item for item in headline.items() if item.out not in demo.outputs()]:
        graphs[HEADLINE_ROWS] = Graph(DEFAULT_SCALE, tables=headline.tables)
        graphs[HEADLINE_ROWS].add(rest)
    for scale_name in (name for name in scale_names(root) if name in scales):
        scale = Scale(root, scale_name, typed)
        full: dict[str, Graph] = {}
        for paper in found:
            own = read_rows(root, paper, typed)[0]
            named = {row for part in settings.parts(paper) for row in part.rows}
            raw = {row.backbone for row in own.values()} | named - set(own)
            raw |= printed_backbones(paper)
            every = [*own.values(), *(raw_row(root, paper, name) for name in sorted(raw) if name not in own)]
            here = [row for row in every if scale.has(row)]
            if here:
                full[paper], seeds = Graph(scale.name), suite_seeds(settings.suite, scale.name, paper)
                add_rows(full[paper], scale, paper, here, seeds, f"results/{scale.name}/{paper}/tables")
        made = demo.outputs() | headline.outputs() if scale.name == DEFAULT_SCALE else set()
        graphs |= {Path("pipelines") / scale.name / name: graph for name, graph in _parted(full, made).items()}
    return graphs


def _chosen_rows(root: Path, field: str, parts: Mapping[str, RowsAndSeeds], known: Collection[str]) -> Graph:
    """Returns the graph of the rows that a field of params.yaml names, by paper."""
    graph, testbed = Graph(DEFAULT_SCALE), Scale(root, DEFAULT_SCALE)
    for paper, part in parts.items():
        if paper not in known:
            raise RecipeError(f"{RUNS}: {field} names '{paper}', a paper without rows{hint(paper, known)}")
        refuse_unknown_rows(root, f"{field}.{paper}", paper, part.rows)
        rows, wrong = read_rows(root, paper, testbed.settings)
        named = [name for name in part.rows if name not in wrong]
        chosen = [rows.get(name) or row_named(root, paper, name, testbed.settings) for name in named]
        add_rows(graph, testbed, paper, chosen, part.seeds, f"results/{DEFAULT_SCALE}/{paper}/{DEMO}")
    return graph


def refuse_unknown_rows(root: Path, field: str, paper: str, names: Iterable[str]) -> None:
    """Refuses names in a list of params.yaml that no row or backbone has."""
    for name in set(names) - set(row_addresses(root, paper)):
        try:
            row_named(root, paper, name)
        except RecipeError as error:
            raise RecipeError(f"{RUNS}: {field}.rows: {error}") from None


@cache
def printed_backbones(paper: str) -> frozenset[str]:
    """Returns the backbones that are rows of a paper's tables, whether or not a row is trained from them."""
    if paper not in printed_tables.PAPERS:
        return frozenset()
    return frozenset(row.name for row in row_map.rows_of_paper(paper) if row.kind == "sft")


def suite_seeds(suite: Suite, scale: str, paper: str) -> tuple[int, ...]:
    """Returns the seeds of a paper's whole matrix at a scale: of params.yaml `seeds` on the testbed, else
    `scale_seeds`."""
    own = suite.scale_seeds
    return suite.seeds if scale == DEFAULT_SCALE else own.get(paper, own["default"])


def _parted(full: Mapping[str, Graph], made: set[str]) -> dict[str, Graph]:
    """Returns the papers' graphs without what is made elsewhere, and what they share as a graph of its own."""
    users: dict[str, int] = {}
    for graph in full.values():
        for out in graph.outputs():
            users[out] = users.get(out, 0) + 1
    scale = next((graph.scale for graph in full.values()), DEFAULT_SCALE)
    parts = {SHARED: Graph(scale)} | {paper: Graph(scale, tables=graph.tables) for paper, graph in full.items()}
    for paper, graph in full.items():
        for item in graph.items():
            if item.out not in made:
                parts[SHARED if item.owner == SHARED or users[item.out] > 1 else paper].add([item])
    return {name: graph for name, graph in parts.items() if graph.stages or graph.tables}
