"""Work of a run after its stages: a paper's tables of what is there, then the report; a link to its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flows.paper import report_page_calls, tables_calls
from flows.scheduler import RunSummary
from flows.stage_run import StageDone
from tasks.dvc.pipelines import Request
from tests.flows import without_stages

DEMO, FULL = "tables-segment", "pipelines/testbed/segment/dvc.yaml:tables-segment"
CALL = ["--results", "results/testbed", "--paper", "segment", "--out", "results/testbed/segment/tables-so-far"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with a policy's results at seeds 0 and 2."""
    for seed in (0, 2):
        (tmp_path / f"results/testbed/segment/policy/bandit/{seed}/result").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    "summary",
    [
        RunSummary(current=["policy-segment-bandit-0"]),
        RunSummary(failed={"policy-segment-dpo-0": "boom"}, skipped={FULL: "reads from it"}),
        RunSummary(current=[DEMO], skipped={FULL: "reads from it"}),
        RunSummary(failed={FULL: "boom"}),
        RunSummary(current=["tables-par"]),
    ],
    ids=["not asked for", "skipped", "only the demo's", "failed", "another paper's"],
)
def test_without_its_tables_stage_a_paper_has_tables_so_far(root: Path, summary: RunSummary) -> None:
    assert tables_calls(root, "testbed", "segment", summary) == [("tasks.tables", [*CALL, "--seeds", "0", "2"])]


@pytest.mark.parametrize("summary", [RunSummary(current=[DEMO]), RunSummary(done={FULL: StageDone("ran", 1.0)})])
def test_a_finished_tables_stage_is_enough(root: Path, summary: RunSummary) -> None:
    assert tables_calls(root, "testbed", "segment", summary) == []


@pytest.mark.parametrize(
    ("paper", "pages"),
    [("par", ["report"]), ("demo", ["report"]), ("hackability", ["--laboratory"])]
    + [(name, []) for name in ("claims", "page", "matches", "finding", "my-project")],
)
def test_only_papers_with_a_page_have_one_and_no_folder_named_like_a_module(paper: str, pages: list[str]) -> None:
    request = Request(paper, report=True)
    assert [(module, words[-1]) for module, words in report_page_calls(request)] == [("tasks.report", p) for p in pages]


def test_a_folder_that_is_none_of_the_five_papers_has_no_tables(tmp_path: Path) -> None:
    (tmp_path / "results/testbed/mixed/policy/segment-par/0/result").mkdir(parents=True)
    assert tables_calls(tmp_path, "testbed", "mixed", RunSummary()) == []


@pytest.mark.parametrize("made", without_stages.FLOWS)
def test_the_report_is_written_beside_the_mirror(root: Path, monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    asked: list[list[str]] = []

    def run_modules(_root: Path, *calls: tuple[str, Sequence[str]]) -> list[str]:
        asked.append([module for module, _ in calls])
        return []

    without_stages.run(monkeypatch, made, root, run_modules, full=True, seeds=(0,))
    assert asked == [["tasks.tables"], ["tasks.tracking.mirror", "tasks.report"]]
