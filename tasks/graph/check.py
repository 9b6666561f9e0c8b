"""Every setting that a stage would refuse, refused before anything runs, and without torch.

A row is checked at every scale that has its backbone: each stage above it is found as the graph finds it, its
settings are typed, and what it needs and what contradicts is refused. A row that is wrong says nothing about others;
what is wrong with settings that several rows read is said once.

    check_rows(root, "par", ["vanilla"], "testbed")     what is wrong with some rows at a scale
    check_all(root)                                     refuses every entry of every page
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, hint, nearest
from tasks.graph.contradictions import CHECKS
from tasks.graph.items import Argument, Item
from tasks.graph.needs import check_limits, check_needs
from tasks.graph.rows import (
    RowSpec,
    model_named,
    paper_folder,
    papers,
    read_rows,
    row_addresses,
    row_named,
    selection_named,
)
from tasks.graph.scale import Scale
from tasks.graph.typed_settings import PAPER_PAGES, SCALE_PAGES, STAGE_SETTINGS, StageContext, typed_settings
from tasks.params.pages import entries
from tasks.params.scales import STAGES, scale_entries, scale_folder, scale_names
from tasks.params.stages import RUNS
from tasks.params.yaml_files import folders_of

#: File with the settings of re-evaluation.
REEVALUATION = "params/reevaluation.yaml"
#: Stages of a row, of a reward model, of a selection.
OF_ROWS = ("policy", "reward_bench", "best_of_n", "second_judge")
OF_MODELS = ("reward_model", "normaliser", "references")
OF_SELECTIONS = ("selection",)


class Check:
    """A check of some rows and pages below a root; settings that several stages read are typed once."""

    def __init__(self, root: Path) -> None:
        self.root, self.settings = root, typed_settings(root)
        self._checked: dict[str, list[str]] = {}
        self.scales: dict[str, Scale] = {}

    def named(self, scale: str, paper: str, names: Iterable[str]) -> list[str]:
        """Returns the problems of rows of a paper at a scale, each once."""
        found: list[str] = []
        for name in names:
            try:
                found += self.row(scale, row_named(self.root, paper, name, self.settings))
            except (RecipeError, DataError) as error:
                found.append(str(error))
        return list(dict.fromkeys(found))

    def row(self, scale: str, row: RowSpec) -> list[str]:
        """Returns the problems of a row at a scale; none if the scale does not have its backbone."""
        here = self.scales.setdefault(scale, Scale(self.root, scale, self.settings))
        try:
            items = here.row(row, 0) if here.has(row) else []
        except (RecipeError, DataError) as error:
            return [str(error)]
        for item in items:
            if item.out not in self._checked:
                self._checked[item.out] = self._problems(StageContext(item, self.settings))
        return [problem for item in items for problem in self._checked[item.out]]

    def _problems(self, stage: StageContext) -> list[str]:
        """Returns what is wrong with each of a stage's settings, else what contradicts among them and those above."""
        problems = [found for address in stage.item.addresses if (found := self.settings.problem(address))]
        if problems or stage.item.module == "check":
            return problems
        try:
            check_needs(stage)
            check_limits(stage)
            if (own := CHECKS.get(stage.item.module)) is not None:
                own(stage)
        except (RecipeError, DataError) as error:
            # settings of a stage above, which is checked itself
            return [] if str(error) in self.settings.problems else [str(error)]
        return []


def check_rows(root: Path, paper: str, rows: Iterable[str], scale: str) -> list[str]:
    """Returns the problems of rows of a paper and of all stages above them at a scale, each problem once."""
    return Check(root).named(scale, paper, rows)


def refuse(problems: Iterable[str]) -> None:
    """Refuses all problems at once.

    Raises:
        RecipeError: every problem, one a line.
    """
    if found := list(dict.fromkeys(problems)):
        raise RecipeError("\n".join(found))


def refuse_rows(root: Path, scale: str, chosen: Mapping[str, Collection[str]]) -> None:
    """Refuses rows that are to run; `graph --check` checks all others.

    Args:
        root: the repository.
        scale: of the run.
        chosen: names of rows by paper; none for all of the paper's.
    """
    check = Check(root)
    asked = {paper: dict.fromkeys(names or row_addresses(root, paper)) for paper, names in chosen.items()}
    refuse(found for paper, names in asked.items() for found in check.named(scale, paper, names))


def check_all(root: Path) -> None:
    """Refuses what any stage of any row would refuse at any scale, and entries of pages that no row reads."""
    check, scales = Check(root), scale_names(root)
    problems = [found for address in _entries(root) if (found := check.settings.problem(address))]
    for paper in papers(root):
        rows, wrong = read_rows(root, paper, check.settings)
        problems += wrong.values()
        problems += [problem for scale in scales for row in rows.values() for problem in check.row(scale, row)]
    asked = set[str]().union(*(scale.asked for scale in check.scales.values()))
    refuse([*problems, *(found for scale in scales for found in _unread_stages(root, scale, asked))])


def _entries(root: Path) -> Iterator[str]:
    """Yields the address of each entry of every page."""
    for paper in (path.name for path in folders_of(root / "params") if path.name != "scales"):
        for kind in PAPER_PAGES:
            yield from entries(root, paper_folder(paper), kind).values()
    for scale in scale_names(root):
        for kind in SCALE_PAGES:
            yield from scale_entries(root, scale, kind).values()
        of_stages = scale_entries(root, scale, STAGES)
        yield from (address for name, address in of_stages.items() if name.partition("-")[0] in STAGE_SETTINGS)
    yield from (file for file in (REEVALUATION, RUNS) if os.path.lexists(root / file))


def _unread_stages(root: Path, scale: str, asked: Collection[str]) -> Iterator[str]:
    """Yields what is wrong with the names of a scale's own settings of stages that no stage reads.

    Args:
        asked: names of settings that stages of rows look for.
    """
    for name, address in entries(root, scale_folder(scale), STAGES).items():
        stage = name.partition("-")[0]
        known = sorted(one for one in asked if one.startswith(f"{stage}-"))
        if stage not in STAGE_SETTINGS:
            near = hint(name if nearest(name, STAGE_SETTINGS) else stage, STAGE_SETTINGS)
            yield f"{address}: no stage '{stage}' has settings{near}"
        elif "-" in name and name not in known:
            near = hint(name, known, more=3) if known else f"; write them as '{stage}'"
            yield f"{address}: nothing reads '{name}'{near}"


# --- a stage that begins -----------------------------------------------------------------------------------------


def _declared(root: Path, out: Path) -> Item | None:
    """Returns the stage that the graph gives for an output `results/<scale>/<paper>/<stage>/<name>[/<seed>]` of this
    repository, None for other outputs and stages."""
    parts = out.parts
    if len(parts) not in (5, 6) or parts[0] != "results" or not (root / RUNS).is_file():
        return None
    _, scale, paper, stage, name, *of_seed = parts
    if not (root / scale_folder(scale)).is_dir() or not all(part.isdecimal() for part in of_seed):
        return None
    here, seed = Scale(root, scale), int(of_seed[0]) if of_seed else 0
    settings = here.settings
    if stage in OF_ROWS and name in row_addresses(root, paper):
        last = here.row(row_named(root, paper, name, settings), seed)[-1]
    elif stage in OF_MODELS:
        model = model_named(settings, out.as_posix(), paper, name)
        last = here.references(model, seed) if stage == "references" else here.normaliser(model, seed)
    elif stage in OF_SELECTIONS:
        last = here.selection(selection_named(settings, out.as_posix(), paper, name), seed)
    else:
        return None
    return next((item for item in last.with_all_above() if item.out == out.as_posix()), None)


def check_declared(root: Path, out: Path, given: Mapping[str, Any]) -> None:
    """Refuses a stage of a row that is not valid, or whose row asks for other inputs than the stage is given: `dvc exp
    run -S` may change the row, but not the stage.

    Args:
        root: the repository.
        out: the stage's output.
        given: its arguments by name, as its command line has them.

    Raises:
        RecipeError: what is wrong with the row, or the input that it asks for and the one that is given.
    """
    try:
        item = _declared(root, out)
    except DataError as error:
        raise RecipeError(str(error)) from None
    if item is None:
        return
    if item.module in OF_ROWS:
        refuse(check_rows(root, item.owner, [item.name], out.parts[1]))
    arguments = item.arguments
    for name in {**arguments, **given}:
        asked, has = _texts(arguments.get(name)), _texts(given.get(name))
        if asked != has:
            what, asks = arguments.get("row") or arguments.get("spec") or item.name, " ".join(asked) or "nothing"
            raise RecipeError(
                f"{what}: it asks for --{name.replace('_', '-')} {asks}, but the stage is given "
                f"{' '.join(has) or 'nothing'}; dvc.yaml is older than params/: run `rewardsmith graph`, then the "
                "stage again"
            )


def _texts(value: Argument | Path | list[Path] | None) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, tuple | list) else () if value is None else (str(value),)
