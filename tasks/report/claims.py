"""Claims of a paper, as comparisons of measured numbers, and their verdicts.

1. The claims of a paper are data: `rlhf_core/published/claims/<paper>.yaml`, parsed by `claims_of`.
2. A claim has parts. Each part is of a kind of `claim_kinds` and makes one or several comparisons.
3. A comparison is tested like a cell of a table (`significance`): over prompts if both numbers have the same prompts,
   else over seeds. At least two seeds must agree in direction. p-values are corrected (Holm) for the comparisons of a
   claim.
4. A part of side "beside" says that two numbers are alike: the 90 % interval of their difference over seeds is within
   the margin (two one-sided t-tests at .05).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from scipy import stats

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.statistics import mean_and_standard_error
from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import metrics_of_paper, row_names
from rlhf_core.typed import typed
from tasks.params.pages import read_settings
from tasks.report.claim_kinds import KINDS, METRIC_FIELDS, ROW_FIELDS, ClaimComparison, Selected, Wins
from tasks.report.claim_numbers import DERIVED, ClaimsFile, Numbers, has_metric
from tasks.report.figure_data import FigureData
from tasks.report.matches import OTHERS
from tasks.report.measurements import BySeed, Measurement
from tasks.report.outputs import ResultTree
from tasks.report.significance import Comparison, compare, corrected_p

Verdict = Literal["confirmed", "contradicted", "undecided", "not run"]
LEVEL = 0.05
FOLDER = printed_tables.FOLDER / "claims"


@dataclass(frozen=True)
class ClaimStatement:
    """One statement of a claim: a kind of `KINDS` and its fields."""

    kind: str
    fields: Any


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper; it is true when all its parts are.

    Attributes:
        says: the sentence, in this project's words.
        source: the paper's section, table or figure.
    """

    id: str
    says: str
    source: str
    parts: tuple[ClaimStatement, ...]


@dataclass(frozen=True)
class PaperClaims:
    """The claims of a paper in the order of its file, and the settings that its claims share."""

    paper: str
    file: ClaimsFile
    claims: tuple[Claim, ...]

    @property
    def rows(self) -> list[str]:
        """Returns the rows named by the claims and by the file's tasks, each once."""
        named = {row for claim in self.claims for part in claim.parts for _, row in _named(part.fields, ROW_FIELDS)}
        return sorted({*named, *(row for rows in self.file.tasks.values() for row in rows)})


def _named(part: Any, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (field, text) for every text in the named fields of a part."""
    for name in names:
        value = getattr(part, name, None)
        texts = (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ()
        yield from ((name, str(text)) for text in texts)


@cache
def claims_of(paper: str) -> PaperClaims:
    """Returns the claims of one of the five papers."""
    return read_claims(FOLDER / f"{paper}.yaml", paper)


def read_claims(path: Path, paper: str) -> PaperClaims:
    """Parses a claims file.

    Raises:
        RecipeError: an unknown field, kind, row or metric, with the nearest known one.
    """
    where = f"claims/{path.name}"
    file = typed(ClaimsFile, read_settings(path), where)
    members = [("tasks", row) for rows in file.tasks.values() for row in rows]
    _check_rows([*(("starts_from", name) for name in file.starts_from.values()), *members], paper, where)
    wanted = [(name, f"{name}/{OTHERS}") for name in file.words]
    _check_metrics([("words", name) for name, longer in wanted if not _has(paper, longer)], paper, where)
    _check_metrics([("metric", file.metric)], paper, where)
    found = []
    for name, raw in file.claims.items():
        place = f"{where}: claim '{name}'"
        parts = raw.pop("parts", None) if isinstance(raw, dict) else None
        if not isinstance(parts, list) or not parts:
            raise RecipeError(f"{place}: 'parts' is missing; list the comparisons that the claim is made of")
        made = tuple(_part(one, paper, file, f"{place}, part {number}") for number, one in enumerate(parts, 1))
        found.append(typed(Claim, {"id": name, **raw, "parts": made}, place))
    return PaperClaims(paper, file, tuple(found))


def _has(paper: str, metric: str) -> bool:
    return has_metric(paper, metric, row_names(paper))


def _check_rows(named: Iterable[tuple[str, str]], paper: str, where: str) -> None:
    """Refuses names of (field, row) that the paper's row map does not have."""
    known = row_names(paper)
    for name, row in named:
        if row not in known:
            raise RecipeError(
                f"{where}: {name}: '{row}' is not a row of the row map{printed_tables.suggestion(row, known)}"
            )


def _check_metrics(named: Iterable[tuple[str, str]], paper: str, where: str) -> None:
    """Refuses names of (field, metric) that neither the row map has nor a function derives."""
    for name, metric in named:
        if not _has(paper, metric):
            hint = printed_tables.suggestion(metric, [*metrics_of_paper(paper), *(f"{of}/..." for of in DERIVED)])
            raise RecipeError(f"{where}: {name}: '{metric}' is not a metric of the row map{hint}")


def _part(raw: Any, paper: str, file: ClaimsFile, where: str) -> ClaimStatement:
    """Parses one part and looks up its rows and metrics."""
    kind = str(raw.get("kind")) if isinstance(raw, dict) else "None"
    if kind not in KINDS:
        raise RecipeError(f"{where}: kind is '{kind}', which is not a kind{printed_tables.suggestion(kind, KINDS)}")
    cls = KINDS[kind].fields
    lists = [one.name for one in fields(cls) if "tuple" in str(one.type)]
    values = {name: [v] if name in lists and isinstance(v, str) else v for name, v in raw.items() if name != "kind"}
    made = typed(cls, values, where)
    _check_rows(_named(made, ROW_FIELDS), paper, where)
    metrics = _named(made, METRIC_FIELDS)
    if isinstance(made, Wins):
        metrics = (("by", f"wins/{made.by}/{other}") for other in made.over)
    elif isinstance(made, Selected):
        metrics = iter([("metric", f"{made.metric}/{made.aspect}")])
    _check_metrics(metrics, paper, where)
    if kind in ("within", "ties") and not (file.margin if made.margin is None else made.margin) > 0:
        raise RecipeError(f"{where}: kind '{kind}' needs a margin; set 'margin' to a number above 0")
    return ClaimStatement(kind, made)


def _constant(value: float, like: BySeed) -> BySeed:
    """Returns a constant win rate in percent as a measurement over the prompts of another measurement."""
    return {seed: Measurement(value, dict.fromkeys(own.prompts, value / 100)) for seed, own in like.items()}


def _beside(left: BySeed, right: BySeed, margin: float) -> bool | None:
    """Returns whether the 90 % interval of the difference over seeds is within the margin; None with one seed."""
    seeds = sorted(left.keys() & right.keys())
    if len(seeds) < 2:
        return None
    found = mean_and_standard_error([left[seed].value - right[seed].value for seed in seeds])
    half = float(stats.t.ppf(1 - LEVEL, len(seeds) - 1)) * found.standard_error
    return abs(found.mean) + half < margin


def _verdict(part: ClaimComparison, found: Comparison, corrected: float | None, beside: bool | None) -> Verdict:
    significant = found.significant(corrected)
    if part.side == "beside":
        if beside:
            return "confirmed"
        return "contradicted" if significant and abs(found.difference) > part.margin else "undecided"
    if not significant:
        return "undecided"
    return "confirmed" if (found.difference > 0) == (part.side == "above") else "contradicted"


def claim_verdict(parts: Sequence[Verdict]) -> Verdict:
    """Returns 'contradicted' if any part is, 'confirmed' if all parts are, 'not run' if no part was measured."""
    if all(part == "not run" for part in parts):
        return "not run"
    if "contradicted" in parts:
        return "contradicted"
    return "confirmed" if all(part == "confirmed" for part in parts) else "undecided"


def _mean(values: BySeed, seeds: Sequence[int]) -> float:
    return sum(values[seed].value for seed in seeds) / len(seeds)


def judged(claim: Claim, numbers: Numbers) -> dict[str, Any]:
    """Returns a claim as plain data, with the numbers, p-value and verdict of each comparison."""
    shown: list[dict[str, Any]] = []
    tested: list[tuple[ClaimComparison, Comparison, bool | None, dict[str, Any]]] = []
    for part in (one for each in claim.parts for one in KINDS[each.kind].comparisons(each.fields, numbers)):
        constant = isinstance(part.other, float)
        right = _constant(part.other, part.values) if isinstance(part.other, float) else part.other
        row: dict[str, Any] = {"left": part.left, "side": part.side, "right": part.right, "verdict": "not run"}
        found = compare(part.values, right)
        if found is not None:
            seeds = sorted(part.values.keys() & right.keys())
            row |= {"values": [_mean(part.values, seeds), _mean(right, seeds)]}
            row |= {"seeds": len(seeds), "constant": constant}
            beside = _beside(part.values, right, part.margin) if part.side == "beside" else None
            tested.append((part, found, beside, row))
        shown.append(row)
    corrections = corrected_p([found for _, found, _, _ in tested])
    for (part, found, beside, row), corrected in zip(tested, corrections, strict=True):
        row |= {"p": corrected, "verdict": _verdict(part, found, corrected, beside)}
    verdict = claim_verdict([row["verdict"] for row in shown])
    return {"id": claim.id, "text": claim.says, "where": claim.source, "verdict": verdict, "parts": shown}


def paper_claims(paper: str, tree: ResultTree) -> FigureData:
    """Returns the figure of what a paper says and whether it was borne out."""
    return claims_figure(claims_of(paper), tree)


def claims_figure(made: PaperClaims, tree: ResultTree) -> FigureData:
    """Returns the figure of a file's claims with their verdicts."""
    file = made.file
    alike = f"{file.alike.format(margin=f'{file.margin:g}')} " if file.alike else ""
    figure = FigureData(
        key="claims",
        title="What the paper says",
        caption=f"{file.numbers} A sign between two numbers says where the paper has them: above (›), below (‹) or "
        f"alike (≈). A claim is confirmed when all its comparisons are and contradicted when one is. {alike}p-values "
        "are corrected for the comparisons of a claim (Holm), and one seed decides nothing.",
        kind="claims",
    )
    numbers = Numbers(made.paper, file, made.rows, tree)
    rows = [judged(claim, numbers) for claim in made.claims]
    if any(row["verdict"] != "not run" for row in rows):
        figure.blocks = [{"rows": rows}]
    else:
        figure.missing = [file.needs]
    return figure
