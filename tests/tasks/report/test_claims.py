"""Claims as data: what a file may say, what each kind compares, and that verdicts are what they were as code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import RecipeError
from rlhf_core.published import printed_tables
from rlhf_core.published.paper_claims import SIDES, ClaimPart, claims_of, read_claims
from rlhf_core.published.row_map import metrics_of_paper, row_names
from tasks.report.claims import claims_figure, mean_height
from tasks.report.games import EVALUATORS, match_of
from tasks.report.numbers import OF_CLAIMS
from tasks.report.outputs import ResultTree
from tests.tasks.report.fixture_results import write


def write_claims(folder: Path, *parts: dict[str, Any], **top: Any) -> Path:
    """A claims file of PAR with one claim of these parts."""
    claim = {"says": "It is so", "source": "Table 1", "parts": list(parts)}
    file = {"numbers_sentence": "", "needs": "", "metric": "win_rate_vs_sft", "claims": {"one": claim}, **top}
    path = folder / "par.yaml"
    path.write_text(yaml.safe_dump(file), encoding="utf-8")
    return path


def judge(folder: Path, *parts: dict[str, Any], **top: Any) -> dict[str, Any]:
    """Judges the claim of such a file as the page shows it."""
    file = read_claims(write_claims(folder, *parts, **top), "par")
    figure = claims_figure("par", file, ResultTree(folder, (0, 1, 2)))
    return dict(figure.blocks[0]["rows"][0])


def write_rates(folder: Path, **rates: float) -> None:
    """Rows of PAR with these win rates, nearly the same at three seeds, none below the SFT model at its best."""
    for row, rate in rates.items():
        for seed in (0, 1, 2):
            place = folder / "par" / "policy" / row / str(seed) / "result"
            end = rate + 0.1 * seed + 0.01 * len(row) * seed**2
            write(place / "metrics.json", {"win_rate_vs_sft": end, "peak_win_rate_vs_sft": max(end, 60.0)})


def write_curve(folder: Path, row: str, height: list[float], reach: float) -> None:
    """A row of PAR whose win rate takes these heights, evenly up to a KL, at three seeds."""
    for seed, more in enumerate((0.0, 0.3, 0.2) if row == "par" else (0.2, 0.0, 0.1)):
        place = folder / "par" / "policy" / row / str(seed) / "result"
        points = [(reach * i / (len(height) - 1), rate + more) for i, rate in enumerate(height)]
        rows = [{"step": i, "kl": kl, "win_rate_vs_sft": rate} for i, (kl, rate) in enumerate(points)]
        write(place / "checkpoints.jsonl", rows[:-1])
        write(place / "metrics.json", {name: rows[-1][name] for name in ("kl", "win_rate_vs_sft")})


def metrics_named(part: ClaimPart) -> list[str]:
    """Returns the metrics of a part, its matches included."""
    if part.by:
        return [f"wins/{part.by}/{other}" for other in part.others]
    return [*part.metrics, *part.other_metrics, *([part.along] if part.kind == "frontier" else [])]


def is_metric(paper: str, metric: str) -> bool:
    """Returns whether a paper's rows have a metric."""
    name, _, argument = metric.partition("/")
    if name in OF_CLAIMS:
        return bool(argument) == bool(OF_CLAIMS[name][0])
    match = match_of(metric)
    if match is not None:
        return match.kind == "wins" and match.by in EVALUATORS.values() and match.other in ("others", *row_names(paper))
    return metric in metrics_of_paper(paper)


@pytest.mark.parametrize("paper", printed_tables.PAPERS)
def test_every_paper_has_claims_of_rows_and_metrics_that_are_in_its_row_map(paper: str) -> None:
    file, rows = claims_of(paper), row_names(paper)
    assert len(file.claims) >= 14
    assert {*file.rows, *file.sft_by_prefix.values()} <= set(rows)
    assert len({claim.says for claim in file.claims.values()}) == len(file.claims)
    parts = [part for claim in file.claims.values() for part in claim.parts]
    named = {name for part in parts for name in metrics_named(part)} | {file.metric}
    assert {name for name in named if not is_metric(paper, name)} == set()
    for part in parts:
        if part.side == "beside":
            assert (file.margin if part.margin is None else part.margin) > 0
        if not part.than_metric:
            assert not {*part.own} & {*part.others}, "a row is compared with itself"


def test_every_file_is_a_papers_and_every_kind_is_used() -> None:
    files = (printed_tables.FOLDER / "claims").iterdir()
    assert {path.stem for path in files} == set(printed_tables.PAPERS)
    claims = [claim for paper in printed_tables.PAPERS for claim in claims_of(paper).claims.values()]
    assert {part.kind for claim in claims for part in claim.parts} == set(SIDES)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"kind": "greter", "rows": "par", "than": 50}, r"parts\[0\].kind is 'greter'.* did you mean 'greater'"),
        ({"kind": "greater", "rows": "par", "then": 50}, "unknown setting '.*then'; did you mean 'than'"),
        ({"kind": "greater", "rows": ["50"], "than": 50}, "'50' is not a row"),
        ({"kind": "greater", "rows": "par", "than": ["minmx"]}, "'minmx' is not a row .* did you mean 'minmax'"),
        ({"kind": "greater", "rows": "par", "metric": "kl"}, "needs 'than'"),
        ({"kind": "greater", "than": 50}, "rows"),
        ({"kind": "frontier", "rows": "par", "than": "warm", "pieces": 0}, "pieces is 0"),
    ],
)
def test_what_a_part_cannot_say_is_refused(part: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=f"claims/par.yaml: .*{message}"):
        read_claims(write_claims(tmp_path, part), "par")


def test_a_frontier_lies_above_the_others_over_the_range_that_both_reach(tmp_path: Path) -> None:
    part = {"kind": "frontier", "rows": "par", "than": ["warm"]}
    write_curve(tmp_path, "par", [60, 70, 80, 90], reach=3.0)
    write_curve(tmp_path, "warm", [50, 55, 60, 95], reach=6.0)
    row = judge(tmp_path, part)
    assert row["verdict"] == "confirmed", "the other's high end lies beyond the shared range"
    assert [piece["left"] for piece in row["parts"]] == [f"par, piece {i} of 3 of the shared kl" for i in (1, 2, 3)]
    assert row["parts"][0]["values"] == pytest.approx([65 + 0.5 / 3, 51.35])
    write_curve(tmp_path, "warm", [80, 55, 50, 50], reach=6.0)
    row = judge(tmp_path, part)
    assert [piece["verdict"] for piece in row["parts"]] == ["contradicted", "confirmed", "confirmed"]
    assert row["verdict"] == "contradicted"


def test_a_win_over_a_broken_row_confirms_nothing_unless_collapse_is_the_claim(tmp_path: Path) -> None:
    write_rates(tmp_path, par=70, odin=30)
    part = {"kind": "greater", "rows": "par", "than": "odin"}
    row = judge(tmp_path, part)
    assert (row["verdict"], "broken" in row) == ("confirmed", False), "it collapsed after a best evaluation above 50"
    for seed in (0, 1, 2):
        path = tmp_path / "par" / "policy" / "odin" / str(seed) / "result" / "metrics.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"peak_win_rate_vs_sft": 45.0 + seed}))
    row = judge(tmp_path, part)
    assert (row["verdict"], row["broken"], row["parts"][0]["verdict"]) == ("undecided", ["odin"], "confirmed")
    claim = {"says": "It is so", "source": "Table 1", "collapse": True, "parts": [part]}
    assert judge(tmp_path, claims={"one": claim})["verdict"] == "confirmed"
    assert judge(tmp_path, {**part, "rows": "odin", "than": "par"})["verdict"] == "contradicted"


def test_a_world_that_was_not_run_is_named_beside_its_comparison(tmp_path: Path) -> None:
    write_rates(tmp_path, par=70, odin=30)
    (tmp_path / "par" / "policy" / "odin" / "1" / "result" / "metrics.json").unlink()
    (part,) = judge(tmp_path, {"kind": "greater", "rows": "par", "than": "odin"})["parts"]
    assert (part["worlds"], part["missing"]) == (2, "odin lacks world 1")


def test_a_claim_whose_parts_are_over_different_worlds_is_undecided(tmp_path: Path) -> None:
    """Worlds that only some parts have could have been chosen; it was confirmed, each part over what it had."""
    write_rates(tmp_path, par=70, odin=30, warm=31)
    parts = [{"kind": "greater", "rows": "par", "than": row} for row in ("odin", "warm")]
    row = judge(tmp_path, *parts)
    assert (row["verdict"], "uneven" in row) == ("confirmed", False)
    (tmp_path / "par" / "policy" / "odin" / "1" / "result" / "metrics.json").unlink()
    row = judge(tmp_path, *parts)
    assert [part["verdict"] for part in row["parts"]] == ["confirmed", "confirmed"]
    assert (row["verdict"], row["uneven"]) == ("undecided", "its comparisons are over different worlds: 1 only in some")
    row = judge(tmp_path, *({**part, "kind": "less"} for part in parts))
    assert row["verdict"] == "undecided", "nor is it contradicted"


def test_the_mean_height_of_a_curve_is_that_of_its_lines() -> None:
    assert mean_height([(0.0, 0.0), (2.0, 4.0)], 0.0, 2.0) == pytest.approx(2.0)
    assert mean_height([(0.0, 0.0), (1.0, 1.0), (1.0, 3.0), (2.0, 3.0)], 0.5, 1.5) == pytest.approx(1.875)
