"""Every setting that a stage would refuse, refused before anything runs, and without torch.

A row is checked at every scale that has its backbone: each stage above it is found as the graph finds it, its
settings are typed as the stage types them (`tasks.graph.typed_settings`), and what contradicts is refused as the stage
would. A row that is wrong says nothing about others; what is wrong with settings that several rows read is said once.

    check_rows(root, "par", ["vanilla"], "testbed")     what is wrong with some rows at a scale
    check_all(root)                                     refuses every entry of every page
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from rlhf_core.errors import DataError, RecipeError, hint, nearest
from rlhf_core.typed import typed
from tasks.graph.policy_checks import check_policy, check_selection
from tasks.graph.rows import PAGES, RowSpec, paper_folder, papers, read_rows, row_addresses, row_named
from tasks.graph.scale import Scale
from tasks.graph.stage_checks import CHECKS, check_shared
from tasks.graph.typed_settings import TYPES, Make, StageContext, by_result, stated_settings, typed_settings
from tasks.params.evaluation import ReevaluationSettings
from tasks.params.pages import entries
from tasks.params.reward_model import GenerativeModelSpec, reward_model_spec
from tasks.params.row_parser import parse_row
from tasks.params.scales import RESOURCES, STAGES, scale_entries, scale_folder, scale_names
from tasks.params.stages import RUNS, RunSettings, stage_needs
from tasks.params.yaml_files import folders_of

#: File with the settings of re-evaluation.
REEVALUATION = "params/reevaluation.yaml"
#: Checks of each stage that depend on several settings.
ALL_CHECKS: Mapping[str, Callable[[StageContext], None]] = {
    **CHECKS,
    "policy": check_policy,
    "selection": check_selection,
}
#: Functions that type the entries of a paper's pages, by kind.
PAPER_TYPES: Mapping[str, Make] = {
    "rows": parse_row,
    "reward_models": reward_model_spec,
    "generative_reward_models": partial(typed, GenerativeModelSpec),
    "selections": TYPES["selection", "spec"],
    "aspect_models": TYPES["aspect_model", "spec"],
}
#: Functions that type the entries of a scale's pages, by kind.
SCALE_TYPES: Mapping[str, Make] = {
    "backbones": TYPES["sft", "spec"],
    "data": TYPES["prepare", "spec"],
    "tokenizers": TYPES["tokenizer", "spec"],
    "evaluation": TYPES["sft", "evaluation"],
    "policy": TYPES["policy", "scale"],
    "aspects": TYPES["selection", "aspect"],
    "segmenters": TYPES["segmenter", "spec"],
}
#: Functions that type a scale's settings of stages, by the stage.
STAGE_TYPES: Mapping[str, Make] = {
    RESOURCES: stage_needs,
    "entropies": TYPES["entropies", "spec"],
    "samples": TYPES["samples", "spec"],
    "teacher": TYPES["teacher", "spec"],
    **{module: make for (module, name), make in TYPES.items() if name == "scale" and module != "policy"},
}


class Check:
    """A check of some rows and pages below a root; settings that several stages read are typed once."""

    def __init__(self, root: Path) -> None:
        self.root, self.settings = root, typed_settings(root)
        self._checked: dict[str, list[str]] = {}
        self.scales: dict[str, Scale] = {}

    def named(self, scale: str, paper: str, names: Iterable[str]) -> list[str]:
        """Returns the problems of rows of a paper at a scale."""
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
        above, found = by_result(items), list[str]()
        for item in items:
            if item.out not in self._checked:
                self._checked[item.out] = self._problems(StageContext(item, above, self.settings))
            found += self._checked[item.out]
        return list(dict.fromkeys(found))

    def _problems(self, stage: StageContext) -> list[str]:
        """Returns what is wrong with each of a stage's settings, else what contradicts among them and those above."""
        problems = [found for make, address in stated_settings(stage.item) if (found := self.entry(make, address))]
        if problems:
            return problems
        try:
            check_shared(stage)
            if (own := ALL_CHECKS.get(stage.item.module)) is not None:
                own(stage)
        except (RecipeError, DataError) as error:
            # settings of a stage above, which is checked itself
            return [] if str(error) in self.settings.problems else [str(error)]
        return []

    def entry(self, make: Make, address: str) -> str | None:
        """Returns the problem of the settings at an address, None if they are valid."""
        try:
            self.settings.get(make, address)
        except (RecipeError, DataError) as error:
            return str(error)
        return None


def _entries(root: Path) -> Iterator[tuple[Make, str]]:
    """Yields the type and the address of each entry of every page."""
    for paper in paper_names(root):
        for kind in PAGES:
            for address in entries(root, paper_folder(paper), kind).values():
                yield PAPER_TYPES[kind], address
    for scale in scale_names(root):
        for kind, make in SCALE_TYPES.items():
            for address in scale_entries(root, scale, kind).values():
                yield make, address
        for name, address in scale_entries(root, scale, STAGES).items():
            if (stage := name.partition("-")[0]) in STAGE_TYPES:
                yield STAGE_TYPES[stage], address
    for file, cls in ((REEVALUATION, ReevaluationSettings), (RUNS, RunSettings)):
        if os.path.lexists(root / file):
            yield partial(typed, cls), file


def paper_names(root: Path) -> list[str]:
    """Returns the folders of papers in params/, those without rows included."""
    return [path.name for path in folders_of(root / "params") if path.name != "scales"]


def unread_stages(root: Path, scale: str, asked: Collection[str]) -> list[str]:
    """Returns what is wrong with the names of a scale's own settings of stages that no stage reads.

    Args:
        asked: names of settings that stages of rows look for.
    """
    problems = []
    for name, address in entries(root, scale_folder(scale), STAGES).items():
        stage = name.partition("-")[0]
        known = sorted(one for one in asked if one.startswith(f"{stage}-"))
        if stage not in STAGE_TYPES:
            near = hint(name if nearest(name, STAGE_TYPES) else stage, STAGE_TYPES)
            problems.append(f"{address}: no stage '{stage}' has settings{near}")
        elif "-" in name and not known:
            problems.append(f"{address}: stage '{stage}' has no settings of one case; write them as '{stage}'")
        elif "-" in name and name not in known:
            problems.append(f"{address}: nothing reads '{name}'{hint(name, known, more=3)}")
    return problems


def refused(problems: Iterable[str]) -> RecipeError | None:
    """Returns one error that lists every problem, None without problems."""
    found = list(dict.fromkeys(problems))
    return RecipeError("\n".join(found)) if found else None


def check_rows(root: Path, paper: str, rows: Iterable[str], scale: str) -> list[str]:
    """Returns the problems of rows of a paper and of all stages above them at a scale, each problem once."""
    return Check(root).named(scale, paper, rows)


def check_all(root: Path) -> None:
    """Refuses what any stage of any row would refuse at any scale, and entries of pages that no row reads.

    Raises:
        RecipeError: every problem, one a line.
    """
    check = Check(root)
    problems = [found for make, address in _entries(root) if (found := check.entry(make, address))]
    for paper in papers(root):
        rows, wrong = read_rows(root, paper)
        problems += wrong.values()
        for scale in scale_names(root):
            problems += [problem for row in rows.values() for problem in check.row(scale, row)]
    asked = set[str]().union(*(scale.asked for scale in check.scales.values()))
    problems += [found for scale in scale_names(root) for found in unread_stages(root, scale, asked)]
    if (refusal := refused(problems)) is not None:
        raise refusal


def refuse_rows(root: Path, scale: str, chosen: Mapping[str, Collection[str]]) -> None:
    """Refuses rows that are to run; `graph --check` checks all others.

    Args:
        root: the repository.
        scale: of the run.
        chosen: names of rows by paper; none for all of the paper's.

    Raises:
        RecipeError: every problem of the chosen rows, one a line.
    """
    check, problems = Check(root), list[str]()
    for paper, asked in chosen.items():
        problems += check.named(scale, paper, dict.fromkeys(asked or row_addresses(root, paper)))
    if (error := refused(problems)) is not None:
        raise error
