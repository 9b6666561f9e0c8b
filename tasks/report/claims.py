"""Claims of a paper, as comparisons of measured numbers, and their verdicts.

1. The claims of a paper are data: `rlhf_core/published/claims/<paper>.yaml`, parsed by `claims_of`.
2. A claim has parts. Each part is of a kind of `claim_kinds` and makes one or several comparisons.
3. A comparison is an effect over worlds (`significance`), and the verdict is by
   `rlhf_core.evaluation.verdicts.claim_verdict`: confirmed if each comparison is at .05, contradicted if the contrary
   of one is, corrected for the comparisons of the claim (Holm).
4. A part of side "beside" says that two numbers are alike: the 90 % interval of their difference over worlds is within
   the margin (two one-sided t-tests at .05).
5. The comparisons of a claim are over the same worlds. Where they are not, the claim is undecided, and the worlds that
   only some of them have are named.
6. A comparison with a broken row, below its own SFT model even at its best evaluation, confirms no claim, except one
   whose point is the collapse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.verdicts import ClaimPart, ClaimWord, claim_verdict
from rlhf_core.evaluation.worlds import ALPHA
from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import metrics_of_paper, row_names
from rlhf_core.typed import typed
from tasks.params.pages import read_settings
from tasks.report.claim_kinds import KINDS, METRIC_FIELDS, ROW_FIELDS, ClaimComparison, Selected, Wins
from tasks.report.claim_numbers import DERIVED, ClaimsFile, Numbers, has_metric
from tasks.report.figure_data import FigureData
from tasks.report.matches import OTHERS
from tasks.report.outputs import ResultTree
from tasks.report.significance import EXPLORATORY, Comparison, compare, compare_constant, exploratory
from tasks.report.win_rates import decided_in

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
        collapse: the claim's point is that rows collapse, so that a win over a broken row counts.
    """

    id: str
    says: str
    source: str
    parts: tuple[ClaimStatement, ...]
    collapse: bool = False


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
    # words: titles of metrics; one may be of a family that has a metric for each pair of rows, such as `greedy_wins`
    families = {name: f"{name}/{OTHERS}" for name in file.words}
    _check_metrics([("words", name) for name, family in families.items() if not _has(paper, family)], paper, where)
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


def _compared(part: ClaimComparison) -> Comparison | None:
    if isinstance(part.other, float):
        return compare_constant(part.left, part.values, part.other)
    return compare(part.left, part.values, part.right, part.other)


def _means(part: ClaimComparison) -> list[float]:
    """Returns both sides' means over the worlds that both have."""
    other = part.other
    if isinstance(other, float):
        return [sum(part.values.values()) / len(part.values), other]
    seeds = sorted(part.values.keys() & other.keys())
    return [sum(values[seed] for seed in seeds) / len(seeds) for values in (part.values, other)]


def _part_word(part: ClaimPart, p_contradicted: float | None) -> ClaimWord:
    """Returns the verdict of one part; its contrary's p is corrected over the parts of the claim."""
    if part.effect is None:
        return "not run"
    if p_contradicted is not None and p_contradicted < ALPHA:
        return "contradicted"
    return "confirmed" if part.p_holds is not None and part.p_holds < ALPHA else "undecided"


def judged(claim: Claim, numbers: Numbers) -> dict[str, Any]:
    """Returns a claim as plain data, with the effect, p-value and verdict of each comparison."""
    made = [one for each in claim.parts for one in KINDS[each.kind].comparisons(each.fields, numbers)]
    found = [_compared(one) for one in made]
    parts = [
        ClaimPart(each.effect if each else None, one.side, one.margin if one.side == "beside" else None)
        for one, each in zip(made, found, strict=True)
    ]
    verdict = claim_verdict(parts)
    compared = {row for one in made if one.side != "beside" for row in one.rows}
    broken = sorted(compared & numbers.broken) if verdict.word == "confirmed" and not claim.collapse else []
    uneven = _uneven_worlds([each for each in found if each is not None])
    word: ClaimWord = "undecided" if broken or (uneven and verdict.word != "not run") else verdict.word
    shown: list[dict[str, Any]] = []
    for one, part, each, p in zip(made, parts, found, verdict.p_contradicted, strict=True):
        row: dict[str, Any] = {"left": one.left, "side": one.side, "right": one.right, "verdict": _part_word(part, p)}
        if each is not None:
            interval = each.effect.interval()
            row |= {"values": _means(one), "constant": isinstance(one.other, float)}
            row |= {"difference": each.effect.estimate, "worlds": each.effect.worlds, "missing": each.missing}
            row |= {"interval": [interval.lower, interval.upper] if interval else None, "p": part.p_holds}
            row |= {"p_contradicted": p, "smallest_visible": each.effect.smallest_visible()}
        shown.append(row)
    line = {"id": claim.id, "text": claim.says, "where": claim.source, "verdict": word, "parts": shown}
    return line | ({"broken": broken} if broken else {}) | ({"uneven": uneven} if uneven else {})


def _uneven_worlds(compared: Sequence[Comparison]) -> str | None:
    """Returns the worlds that only some comparisons of a claim are over, in words; None if all are over the same."""
    if not compared or len({one.worlds for one in compared}) == 1:
        return None
    every = frozenset.union(*(one.worlds for one in compared))
    shared = frozenset.intersection(*(one.worlds for one in compared))
    return f"its comparisons are over different worlds: {', '.join(map(str, sorted(every - shared)))} only in some"


def paper_claims(paper: str, tree: ResultTree) -> FigureData:
    """Returns the figure of what a paper says and whether it was borne out."""
    return claims_figure(claims_of(paper), tree)


def claims_figure(made: PaperClaims, tree: ResultTree) -> FigureData:
    """Returns the figure of a file's claims with their verdicts."""
    file = made.file
    said = file.numbers.format(verdicts=decided_in(tree, made.paper))
    alike = f"{file.alike.format(margin=f'{file.margin:g}')} " if file.alike else ""
    figure = FigureData(
        key="claims",
        title="What the paper says",
        caption=f"{said} A sign between two numbers says where the paper has them: above (›), below (‹) or "
        f"alike (≈). Each comparison is a t-test over worlds, and one world decides nothing. A claim is confirmed when "
        "each of its comparisons is at .05, and contradicted when the contrary of one is, corrected for their number "
        f"(Holm). A claim whose comparisons are over different worlds is undecided. {alike}A win over a broken row, "
        "which is below its own SFT model even at its best evaluation, confirms nothing, unless the collapse is the "
        "claim." + (f" These claims are {EXPLORATORY}." if exploratory(tree.seeds) else ""),
        kind="claims",
    )
    numbers = Numbers(made.paper, file, made.rows, tree)
    rows = [judged(claim, numbers) for claim in made.claims]
    if any(row["verdict"] != "not run" for row in rows):
        figure.blocks = [{"rows": rows}]
    else:
        figure.missing = [file.needs]
    return figure
