"""Settings of a study: which rows are compared in which worlds, by which numbers, decided before it runs.

A study counts for a claim of `rlhf_core/published/claims/` only by hypotheses that it names, of rows of the claim's
paper. Where they are not just the comparisons that the claims file lists, `differs` says so beside the count.

A **cell** is one level of every dial. A **world** is one independent draw of facts, data, prompts, initial weights, SFT
model, reward models and policies; every row of every cell is trained in each. Nothing here imports torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rlhf_core.errors import RecipeError, hint
from rlhf_core.published.paper_claims import ClaimedPair, StatedClaim, stated_claims
from rlhf_core.published.printed_tables import PAPERS
from rlhf_core.typed import Checked, Count, above, each_once, one_of, typed
from tasks.params.evaluation import METRIC_NAMES, is_metric
from tasks.params.pages import NAME, NAME_RULE, read_settings
from tasks.params.scales import KINDS

FOLDER = Path("studies")
#: Fields of a study's row: the row that it is like, the levels of dials in whose cells it is trained, the settings of
#: its optimiser that tuning leaves as they are, and that it is another row's twin.
LIKE, ONLY, FIXED, TWIN = "like", "only", "fixed", "twin"
OF_STUDIES = (LIKE, ONLY, FIXED, TWIN)
#: Fields of a study's row with which it is still the paper's row: tuning sets the optimiser's.
OWN_FIELDS = (LIKE, ONLY, "optimiser")
#: The most worlds of a study of twins: half of the seeds that are kept for them.
MOST_TWINS = 50
#: The cell of a study without dials.
PLAIN = "as-it-is"
SIDES = ("above", "below")

#: {page of a scale: {entry or base: settings}}
Overlay = Mapping[str, Mapping[str, Any]]
#: {dial: a level, or several}
Levels = Mapping[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class Hypothesis(Checked):
    """A row against another one, in one number per world.

    Args:
        says: the hypothesis as a sentence.
        row: the row that is expected to differ.
        than: the row that it is compared with; the study's `main` unless given.
        at: levels of dials that a cell must have, of each dial one or several; the mean over all such cells counts.
        over: a dial over which the difference is expected to grow (`above`) or to shrink (`below`): the number is the
            slope of the difference over the dial's levels, in points per level.
        side: the side on which the number is expected to be of 0.
        collapse: the claim is that the losing row collapses; a win over a row that tuning found broken then counts.
    """

    says: str
    row: str
    than: str | None = None
    at: Levels = field(default_factory=dict)
    over: str | None = None
    side: Annotated[str, one_of(SIDES)] = "above"
    collapse: bool = False

    def _check_together(self) -> None:
        if self.over is not None and self.over in self.at:
            raise RecipeError(f"'at' fixes dial '{self.over}', over which the hypothesis is")


@dataclass(frozen=True)
class PaperClaim(Checked):
    """The sentence of a paper that a study is about.

    Args:
        id: of the claim in `rlhf_core/published/claims/<paper>.yaml`, whose words are the claim's.
        tested_by: hypotheses that test the claim; it holds if all of them do.
        differs: a sentence on what is tested otherwise than the claims file says.
    """

    paper: Annotated[str, one_of(PAPERS)]
    id: str
    tested_by: Annotated[tuple[str, ...], each_once()]
    differs: str | None = None

    def _check_together(self) -> None:
        if self.id not in (known := stated_claims(self.paper)):
            near = hint(self.id, known, more=3)
            raise RecipeError(f"id is '{self.id}', which is not a claim of claims/{self.paper}.yaml{near}")

    @property
    def stated(self) -> StatedClaim:
        """Returns the sentence of the claims file with its source."""
        return stated_claims(self.paper)[self.id]


@dataclass(frozen=True)
class StudySpec(Checked):
    """A study.

    Args:
        rows: by name: `like: <paper>/<row>`, settings of a row laid over it, `only` the levels of dials in whose cells
            it is trained, and `fixed` the settings of its `optimiser` that tuning leaves as they are.
        main: the row that hypotheses compare with.
        reward_models: of the study's own, by name: `like: <paper>/<reward model>` and settings laid over it; rows of
            the same paper name them as their `reward_model`.
        hypotheses: by name; the first is the primary one. The others are tested only if it is significant, and
            corrected for their number (Holm).
        metric: of the rows' results, such as win_rate_vs_sft; larger is better.
        worlds: how many are run before anything is concluded.
        dials: by name, levels in order, each laid over the scale's pages.
        settings: laid over the scale's pages in every cell.
        claim: the sentence of a paper, None for another question.
        margin: differences within it count as none, in the metric's unit; None tests no equivalence.
        hours, tuning_hours: of one core that the study and its tuning are expected to take.
        shows: other metrics that its page shows.
        tuned_at: cells in which the rows are tuned, every cell unless given.
        kl_targets: nats per response at which its page also shows the rows' metric.
    """

    title: str
    asks: str
    rows: Mapping[str, Mapping[str, Any]]
    main: str
    hypotheses: Mapping[str, Hypothesis]
    metric: str
    worlds: Annotated[Count, above(1)]
    dials: Mapping[str, Mapping[str, Overlay]] = field(default_factory=dict)
    settings: Overlay = field(default_factory=dict)
    reward_models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    claim: PaperClaim | None = None
    margin: Annotated[float, above(0)] | None = None
    hours: Annotated[float, above(0)] | None = None
    tuning_hours: Annotated[float, above(0)] | None = None
    shows: tuple[str, ...] = ()
    tuned_at: tuple[str, ...] = ()
    kl_targets: tuple[Annotated[float, above(0)], ...] = ()

    def _check_together(self) -> None:
        if not self.hypotheses:
            raise RecipeError("hypotheses is empty; state at least the primary one")
        self._check_names()
        for dial, levels in self.dials.items():
            if len(levels) < 2:
                raise RecipeError(f"dials.{dial} has {len(levels)} level; a dial has at least two")
        for group, entries in (("rows", self.rows), ("reward_models", self.reward_models)):
            for name, entry in entries.items():
                if not isinstance(entry.get(LIKE), str) or entry[LIKE].count("/") != 1:
                    raise RecipeError(f"{group}.{name}: 'like' is {entry.get(LIKE)!r}; write it as <paper>/<name>")
        if len(self.cells) < math.prod(len(levels) for levels in self.dials.values()):
            raise RecipeError("dials: two cells have one name, their levels joined by '-'; rename a level")
        self._check_dials()
        for name, row in self.rows.items():
            self._check_levels(f"rows.{name}.{ONLY}", row.get(ONLY) or {})
            _check_fixed(f"rows.{name}", row)
            self._check_twin(name, row.get(TWIN, False))
        _named("main", self.main, self.rows)
        for cell in self.tuned_at:
            _named("tuned_at", cell, self.cells)
        for name, hypothesis in self.hypotheses.items():
            self._check_hypothesis(f"hypotheses.{name}", hypothesis)
        if self.twins:
            self._check_study_of_twins()
        if self.claim is not None:
            self._check_claim(self.claim)
        for where, metric in (("metric", self.metric), *(("shows", metric) for metric in self.shows)):
            of_a_stage = where == "shows" and metric.count("/") >= 2  # <stage>/<name>/<metric>, known once rows are
            if not is_metric(metric) and not of_a_stage:
                raise RecipeError(
                    f"{where} names '{metric}', which no run measures{hint(metric, METRIC_NAMES, more=3)}"
                )
        overlays = {f"dials.{d}.{level}": laid for d, levels in self.dials.items() for level, laid in levels.items()}
        for where, overlay in {"settings": self.settings, **overlays}.items():
            for page in overlay:
                _named(where, page, KINDS)

    def _check_names(self) -> None:
        groups = {name: getattr(self, name) for name in ("rows", "reward_models", "dials", "hypotheses")}
        for group, names in {**groups, **{f"dials.{dial}": levels for dial, levels in self.dials.items()}}.items():
            for name in names:
                if not NAME.fullmatch(str(name)):
                    raise RecipeError(f"{group}: '{name}' is not a name; a name has {NAME_RULE}")

    def _check_dials(self) -> None:
        """Refuses dials that move one setting: the later one would undo the other."""
        moved = {
            dial: {path for laid in levels.values() for path in _paths(laid)} for dial, levels in self.dials.items()
        }
        for one, other in itertools.combinations(moved, 2):
            for first, second in itertools.product(sorted(moved[one]), sorted(moved[other])):
                shared = min(len(first), len(second))
                if first[:shared] == second[:shared]:
                    name = ".".join(first if len(first) > len(second) else second)
                    raise RecipeError(f"dials.{one} and dials.{other} both set {name}; a setting has one dial")

    def _check_twin(self, name: str, twin: Any) -> None:
        if twin is not True and twin is not False:
            raise RecipeError(f"rows.{name}.{TWIN} is {twin!r}; it must be true or left out")
        if twin and name == self.main:
            raise RecipeError(f"rows.{name} is the main row; its twin is another row with the same settings")
        if twin and self.worlds > MOST_TWINS:
            raise RecipeError(f"worlds is {self.worlds}; a study of twins has at most {MOST_TWINS}")

    def _check_study_of_twins(self) -> None:
        """Refuses a study of twins that asks something else: its worlds are those of every such study, known before."""
        if self.claim is not None:
            raise RecipeError("a study of twins has worlds that are known before it is registered; it has no 'claim'")
        for name, hypothesis in self.hypotheses.items():
            pair = [dict(self.rows[row]) for row in self.compared(hypothesis)]
            twins = [own.pop(TWIN, False) for own in pair]
            models = [self.reward_models.get(str(own.pop("reward_model", None))) for own in pair]
            if twins[0] == twins[1] or pair[0] != pair[1] or models[0] != models[1]:
                raise RecipeError(
                    f"hypotheses.{name}: a study of twins compares a row with its twin, whose settings are the same"
                )

    def _check_levels(self, where: str, levels: Mapping[str, Any]) -> None:
        for dial, level in levels.items():
            _named(where, dial, self.dials)
            several = _several(level)
            if not several or len({*several}) < len(several):
                raise RecipeError(f"{where}.{dial} is {list(several)}; name one level, or several different ones")
            for one in several:
                _named(f"{where}.{dial}", one, self.dials[dial])

    def _check_hypothesis(self, where: str, hypothesis: Hypothesis) -> None:
        row, other = self.compared(hypothesis)
        for name, one in (("row", row), ("than", other)):
            _named(f"{where}.{name}", one, self.rows)
        if row == other:
            raise RecipeError(f"{where}: row '{hypothesis.row}' is compared with itself; name another by 'than'")
        self._check_levels(f"{where}.at", hypothesis.at)
        if hypothesis.over is not None:
            _named(f"{where}.over", hypothesis.over, self.dials)
        if not self.weighted_cells(hypothesis):
            raise RecipeError(f"{where}: no cell has both '{row}' and '{other}'")

    def _check_claim(self, claim: PaperClaim) -> None:
        """Refuses a claim whose hypotheses do not exist, are of another paper's rows or expect the contrary, and one
        without `differs` where the comparisons are not just the claim's."""
        stated = claim.stated
        for name in claim.tested_by:
            _named("claim.tested_by", name, self.hypotheses)
            hypothesis, where = self.hypotheses[name], f"claim.tested_by: hypothesis '{name}'"
            for row in self.compared(hypothesis):
                if (paper := str(self.rows[row][LIKE]).partition("/")[0]) != claim.paper:
                    raise RecipeError(
                        f"{where} compares row '{row}' of paper '{paper}'; claim '{claim.id}' is of '{claim.paper}'"
                    )
            if hypothesis.collapse and not stated.collapse:
                raise RecipeError(f"{where} has 'collapse: true', but claim '{claim.id}' is not about a collapse")
            pair = self._tested_pair(hypothesis)
            same_rows = [one for one in stated.pairs if {one.first, one.second} == {pair.first, pair.second}]
            if same_rows and not any((one.first, one.relation) == (pair.first, pair.relation) for one in same_rows):
                raise RecipeError(f"{where} expects {pair}; claim '{claim.id}' has {min(map(str, same_rows))}")
        as_stated = self.tested_as_stated(claim)
        whole = not stated.others and as_stated == stated.pairs and len(as_stated) == len(claim.tested_by)
        if claim.differs is None and not whole:
            raise RecipeError(
                f"claim.differs is missing, but the hypotheses are not just the comparisons of claim '{claim.id}' in "
                f"claims/{claim.paper}.yaml; say in 'differs' what is tested instead"
            )

    def _tested_pair(self, hypothesis: Hypothesis) -> ClaimedPair:
        """Returns the comparison of a hypothesis by the names of the paper's rows, the expected winner first."""
        names = [str(self.rows[row][LIKE]).partition("/")[2] for row in self.compared(hypothesis)]
        first, second = names if hypothesis.side == "above" else reversed(names)
        return ClaimedPair(first, second, self.metric)

    def tested_as_stated(self, claim: PaperClaim) -> frozenset[ClaimedPair]:
        """Returns the comparisons of the claims file that the named hypotheses make just so: of the paper's own rows,
        in every cell and at the end of training."""

        def plain(hypothesis: Hypothesis) -> bool:
            rows = [self.rows[row] for row in self.compared(hypothesis)]
            own = any({*row} - {*OWN_FIELDS} or "kind" in (row.get("optimiser") or {}) for row in rows)
            return not own and hypothesis.over is None and not hypothesis.at

        tested = (self.hypotheses[name] for name in claim.tested_by)
        return claim.stated.pairs & {self._tested_pair(one) for one in tested if plain(one)}

    def compared(self, hypothesis: Hypothesis) -> tuple[str, str]:
        """Returns the row of a hypothesis and the row that it is compared with."""
        return hypothesis.row, hypothesis.than or self.main

    @property
    def cells(self) -> dict[str, dict[str, str]]:
        """Returns the level of every dial of each cell, by the cell's name."""
        levels = [[(dial, level) for level in levels] for dial, levels in self.dials.items()]
        every = [dict(each) for each in itertools.product(*levels)]
        return {"-".join(cell.values()) or PLAIN: cell for cell in every}

    def rows_of(self, cell: Mapping[str, str]) -> list[str]:
        """Returns the rows that are trained in a cell."""
        return [name for name, row in self.rows.items() if _within(cell, row.get(ONLY) or {})]

    def tuning_cells(self, row: str) -> list[str]:
        """Returns the names of the cells in which a row is tuned."""
        return [n for n, c in self.cells.items() if n in (self.tuned_at or self.cells) and row in self.rows_of(c)]

    def weighted_cells(self, hypothesis: Hypothesis) -> dict[str, float]:
        """Returns the weight of the rows' difference in each cell that a hypothesis counts, by the cell's name.

        Over a dial the weights are those of the least-squares slope over levels 0, 1, 2, ...; the other dials are
        averaged over.
        """
        rows = {*self.compared(hypothesis)}
        counted = {n: c for n, c in self.cells.items() if _within(c, hypothesis.at) and rows <= {*self.rows_of(c)}}
        if hypothesis.over is None:
            return dict.fromkeys(counted, 1.0 / len(counted)) if counted else {}
        dial = hypothesis.over
        present = [level for level in self.dials[dial] if any(c[dial] == level for c in counted.values())]
        if len(present) < 2:
            return {}
        weights = _slope(present)
        counts = {level: sum(c[dial] == level for c in counted.values()) for level in present}
        return {n: weights[c[dial]] / counts[c[dial]] for n, c in counted.items()}

    @property
    def twins(self) -> bool:
        """Returns whether rows are compared with themselves; the worlds then have the seeds of twins."""
        return any(row.get(TWIN) for row in self.rows.values())

    def fixed(self, row: str) -> tuple[str, ...]:
        """Returns the settings of a row's optimiser that tuning leaves as they are."""
        return tuple(self.rows[row].get(FIXED) or ())

    def overlay(self, cell: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Returns what is laid over the scale's pages in a cell: the study's settings, then those of its levels."""
        merged: dict[str, dict[str, Any]] = {}
        for laid in (self.settings, *(self.dials[dial][level] for dial, level in cell.items())):
            for page, entries in laid.items():
                known = merged.setdefault(page, {})
                for entry, values in entries.items():
                    known[entry] = _deep(known.get(entry, {}), values)
        return merged


def _named(where: str, name: Any, known: Any) -> None:
    if name not in known:
        raise RecipeError(f"{where} names '{name}'{hint(str(name), sorted(known), more=3)}")


def _check_fixed(where: str, row: Mapping[str, Any]) -> None:
    fixed, stated = row.get(FIXED, ()), row.get("optimiser") or {}
    if not isinstance(fixed, list | tuple):
        raise RecipeError(f"{where}.{FIXED} is {fixed!r}; it must be a list of settings of the row's optimiser")
    for name in fixed:
        if name not in stated:
            raise RecipeError(f"{where}.{FIXED} names '{name}', which {where}.optimiser does not set; set it there")


def _several(level: Any) -> tuple[str, ...]:
    """Returns the levels that are named, one or several."""
    return tuple(level) if isinstance(level, list | tuple) else (level,)


def _within(cell: Mapping[str, str], levels: Mapping[str, Any]) -> bool:
    return all(cell[dial] in _several(level) for dial, level in levels.items())


def _paths(settings: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the whole name of each setting that is laid over others."""
    for name, value in settings.items():
        path = (*above, str(name))
        if isinstance(value, Mapping):
            yield from _paths(value, path)
        else:
            yield path


def _slope(levels: list[str]) -> dict[str, float]:
    """Returns the weights of the least-squares slope over levels that are one apart."""
    middle = (len(levels) - 1) / 2
    squares = math.fsum((position - middle) ** 2 for position in range(len(levels)))
    return {level: (position - middle) / squares for position, level in enumerate(levels)}


def _deep(base: Any, own: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(own, Mapping)):
        return own
    return {**base, **{name: _deep(base.get(name), value) for name, value in own.items()}}


def study_file(root: Path, name: str) -> Path:
    """Returns the file of a study, by its name or path."""
    known = {path.stem: path for path in sorted((root / FOLDER).glob("*.yaml"))}
    path = Path(name) if name.endswith(".yaml") else known.get(name)
    if path is None or not path.is_file():
        raise RecipeError(f"no study '{name}' in {FOLDER}/{hint(name, sorted(known), more=3)}")
    return path


def read_study(path: Path) -> StudySpec:
    """Parses a study's file."""
    return typed(StudySpec, read_settings(path), str(path))
