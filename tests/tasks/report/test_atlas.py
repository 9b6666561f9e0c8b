"""The atlas: what it shows of complete, open and refused studies, its counts, and that it escapes every text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.worlds import over_worlds
from rlhf_core.published.paper_claims import stated_claims
from rlhf_core.published.printed_tables import PAPERS
from tasks.report.atlas import (
    AtlasStudy,
    asked_claims,
    curves_picture,
    finding_text,
    read_atlas,
    values_by_part,
    write_atlas,
)
from tasks.studies.verdicts import claim_word
from tests.browser import WIDTHS, look, needs_browser
from tests.tasks.studies.synthetic_study import STUDY, Numbers, commit_study, git, write_worlds

EVIL = '<script>alert("x")</script>'
LONG, SHORT = (8.0, 10.0, 9.0, 11.0), (1.0, 0.0, 2.0, -1.0)
SECRET = 77.7


def plain(index: int, cell: str, row: str) -> float:
    """Segment above the bandit, more so in long responses."""
    gain = (LONG if cell.startswith("long") else SHORT)[index]
    return 55.0 + index + (0.0 if row == "bandit" else gain)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete study, one with three of four worlds, one that was changed without a commit, and one unreadable."""
    made = tmp_path_factory.mktemp("clone")
    credit = {**STUDY, "title": f"Credit {EVIL}", "shows": ["kl"], "kl_targets": [4, 25]}
    write_worlds(made, commit_study(made, credit), plain)
    gate = commit_study(made, {**STUDY, "title": "Gate", "claim": None}, "gate")
    write_worlds(made, gate, lambda i, c, r: SECRET, worlds=3)
    commit_study(made, {**STUDY, "claim": {**STUDY["claim"], "id": "ngrams"}}, "late")
    with (made / "studies" / "late.yaml").open("a") as late:
        late.write("# changed\n")
    (made / "studies" / "vague.yaml").write_text(f"title: '{EVIL}'\n")
    return made


@pytest.fixture(scope="module")
def page(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_atlas(root, tmp_path_factory.mktemp("report"))


def section(page: Path, study: str) -> str:
    return page.read_text(encoding="utf-8").split(f'id="study-{study}"')[1].split("</section>")[0]


def studies(root: Path) -> dict[str, AtlasStudy]:
    return {study.name: study for study in read_atlas(root)}


def test_a_complete_study_has_its_sentence_picture_and_numbers(page: Path) -> None:
    shown = section(page, "credit")
    assert "segment − bandit, per level of length: +9.0 [+5.1, +12.9] points (p = .005; 4 worlds)" in shown
    assert shown.count("<svg") == 1
    for text in ("segment − bandit", "All hypotheses", "one world", "short", "long"):
        assert f"{text}</text>" in shown, text
    assert "2,048" in shown, "budgets"
    assert "win_rate_vs_sft@25" in shown
    assert "4 of 4 worlds have no number" in shown
    assert "<h4>kl</h4>" in shown


def test_a_picture_has_the_levels_of_a_dial_or_the_cells_and_their_mean(root: Path) -> None:
    state = studies(root)["credit"].state
    assert state is not None
    by_level = values_by_part(state, state.findings[0].hypothesis)
    assert {level: over_worlds(values).estimate for level, values in by_level.items()} == {
        "short": pytest.approx(0.5),
        "long": pytest.approx(9.5),
    }
    cells = values_by_part(state, state.findings[2].hypothesis)
    assert [*cells] == ["short, mean", "long, mean", "mean of cells"]
    assert cells["mean of cells"] == state.findings[2].values, "the finding's own numbers are in its picture"


def test_a_study_with_worlds_to_come_shows_none_of_its_numbers(page: Path) -> None:
    for shown in (section(page, "gate"), (page.parent / "atlas.md").read_text(encoding="utf-8").split("## Gate")[1]):
        assert re.search(r"3 of 4 worlds; no verdict before the last\.", shown)
    for text in (page, page.parent / "atlas.md"):
        assert str(SECRET) not in text.read_text(encoding="utf-8")
    assert "<svg" not in section(page, "gate")


def test_a_refused_study_says_why(page: Path) -> None:
    assert "a study is registered by a commit before it runs" in section(page, "late")
    assert "&#39;metric&#39;" in section(page, "vague")


def test_claims_of_the_papers_are_the_denominator(root: Path, page: Path) -> None:
    every = sum(len(stated_claims(paper)) for paper in PAPERS)
    assert every > 50
    assert claimed(root)[0] == "confirmed", "late was never started"
    head = page.read_text(encoding="utf-8").split('class="tiles"')[1].split("</section>")[0]
    assert f"<strong>1 of {every}</strong>" in head
    said = f"1 of {every} claims of the five papers asked by a study; 1 confirmed"
    assert said in (page.parent / "atlas.md").read_text(encoding="utf-8")


def claimed(root: Path) -> tuple[str, list[tuple[str, str]]]:
    """The verdict of the one claim that is asked, and the word of each study of it."""
    (studies,) = asked_claims(read_atlas(root)).values()
    return claim_word([one.says for one in studies]), [(one.name, one.claim_word) for one in studies]


def test_of_several_studies_of_a_claim_none_is_chosen(tmp_path: Path) -> None:
    """Of three registered studies the one that came out well used to be counted."""
    close = (9.0, 3.0, 6.0, 8.5)
    numbers: Numbers = lambda i, c, r: 55.0 + (close[i] if r == "segment" else 0.0)  # noqa: E731
    study = {**STUDY, "hypotheses": {"beats": STUDY["hypotheses"]["beats"]}}
    write_worlds(tmp_path, commit_study(tmp_path, study, "a"), numbers)
    assert claimed(tmp_path) == ("confirmed", [("a", "confirmed")])
    write_worlds(tmp_path, commit_study(tmp_path, study, "b"), lambda i, c, r: 55.0 + i * (r == "segment"), worlds=3)
    commit_study(tmp_path, study, "c")
    assert claimed(tmp_path) == ("undecided", [("a", "confirmed"), ("b", "3 of 4 worlds"), ("c", "0 of 4 worlds")])
    page = write_atlas(tmp_path, tmp_path / "report")
    for text in (page.read_text(encoding="utf-8"), (page.parent / "atlas.md").read_text(encoding="utf-8")):
        assert "0 of 12 comparisons as stated" in text
        assert STUDY["claim"]["differs"] in text
        assert "3 of 4 worlds" in text


def test_every_text_is_escaped_and_nothing_is_loaded(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert EVIL not in text
    assert "Credit &lt;script&gt;" in text
    assert text.count("<script>") == 1
    assert EVIL not in (page.parent / "atlas.md").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]+"', text)
    assert "default-src 'none'" in text


def test_a_row_that_stopped_is_named_instead_of_its_effect(tmp_path: Path) -> None:
    spoilt = "stopped: no pair differs"
    own = commit_study(tmp_path, STUDY)
    write_worlds(tmp_path, own, lambda i, c, r: spoilt if (i, c, r) == (1, "long-sum", "bandit") else plain(i, c, r))
    shown = section(write_atlas(tmp_path, tmp_path / "report"), "credit")
    assert "no effect is shown, world " in shown, "its number says which file it is"
    assert "row &#39;bandit&#39; of cell &#39;long-sum&#39; stopped: no pair differs" in shown
    assert "1 of 4 worlds have no number" in shown
    assert "Segments beat tokens" in shown


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((-9.0, -7.0, -8.0, -8.5), "segment − bandit: −8.1 [−9.5, −6.8] points (p < .001; 4 worlds)"),
        ((0.1, -0.1, 0.2, 0.0), "segment − bandit: +0.1"),
        ((9.0, -8.0, 7.0, -9.0), "sees above 20.4; 4 worlds)"),
        ((5.0, 5.0, 5.0, 5.0), "segment − bandit: +5.0 points (no variance; 4 worlds)"),
    ],
)  # fmt: skip
def test_a_finding_in_one_line_follows_from_its_numbers(tmp_path: Path, numbers: tuple[float, ...], said: str) -> None:
    hypotheses = {"beats": STUDY["hypotheses"]["beats"]}
    own = commit_study(tmp_path, {**STUDY, "hypotheses": hypotheses})
    write_worlds(tmp_path, own, lambda i, c, r: 55.0 + (numbers[i] if r == "segment" else 0.0))
    study = studies(tmp_path)["credit"]
    assert study.spec is not None
    assert study.primary is not None
    assert said in finding_text(study.spec, study.primary)


def test_a_study_with_kl_targets_draws_its_rows_over_root_kl(root: Path) -> None:
    study = studies(root)["credit"]
    assert study.state is not None
    runs = [
        run
        for record in study.state.records.values()
        for cell in record["cells"].values()
        for run in cell["rows"].values()
    ]
    for point in (point for run in runs for point in run["curve"]["points"]):
        point["proxy_reward"] = 0.1 * point["step"]
    drawn = curves_picture(study)
    assert drawn is not None
    assert "√KL</text>" in drawn.svg
    before = drawn.svg.count("<path")
    cell = next(iter(next(iter(study.state.records.values()))["cells"].values()))
    cell["rows"]["bandit"]["diverged"] = "at step 3"
    drawn = curves_picture(study)
    assert drawn is not None
    assert drawn.svg.count("<path") < before, "the mean over the other worlds would choose among them"


def test_a_folder_without_studies_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    with pytest.raises(DataError, match=r"studies.*there is no study"):
        read_atlas(tmp_path)


@pytest.mark.platform
@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_the_page_without_errors(page: Path, tmp_path: Path, width: int) -> None:
    shown = look(page.as_uri(), tmp_path, width)
    assert not shown.complaints
    assert shown.colours > 50
    assert shown.width <= width
