"""The papers' claims that are asked: a study names them. Each has its verdict over all its studies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.published.paper_claims import StatedClaim, stated_claims
from rlhf_core.published.printed_tables import PAPERS
from tasks.params.studies import StudySpec
from tasks.params.study_claims import PaperClaim, tested_as_stated
from tasks.studies.verdicts import StudiedClaim, claim_word


@dataclass(frozen=True)
class ClaimStudy:
    """A study that names a claim.

    Attributes:
        study: its name.
        spec: as it was registered.
        claim: its claim, with an id.
        status: of its worlds in words, or 'refused'.
        says: what it says of the claim; None before its last world, and where it is refused.
    """

    study: str
    spec: StudySpec
    claim: PaperClaim
    status: str
    says: StudiedClaim | None

    @property
    def word(self) -> str:
        """Returns the verdict of this study alone, its state without one."""
        return self.status if self.says is None else claim_word([self.says])

    @property
    def tested(self) -> str:
        """Returns in words how much of the claim the study tests as the claims file states it."""
        whole, stated = len(tested_as_stated(self.claim, self.spec)), self.claim.stated
        return f"{whole} of {len(stated.pairs) + stated.others} comparisons as stated"


@dataclass(frozen=True)
class AskedClaim:
    """A claim of a paper with all studies that name it, in the order of their names."""

    paper: str
    id: str
    studies: tuple[ClaimStudy, ...]

    @property
    def stated(self) -> StatedClaim:
        """Returns the claim's sentence and source."""
        return stated_claims(self.paper)[self.id]

    @property
    def word(self) -> str:
        """Returns the verdict over all its studies, 'open' while none is complete."""
        return claim_word([one.says for one in self.studies])


@dataclass(frozen=True)
class PaperCount:
    """Claims of a paper, and what was found of those that studies ask.

    Attributes:
        claims: how many the paper's file has.
        asked: how many of them a study names.
        elsewhere: studies of the paper that name none of them.
        words: how many of the asked claims have each verdict, 'open' included.
    """

    paper: str
    claims: int
    asked: int
    elsewhere: int
    words: Mapping[str, int]


def asked_claims(studies: Sequence[ClaimStudy]) -> tuple[AskedClaim, ...]:
    """Returns the claims that studies name, in the order of the papers and of their files."""
    named: dict[tuple[str, str], list[ClaimStudy]] = {}
    for study in studies:
        named.setdefault((study.claim.paper, str(study.claim.id)), []).append(study)
    order = [(paper, claim) for paper in PAPERS for claim in stated_claims(paper)]
    return tuple(AskedClaim(*key, tuple(named[key])) for key in order if key in named)


def paper_counts(asked: Sequence[AskedClaim], elsewhere: Mapping[str, int]) -> tuple[PaperCount, ...]:
    """Returns the counts of each paper.

    Args:
        asked: claims that studies name.
        elsewhere: of each paper, studies that name no claim of its file.
    """
    found = []
    for paper in PAPERS:
        words = Counter(claim.word for claim in asked if claim.paper == paper)
        found.append(PaperCount(paper, len(stated_claims(paper)), words.total(), elsewhere.get(paper, 0), words))
    return tuple(found)
