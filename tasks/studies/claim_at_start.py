"""Claims that changed after the first start of a study that tests them: new words would be tested by known results."""

from __future__ import annotations

from pathlib import Path

from tasks.params.study_claims import PaperClaim
from tasks.params.yaml_files import parse_mapping
from tasks.studies.git_history import blob_at, blob_of, content_of
from tasks.studies.start_log import VERDICT, starts

CLAIMS = Path("rlhf_core") / "published" / "claims"


def claim_changed_since_start(root: Path, study: str, claim: PaperClaim | None) -> tuple[str, ...]:
    """Returns how a claim of a paper differs from what it said at a study's first start, in words."""
    first = next((line for line in starts(root) if line["study"] == study and line["kind"] == VERDICT), None)
    if claim is None or claim.id is None or first is None:
        return ()
    file, commit = (CLAIMS / f"{claim.paper}.yaml").as_posix(), str(first["commit"])
    then = blob_at(root, commit, file)
    if then is None or then == blob_of(root, file):
        return ()
    before = parse_mapping(content_of(root, then) or "", file)["claims"].get(claim.id)
    now = parse_mapping((root / file).read_text(encoding="utf-8"), file)["claims"].get(claim.id)
    said = f"claim '{claim.id}' of {file} was changed after the first start, of commit {commit[:10]}"
    return (said,) if before != now else ()
