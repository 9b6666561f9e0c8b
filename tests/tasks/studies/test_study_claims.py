"""A study counts for a claim only by hypotheses that it names, of rows and with words of the claims file."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.published.paper_claims import ClaimedPair, StatedClaim, claims_of, stated_claims
from rlhf_core.published.printed_tables import PAPERS
from rlhf_core.typed import typed
from tasks.params import studies
from tasks.params.studies import StudySpec
from tasks.report.claims import claimed_runs, comparisons
from tasks.report.outputs import ResultTree
from tasks.studies.verdicts import StudiedClaim, StudyState, claim_word, load_study, studied_claim
from tests.tasks.studies.synthetic_study import STUDY, commit_study, write_worlds
from tests.tasks.studies.synthetic_study import Numbers as ByCell

ROOT = Path(__file__).resolve().parents[3]
CLAIM = STUDY["claim"]


def study(claim: dict[str, Any], **changes: Any) -> StudySpec:
    spec: StudySpec = typed(StudySpec, {**deepcopy(STUDY), **changes, "claim": claim}, "studies/x.yaml")
    return spec


def hypotheses(**changes: Any) -> dict[str, Any]:
    """The study's hypotheses, `beats` with other fields."""
    return {**STUDY["hypotheses"], "beats": {**STUDY["hypotheses"]["beats"], **changes}}


@pytest.mark.parametrize(
    ("claim", "changes", "says"),
    [
        ({"tested_by": []}, {}, "tested_by is []; it must name at least 1, each once"),
        ({"tested_by": ["beats", "beats"]}, {}, "each once"),
        ({"tested_by": ["beets"]}, {}, "claim.tested_by names 'beets'; did you mean 'beats'"),
        ({"paper": "par", "id": "highest"}, {}, "row 'segment' of paper 'segment'; claim 'highest' is of 'par'"),
        ({"differs": None}, {}, "claim.differs is missing, but the hypotheses are not just"),
        ({}, {"hypotheses": hypotheses(side="below")}, "'beats' expects 'bandit' above 'segment' in win_rate_vs_sft"),
        ({}, {"hypotheses": hypotheses(collapse=True)}, "claim 'best' is not about a collapse"),
    ],
)  # fmt: skip
def test_a_claim_that_no_hypothesis_tests_is_refused(claim: dict[str, Any], changes: dict[str, Any], says: str) -> None:
    """It used to be enough to name a claim: the primary hypothesis counted, whatever it said."""
    with pytest.raises(RecipeError, match=r"studies/x\.yaml") as refused:
        study({**CLAIM, **claim}, **changes)
    assert says in str(refused.value)


def rows(segment: dict[str, Any]) -> dict[str, Any]:
    """The study's rows, one of them another."""
    return {"rows": {**STUDY["rows"], "segment": segment}}


@pytest.fixture
def one_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paper whose claim is that segment is above bandit in the true win rate."""
    pair = ClaimedPair("segment", "bandit", "win_rate_vs_sft")
    monkeypatch.setattr(
        studies, "stated_claims", lambda paper: {"best": StatedClaim("s", "t", False, frozenset([pair]))}
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"hypotheses": hypotheses(at={"truth": "mean"})},
        {"hypotheses": hypotheses(over="length")},
        {"metric": "true_reward"},
        rows({"like": "segment/segment", "shaping": []}),
        rows({"like": "segment/segment", "optimiser": {"kind": "grpo"}}),
        rows({"like": "segment/ngram-5"}),
    ],
)
@pytest.mark.usefixtures("one_pair")
def test_what_is_tested_otherwise_needs_words(changes: dict[str, Any]) -> None:
    plain = {name: value for name, value in CLAIM.items() if name != "differs"}
    with pytest.raises(RecipeError, match="say in 'differs' what is tested instead"):
        study(plain, **changes)
    assert study({**plain, "differs": "So it is"}, **changes).claim is not None


@pytest.mark.usefixtures("one_pair")
def test_the_comparison_of_the_claims_file_needs_no_more_words() -> None:
    tuned = {"like": "segment/segment", "optimiser": {"actor_lr": 0.001, "kl_coef": 0.1}}
    plain = {name: value for name, value in CLAIM.items() if name != "differs"}
    spec = study(plain, **rows(tuned))
    assert spec.claim is not None
    assert len(spec.tested_as_stated(spec.claim)) == 1


@pytest.mark.parametrize("paper", PAPERS)
def test_the_pairs_of_a_claim_are_those_that_the_report_compares(paper: str, tmp_path: Path) -> None:
    file = claims_of(paper)
    runs = claimed_runs(paper, file, ResultTree(tmp_path, (0,)))
    for name, claim in file.claims.items():
        parts = [part for part in claim.parts if part.kind != "frontier" and not part.than_metric]
        found = [one for part in parts for one in comparisons(part, file, runs)]
        compared = [one for one in found if one.rows]
        expected = {
            (*sorted(one.rows), "alike")
            if one.side == "beside"
            else (*(one.rows if one.side == "above" else one.rows[::-1]), "above")
            for one in compared
        }
        stated = stated_claims(paper)[name]
        assert {(pair.first, pair.second, pair.relation) for pair in stated.pairs} == expected, name
        assert (stated.says, stated.source, stated.collapse) == (claim.says, claim.source, claim.collapse)


def state(root: Path, numbers: ByCell, **changes: Any) -> StudyState:
    write_worlds(root, commit_study(root, {**STUDY, **changes}), numbers)
    return load_study(root, root / "studies" / "credit.yaml")


NOISE = (0.0, 1.0, -1.0, 0.5)


@pytest.mark.parametrize(("token", "word"), [(-6.0, "confirmed"), (0.0, "undecided"), (26.0, "contradicted")])
def test_a_claim_of_several_hypotheses_holds_if_all_of_them_do(tmp_path: Path, token: float, word: str) -> None:
    """Segment is above the bandit by 6 and, in half of the cells, above token by 6 less `token`."""
    gains = {"bandit": 0.0, "segment": 6.0, "token": 6.0 + token}

    def numbers(index: int, cell: str, row: str) -> float:
        return 50 + gains[row] + (NOISE[index] * (1 + len(row) / 10) if row != "bandit" else 0)

    tested = {**CLAIM, "tested_by": ["beats", "token"]}
    by_name = STUDY["hypotheses"]
    found = studied_claim(
        state(tmp_path, numbers, claim=tested, hypotheses={n: by_name[n] for n in ("beats", "token")})
    )
    assert found is not None
    assert claim_word([found]) == word


def test_the_loss_of_a_broken_row_does_not_contradict_the_claim(tmp_path: Path) -> None:
    """Tuning broke the row that the claim favours, so that its loss says nothing of the claim."""
    beats = {"beats": STUDY["hypotheses"]["beats"]}
    found = state(tmp_path, lambda i, c, r: 50.0 + (9.0 + NOISE[i] if r == "bandit" else 0.0), hypotheses=beats)
    told = studied_claim(found)
    assert told is not None
    assert claim_word([told]) == "contradicted"
    findings = tuple(replace(one, word="broken") if one.word == "contradicted" else one for one in found.findings)
    broken = studied_claim(replace(found, findings=findings))
    assert broken is not None
    assert claim_word([broken]) == "undecided"


HOLDS = StudiedClaim(0.02, 1.0, broken=False, equivalent=False)
FAILS = StudiedClaim(1.0, 0.02, broken=False, equivalent=False)
NOTHING = StudiedClaim(0.6, 1.0, broken=False, equivalent=False)


@pytest.mark.parametrize(
    ("studies", "word"),
    [
        ([None], "open"),
        ([HOLDS], "confirmed"),
        ([HOLDS, NOTHING], "confirmed"),
        ([HOLDS, NOTHING, NOTHING], "undecided"),
        ([HOLDS, None, None], "undecided"),
        ([HOLDS, FAILS], "contradicted"),
        ([FAILS, NOTHING, None], "undecided"),
        ([replace(HOLDS, broken=True)], "over a broken baseline"),
        ([replace(NOTHING, equivalent=True)], "equivalent"),
        ([replace(NOTHING, equivalent=True), None], "undecided"),
        ([replace(HOLDS, p_holds=None)], "undecided"),
    ],
)
def test_several_studies_of_a_claim_are_corrected_for_their_number(
    studies: list[StudiedClaim | None], word: str
) -> None:
    """Of three studies with p = .02 in one, it used to be counted; Holm asks for .0167."""
    assert claim_word(studies) == word
