"""The claim of a paper that a study is about, and the hypotheses that test it.

    claim:
      paper: segment
      id: best
      tested_by: [segment-beats-bandit, segment-beats-token]
      differs: True win rates over the SFT model take the place of AlpacaEval's; sentence rewards are not a row.

A study counts for a claim of `rlhf_core/published/claims/` only by hypotheses that it names. Their rows are those of
the claim's paper. Where they are not just the comparisons that the claims file lists, `differs` says so beside the
count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.errors import RecipeError, hint
from rlhf_core.published.paper_claims import ClaimedPair, StatedClaim, stated_claims
from rlhf_core.published.printed_tables import PAPERS
from rlhf_core.typed import Checked, each_once, one_of

#: Fields of a study's row with which it is still the paper's row: tuning sets the optimiser's.
OWN_FIELDS = ("like", "only", "optimiser")


#: A study (`tasks.params.studies.StudySpec`, which reads this module) and one of its hypotheses.
Study = Any
Hypothesis = Any


@dataclass(frozen=True)
class PaperClaim(Checked):
    """The sentence of a paper that a study is about.

    Args:
        paper: its short name.
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


def check_claim(claim: PaperClaim, spec: Study) -> None:
    """Refuses a claim that its study's hypotheses do not test.

    Raises:
        RecipeError: a hypothesis that does not exist, is of another paper's rows, or expects the contrary of the claim;
            or `differs` is missing where the comparisons are not just the claim's.
    """
    stated = claim.stated
    for name in claim.tested_by:
        if name not in spec.hypotheses:
            raise RecipeError(f"claim.tested_by names '{name}'{hint(name, spec.hypotheses, more=3)}")
        hypothesis, where = spec.hypotheses[name], f"claim.tested_by: hypothesis '{name}'"
        for row in (hypothesis.row, hypothesis.than or spec.main):
            if (paper := str(spec.rows[row]["like"]).partition("/")[0]) != claim.paper:
                raise RecipeError(
                    f"{where} compares row '{row}' of paper '{paper}'; claim '{claim.id}' is of '{claim.paper}'"
                )
        if hypothesis.collapse and not stated.collapse:
            raise RecipeError(f"{where} has 'collapse: true', but claim '{claim.id}' is not about a collapse")
        pair = tested_pair(spec, hypothesis)
        same_rows = [one for one in stated.pairs if {one.first, one.second} == {pair.first, pair.second}]
        if same_rows and not any((one.first, one.relation) == (pair.first, pair.relation) for one in same_rows):
            raise RecipeError(f"{where} expects {pair}; claim '{claim.id}' has {min(map(str, same_rows))}")
    if claim.differs is not None:
        return
    as_stated = tested_as_stated(claim, spec)
    if stated.others or as_stated != stated.pairs or len(as_stated) < len(claim.tested_by):
        raise RecipeError(
            f"claim.differs is missing, but the hypotheses are not just the comparisons of claim '{claim.id}' in "
            f"claims/{claim.paper}.yaml; say in 'differs' what is tested instead"
        )


def tested_pair(spec: Study, hypothesis: Hypothesis) -> ClaimedPair:
    """Returns the comparison of a hypothesis by the names of the paper's rows, the expected winner first."""
    row, other = (
        str(spec.rows[name]["like"]).partition("/")[2] for name in (hypothesis.row, hypothesis.than or spec.main)
    )
    first, second = (row, other) if hypothesis.side == "above" else (other, row)
    return ClaimedPair(first, second, spec.metric)


def tested_as_stated(claim: PaperClaim, spec: Study) -> frozenset[ClaimedPair]:
    """Returns the comparisons of the claims file that the named hypotheses make just so: of the paper's own rows, in
    every cell and at the end of training."""

    def plain(hypothesis: Hypothesis) -> bool:
        rows = [spec.rows[row] for row in (hypothesis.row, hypothesis.than or spec.main)]
        own = any({*row} - {*OWN_FIELDS} or "kind" in (row.get("optimiser") or {}) for row in rows)
        return not own and hypothesis.over is None and not hypothesis.at

    tested = (spec.hypotheses[name] for name in claim.tested_by)
    return claim.stated.pairs & {tested_pair(spec, one) for one in tested if plain(one)}
