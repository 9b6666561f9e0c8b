"""Findings in documents: made from the records, whole, and those of the project's own pages are true."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.twins import Calibration
from tasks.report.atlas import Atlas, read_atlas
from tasks.report.atlas_markdown import TUNED, means_table
from tasks.report.atlas_words import amount
from tasks.report.findings_block import BLOCK, block_of, twins_sentence, with_blocks, write_blocks
from tasks.report.measured_block import with_measured
from tasks.studies.twins import TwinTest
from tasks.studies.verdicts import caveat_groups
from tests.tasks.report.fabricated_atlas import fabricated_clone

ROOT = Path(__file__).resolve().parents[3]
BLANK = "# Page\n\n<!-- findings: {} -->\n<!-- end of findings -->\n\nBelow\n"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which one study is complete and one is not."""
    root = tmp_path_factory.mktemp("clone")
    return fabricated_clone(root, ("tokens-again", "shaping-again"), unfinished=("shaping-again",))


@pytest.fixture(scope="module")
def project() -> Atlas:
    """The project's own studies."""
    return read_atlas(ROOT)


def test_the_projects_pages_say_what_its_records_say(project: Atlas) -> None:
    shallow = ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"]
    if not (ROOT / ".git").exists() or subprocess.check_output(shallow, text=True).strip() != "false":
        pytest.skip("no history: records are checked against the commits that added them")
    pages = 0
    for document in sorted((ROOT / "docs").glob("*.md")):
        text = document.read_text(encoding="utf-8")
        made = with_measured(ROOT, with_blocks(project, text, document), document)
        assert made == text, f"rewardsmith atlas --documents docs changes {document.name}"
        pages += bool(BLOCK.search(text))
    assert pages == 6, "evidence, and a page for each paper"


def test_a_complete_study_has_word_worlds_and_numbers(clone: Path, tmp_path: Path) -> None:
    page = tmp_path / "rlmec.md"
    page.write_text(BLANK.format("rlmec"), encoding="utf-8")
    assert write_blocks(clone, tmp_path) == [page]
    text = page.read_text(encoding="utf-8")
    state = next(study for study in read_atlas(clone).studies if study.name == "tokens-again").state
    assert state is not None
    effect = state.findings[0].effect
    assert effect is not None
    assert f"{effect.worlds} worlds): *{state.findings[0].word}*." in text
    assert text.count(f"| {amount(state.spec, effect.estimate)} (") == 1
    assert text.startswith("# Page\n")
    assert text.endswith("\nBelow\n")
    assert "Bounded, centred" not in text, "a study of another paper"
    assert write_blocks(clone, tmp_path) == [], "written again, the page stays as it is"


def test_an_unfinished_study_has_no_number(clone: Path, tmp_path: Path) -> None:
    page = tmp_path / "par.md"
    page.write_text(BLANK.format("par"), encoding="utf-8")
    write_blocks(clone, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "no verdict before the last of its 8" in " ".join(text.split())
    assert "|" not in text


def test_all_studies_are_lines_that_lead_to_their_papers_pages(clone: Path, tmp_path: Path) -> None:
    page = tmp_path / "evidence.md"
    page.write_text(BLANK.format("all"), encoding="utf-8")
    write_blocks(clone, tmp_path)
    complete, unfinished = re.findall(r"^- .*(?:\n  .*)*", page.read_text(encoding="utf-8"), re.MULTILINE)
    study = next(study for study in read_atlas(clone).studies if study.name == "tokens-again")
    assert study.state is not None
    caveats = sum(len(group.texts) for group in caveat_groups(study.state.spec, study.state.findings))
    said = " ".join(complete.split())
    assert f"([RLMEC](rlmec.md), {study.core_hours:.1f} core-hours): *{study.state.findings[0].word}*." in said
    assert f"{caveats} caveats." in said
    assert "|" not in complete
    assert "no verdict before the last of its 8" in " ".join(unfinished.split())


def test_findings_that_confirm_nothing_come_first(project: Atlas) -> None:
    studies = [study for study in project.studies if study.primary is not None]
    block = block_of(project, "all")
    places = {study.word: block.index(f"**{study.title}**") for study in studies}
    if not {"contradicted", "undecided", "confirmed"} <= places.keys():
        pytest.skip("a copy without history")
    assert places["contradicted"] < places["undecided"] < places["confirmed"]
    (twins,) = re.findall(r"^- \*\*A row compared with itself, again.*(?:\n  .*)*", block, re.MULTILINE)
    assert "refused by none of 4 metrics." in " ".join(twins.split())
    assert len(re.findall(r"^\| kl \| 40 \|", block, re.MULTILINE)) == 1, "the table of twins"


def test_a_block_of_an_unknown_paper_is_refused(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(BLANK.format("rlmek"), encoding="utf-8")
    with pytest.raises(DataError, match=r"page\.md.*'rlmek'; did you mean 'rlmec'"):
        write_blocks(clone, tmp_path)


def test_twins_without_a_test_are_not_counted_among_those_that_fail() -> None:
    right = TwinTest("rate", 1.0, Calibration((0.2, 0.8), 1.0, (0.5, 1.5), 0.9))
    wrong = TwinTest("kl", 1.0, Calibration((0.0, 0.0), 9.0, (0.5, 1.5), 0.9))
    untested = TwinTest("length", None, None, "no variance")
    said = "That twins vary as in the first 8 worlds: refused by"
    assert twins_sentence([right]) == f"{said} none of 1 metrics."
    assert twins_sentence([right, wrong]) == f"{said} kl of 2 metrics."
    not_tested = "Differences of twins are not tested in length."
    assert twins_sentence([right, wrong, untested]) == f"{said} kl of 2 metrics. {not_tested}"
    assert twins_sentence([untested]) == not_tested


@pytest.mark.parametrize(
    ("value", "said"), [(-0.01, "−0.0"), (0.01, "+0.0"), (0.0, "0.0"), (-0.0, "0.0"), (-4.84, "−4.8"), (4.84, "+4.8")]
)
def test_a_small_number_keeps_its_sign(clone: Path, value: float, said: str) -> None:
    spec = next(study.spec for study in read_atlas(clone).studies if study.name == "tokens-again")
    assert spec is not None
    assert amount(replace(spec, metric="win_rate_vs_sft"), value) == said


def test_a_complete_study_has_the_means_of_its_cells_and_the_verdict_of_its_claim(clone: Path) -> None:
    atlas = read_atlas(clone)
    study = next(study for study in atlas.studies if study.name == "tokens-again")
    assert study.state is not None
    spec, block = study.state.spec, block_of(atlas, "rlmec")
    (claim,) = [claim for claim in atlas.claims if claim.paper == "rlmec"]
    assert f"Claim ({claim.stated.source}): *{claim.word}*." in " ".join(block.split())
    (own,) = claim.studies
    twice = replace(claim, studies=(own, own))
    said = f"*{claim.word}*, here and over 2 studies" if twice.word == claim.word else f"*{twice.word}* over 2 studies"
    again = block_of(replace(atlas, claims=[twice]), "rlmec")
    assert f"{said}." in " ".join(again.split())
    other = replace(own, says=None, status="7 of 8 worlds")
    mixed = replace(claim, studies=(own, other))
    assert mixed.word != "open"
    assert f"over {len(mixed.studies)} studies." in " ".join(block_of(replace(atlas, claims=[mixed]), "rlmec").split())
    assert f"| {spec.metric}/KL | {' | '.join(spec.cells)} |" in block
    rate, kl = (study.means(metric)["tokens", "accurate"].effect for metric in (spec.metric, "kl"))
    assert rate is not None
    assert kl is not None
    assert f"| tokens | {rate.estimate:.1f}/{kl.estimate:.1f} |" in block


def test_means_of_cells_in_which_a_row_was_tuned_are_marked(project: Atlas) -> None:
    studies = {study.name: study for study in project.studies if study.primary is not None}
    if "credit" not in studies:
        pytest.skip("a copy without history")
    head, _, *rows, _ = means_table(studies["credit"])
    assert head == "| win_rate_vs_sft/KL († tuned) | short-sum | short-mean | long-sum | long-mean |"
    assert all([TUNED in cell for cell in row.split("|")[2:6]] == [True, False, False, True] for row in rows)
    alike = next(row for row in means_table(studies["collapse"]) if row.startswith("| vanilla-alike"))
    assert TUNED not in alike, "it does not run at the settings that tuning chose"
