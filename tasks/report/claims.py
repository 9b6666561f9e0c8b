"""Claims of a paper, as comparisons of measured numbers, and their verdicts.

1. The claims of a paper are data: `rlhf_core/published/claims/<paper>.yaml`, parsed by `claims_of`.
2. A claim has parts, as its file says it. Each part is of a kind of `claim_kinds` and makes one or several comparisons.
3. A comparison is an effect over worlds (`significance`), and the verdict of the claim is by
   `rlhf_core.evaluation.verdicts.claim_verdict`: confirmed if each comparison is significant at .05, contradicted if
   the contrary of one is, corrected for the comparisons of the claim (Holm). A comparison has a verdict of its own, by
   the same p-values; it is not changed by 5 and 6.
4. A comparison of side "beside" (kinds `within` and `ties`) says that two numbers are alike: the 90 % interval of their
   difference over worlds is within the margin (two one-sided t-tests at .05).
5. The comparisons of a claim are over the same worlds. Where they are not, the claim is undecided, and the worlds that
   only some of them have are named.
6. A comparison with a broken row, below its own SFT model even at its best evaluation, confirms no claim, except one
   with the flag `collapse`, whose point is that rows collapse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.verdicts import ClaimWord, TestedComparison, claim_verdict
from rlhf_core.evaluation.worlds import ALPHA
from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import row_names
from rlhf_core.typed import typed
from tasks.params.pages import read_settings
from tasks.report.claim_kinds import KINDS, ROW_FIELDS, ClaimComparison, ClaimsFile, Numbers
from tasks.report.figure_data import FigureData
from tasks.report.numbers import win_rate_source
from tasks.report.outputs import ResultTree
from tasks.report.paper_tables import EXPLORATORY
from tasks.report.significance import Comparison, compare, compare_constant, exploratory

FOLDER = printed_tables.FOLDER / "claims"


@dataclass(frozen=True)
class ClaimPart:
    """One statement of a claim: a kind of `KINDS` and its fields."""

    kind: str
    fields: Any

    @property
    def rows(self) -> list[str]:
        """Returns the rows that it names."""
        named = (getattr(self.fields, name, None) for name in ROW_FIELDS)
        several = ((one,) if isinstance(one, str) else one for one in named)
        return [row for one in several if isinstance(one, tuple) for row in one]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper; it is true when all its parts are.

    Attributes:
        says: the sentence, in this project's words.
        source: the paper's section, table or figure.
        collapse: whether the claim's point is that rows collapse, so that a win over a broken row counts.
    """

    id: str
    says: str
    source: str
    parts: tuple[ClaimPart, ...]
    collapse: bool = False


@dataclass(frozen=True)
class PaperClaims:
    """The claims of a paper in the order of its file, and the settings that its claims share."""

    paper: str
    file: ClaimsFile
    claims: tuple[Claim, ...]

    @property
    def rows(self) -> list[str]:
        """Returns the rows named by the claims and by the file's groups of rivals, each once."""
        named = {row for claim in self.claims for part in claim.parts for row in part.rows}
        return sorted({*named, *(row for rows in self.file.rival_groups.values() for row in rows)})


@cache
def claims_of(paper: str) -> PaperClaims:
    """Returns the claims of one of the five papers."""
    return read_claims(FOLDER / f"{paper}.yaml", paper)


def read_claims(path: Path, paper: str) -> PaperClaims:
    """Parses a claims file.

    Raises:
        RecipeError: an unknown field, kind or row, with the nearest known one.
    """
    where = f"claims/{path.name}"
    file, found = typed(ClaimsFile, read_settings(path), where), []
    for name, raw in file.claims.items():
        place = f"{where}: claim '{name}'"
        parts = raw.pop("parts", None) if isinstance(raw, dict) else None
        if not isinstance(parts, list) or not parts:
            raise RecipeError(f"{place}: 'parts' is missing; list the comparisons that the claim is made of")
        stated = tuple(_part(one, paper, f"{place}, part {number}") for number, one in enumerate(parts, 1))
        found.append(typed(Claim, {"id": name, **raw, "parts": stated}, place))
    return PaperClaims(paper, file, tuple(found))


def _part(raw: Any, paper: str, where: str) -> ClaimPart:
    """Parses one part and looks up its rows."""
    kind = str(raw.get("kind")) if isinstance(raw, dict) else "None"
    if kind not in KINDS:
        raise RecipeError(f"{where}: kind is '{kind}', which is not a kind{printed_tables.suggestion(kind, KINDS)}")
    cls, known = KINDS[kind].fields, row_names(paper)
    lists = [one.name for one in fields(cls) if "tuple" in str(one.type)]
    values = {name: [v] if name in lists and isinstance(v, str) else v for name, v in raw.items() if name != "kind"}
    part = ClaimPart(kind, typed(cls, values, where))
    for row in part.rows:
        if row not in known:
            hint = printed_tables.suggestion(row, known)
            raise RecipeError(f"{where}: '{row}' is not a row of row_map/{paper}.yaml{hint}")
    return part


def _measured(comparison: ClaimComparison) -> Comparison | None:
    """Returns the effect of a comparison over worlds; None where a row has no results."""
    if isinstance(comparison.other, float):
        return compare_constant(comparison.values, comparison.other)
    return compare(comparison.left, comparison.values, comparison.right, comparison.other)


def _means(comparison: ClaimComparison) -> list[float]:
    """Returns the means of both numbers over the worlds that both have."""
    values, other = comparison.values, comparison.other
    if isinstance(other, float):
        return [sum(values.values()) / len(values), other]
    seeds = sorted(values.keys() & other.keys())
    return [sum(by_seed[seed] for seed in seeds) / len(seeds) for by_seed in (values, other)]


def _comparison_verdict(tested: TestedComparison, p_contradicted: float | None) -> ClaimWord:
    """Returns the verdict of one comparison.

    Args:
        p_contradicted: of its contrary, corrected over the comparisons of the claim.
    """
    if tested.effect is None:
        return "not run"
    if p_contradicted is not None and p_contradicted < ALPHA:
        return "contradicted"
    return "confirmed" if tested.p_holds is not None and tested.p_holds < ALPHA else "undecided"


def with_verdicts(claim: Claim, numbers: Numbers) -> dict[str, Any]:
    """Returns a claim as plain data, with the effect, p-value and verdict of each comparison."""
    comparisons = [one for part in claim.parts for one in part.fields.comparisons(numbers, KINDS[part.kind].side)]
    measured = [_measured(comparison) for comparison in comparisons]
    tested = [
        TestedComparison(
            effect=None if result is None else result.effect,
            side=comparison.side,
            margin=comparison.margin if comparison.side == "beside" else None,
        )
        for comparison, result in zip(comparisons, measured, strict=True)
    ]
    verdict = claim_verdict(tested)
    compared = {row for one in comparisons if one.side != "beside" for row in one.rows}
    broken = sorted(compared & numbers.broken) if verdict.word == "confirmed" and not claim.collapse else []
    uneven = _uneven_worlds([result for result in measured if result is not None])
    word: ClaimWord = "undecided" if broken or (uneven and verdict.word != "not run") else verdict.word
    lines: list[dict[str, Any]] = []
    for comparison, test, result, p in zip(comparisons, tested, measured, verdict.p_contradicted, strict=True):
        line: dict[str, Any] = {"left": comparison.left, "side": comparison.side, "right": comparison.right}
        line["verdict"] = _comparison_verdict(test, p)
        if result is not None:
            effect, interval = result.effect, result.effect.interval()
            line |= {"values": _means(comparison), "constant": isinstance(comparison.other, float)}
            line |= {"difference": effect.estimate, "worlds": effect.worlds, "missing": result.missing}
            line |= {"interval": [interval.lower, interval.upper] if interval else None, "p": test.p_holds}
            line |= {"p_contradicted": p, "smallest_visible": effect.smallest_visible()}
        lines.append(line)
    data = {"id": claim.id, "text": claim.says, "where": claim.source, "verdict": word, "parts": lines}
    return data | ({"broken": broken} if broken else {}) | ({"uneven": uneven} if uneven else {})


def _uneven_worlds(compared: Sequence[Comparison]) -> str | None:
    """Returns the worlds that only some comparisons of a claim are over, in words; None if all are over the same."""
    if not compared or len({one.worlds for one in compared}) == 1:
        return None
    every = frozenset.union(*(one.worlds for one in compared))
    shared = frozenset.intersection(*(one.worlds for one in compared))
    return f"its comparisons are over different worlds: {', '.join(map(str, sorted(every - shared)))} only in some"


def paper_claims_figure(paper: str, tree: ResultTree) -> FigureData:
    """Returns the figure of a paper's claims with their verdicts."""
    return claims_figure(claims_of(paper), tree)


def claims_figure(paper: PaperClaims, tree: ResultTree) -> FigureData:
    """Returns the figure of a file's claims with their verdicts."""
    file = paper.file
    numbers_sentence = file.numbers_sentence.format(verdicts=win_rate_source(tree, paper.paper))
    alike_sentence = f"{file.alike_sentence.format(margin=f'{file.margin:g}')} " if file.alike_sentence else ""
    figure = FigureData(
        key="claims",
        title="What the paper says",
        caption=f"{numbers_sentence} A sign between two numbers says where the paper has them: above (›), below (‹) or "
        f"alike (≈). Each comparison is a t-test over worlds, and one world decides nothing. A claim is confirmed when "
        "each of its comparisons is at .05, and contradicted when the contrary of one is, corrected for their number "
        f"(Holm). A claim whose comparisons are over different worlds is undecided. {alike_sentence}A win over a "
        "broken row, which is below its own SFT model even at its best evaluation, confirms nothing, unless the "
        "collapse is the claim." + (f" These claims are {EXPLORATORY}." if exploratory(tree.seeds) else ""),
        kind="claims",
    )
    numbers = Numbers(paper.paper, file, paper.rows, tree)
    claims = [with_verdicts(claim, numbers) for claim in paper.claims]
    if any(claim["verdict"] != "not run" for claim in claims):
        figure.blocks = [{"rows": claims}]
    else:
        figure.missing = [file.needs]
    return figure
