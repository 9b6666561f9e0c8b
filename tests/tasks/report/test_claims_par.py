"""Claims of PAR: verdicts, intervals and costs are computed from the runs. All numbers are invented."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from rlhf_core.published import printed_tables
from tasks import tables
from tasks.graph.rows import load_rows
from tasks.report import figures_par
from tasks.report.__main__ import write_report
from tasks.report.claims import claims_of, paper_claims_figure
from tasks.report.measured import measured_table
from tasks.report.outcomes_par import BACKBONES, half_width
from tasks.report.outputs import ResultTree
from tests.tasks.report.par_results import SEEDS, make_par_results, noise, write_policy

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of every method, as the paper has them."""
    return make_par_results(tmp_path_factory.mktemp("par"))


def judged_claims(results: Path, seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    (block,) = paper_claims_figure("par", ResultTree(results, seeds)).blocks
    return {row["text"]: row for row in block["rows"]}


def verdicts(results: Path, seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    return {text: row["verdict"] for text, row in judged_claims(results, seeds).items()}


def test_the_papers_ordering_is_confirmed_by_results_that_have_it(results: Path) -> None:
    found = verdicts(results)
    for claim in ("PAR ends highest of all methods", "Min-max and WARM come next"):
        assert found[claim] == "confirmed"
    assert found["Vanilla PPO collapses: it gives back what it had gained and ends below the SFT model"] == "confirmed"
    assert found["PAR, Minmax and WARM end above the SFT model"] == "confirmed"
    assert found["Over two epochs PAR ends highest"] == "not run"


def test_another_method_above_par_contradicts(tmp_path: Path) -> None:
    results = make_par_results(tmp_path, rows={"par": (60, 60), "minmax": (80, 80), "vanilla": (30, 70)})
    found = verdicts(results)
    assert found["PAR ends highest of all methods"] == "contradicted"
    assert found["Min-max and WARM come next"] == "undecided"


def test_one_seed_decides_nothing(results: Path) -> None:
    assert set(verdicts(results, (0,)).values()) == {"undecided", "not run"}


def test_methods_that_are_level_leave_it_undecided(tmp_path: Path) -> None:
    results = make_par_results(tmp_path, rows={"par": (60, 60), "minmax": (60, 60)})
    assert verdicts(results)["PAR ends highest of all methods"] == "undecided"


@pytest.mark.parametrize(
    ("other", "verdict"),
    [((60, 60.5, 60.2), "confirmed"), ((60, 75, 66), "undecided"), ((80, 81, 80.5), "contradicted")],
)
def test_alike_means_that_the_interval_of_the_difference_lies_within_the_margin(
    tmp_path: Path, other: tuple[float, ...], verdict: str
) -> None:
    for seed, rate in enumerate(other):
        write_policy(tmp_path, "par", seed, 60, 60)
        write_policy(tmp_path, "par-ref1", seed, rate, rate)
    row = judged_claims(tmp_path)["A single reference reward suffices"]
    assert row["verdict"] == verdict
    assert row["parts"][0]["values"] == pytest.approx([sum(other) / 3, 60])


def test_every_row_that_a_claim_or_figure_names_is_a_row() -> None:
    rows = set(load_rows(ROOT, "par"))
    assert set(claims_of("par").rows) <= rows
    methods = {f"{prefix}{name}" for prefix in BACKBONES for name in figures_par.LABELS}
    others = {*figures_par.SIGMOIDS, *figures_par.BOUNDS, *figures_par.REFERENCES, *figures_par.GRPO}
    assert methods | others | set(figures_par.ONLINE_DPO) == rows


def test_a_constant_is_compared_over_worlds(results: Path) -> None:
    row = judged_claims(results)["PAR, Minmax and WARM end above the SFT model"]
    assert row["verdict"] == "confirmed"
    assert row["parts"][0]["constant"]
    assert row["parts"][0]["worlds"] == 3
    assert row["parts"][0]["p"] < 0.001


def test_intervals_are_over_worlds_and_one_world_has_none() -> None:
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.302653 * 1 / 3**0.5)
    assert half_width([60.0]) is None


def test_every_method_has_its_outcome_in_every_setting(results: Path) -> None:
    picture, table = figures_par.outcomes(ResultTree(results, SEEDS), figures_par.SETTINGS, figures_par.LABELS)
    assert len(picture.panels) == 4
    end, peak, model = picture.panels[0].series
    par, vanilla = ([noise(name, seed) for seed in SEEDS] for name in ("par", "vanilla"))
    assert end.y[0] == "PAR"
    assert end.x[0] == pytest.approx(85 + sum(one for one, _ in par) / 3)
    assert peak.x[0] == pytest.approx(85 + sum(other for _, other in par) / 3)
    assert model.style == "guide"
    rows = table.blocks[0]["rows"]
    assert len(rows) == 36
    cells = next(row["cells"] for row in rows if row["run"] == "vanilla")
    ends, peaks = [15 + one for one, _ in vanilla], [68 + other for _, other in vanilla]
    assert [cell["mean"] for cell in cells] == pytest.approx([mean(ends), mean(peaks), mean(peaks) - mean(ends)])
    assert cells[0]["se"] == pytest.approx(4.302653 * stdev(ends) / 3**0.5, rel=1e-4)


def test_one_world_has_no_interval(results: Path) -> None:
    _, table = figures_par.outcomes(ResultTree(results, (0,)), {"": "one"}, {"vanilla": "Vanilla"})
    assert [cell["se"] for cell in table.blocks[0]["rows"][0]["cells"]] == [None, None, None]


def test_costs_come_from_the_records(results: Path) -> None:
    (figure,) = figures_par.recorded_figures(ResultTree(results, SEEDS))
    rows = {row["run"]: row["cells"] for row in figure.blocks[0]["rows"]}
    readers = sum("par" in name or "lsc" in name for name in rows)
    policy, references, alone, shared = rows["par"]
    assert (policy["mean"], references["mean"]) == (60.0, 30.0)
    assert alone["mean"] == pytest.approx(100 / 3)
    assert shared["mean"] == pytest.approx(100 * (30 / readers) / (30 / readers + 60))
    assert rows["vanilla"][1:] == [None, None, None]
    assert rows[""][3]["mean"] == pytest.approx(100 * 90 / (90 + 3 * 36 * 60))


def test_the_sft_models_own_cells_are_there_by_definition(results: Path) -> None:
    first, third = (
        measured_table(printed_tables.table(f"par/{number}"), ResultTree(results, SEEDS)) for number in (1, 3)
    )
    model = next(row for row in first["rows"] if row["name"] == "gemma2-2b")
    assert model["cells"]["alpaca_lc"]["mean"] == model["cells"]["alpaca_wr"]["mean"] == 50.0
    assert model["cells"]["alpaca_lc"]["verdict"] == "confirmed"
    assert (model["cells"]["alpaca_wr"]["word"], model["cells"]["alpaca_wr"]["verdict"]) == (None, None)
    assert model["cells"]["peak_win_rate_vs_sft"]["difference"] is None
    peak = next(row for row in third["rows"] if row["name"] == "gemma2-2b")
    assert (peak["cells"]["alpaca_lc"]["mean"], peak["cells"]["mt_overall"]["mean"]) == (50.0, 4.5)


def test_the_page_shows_claims_outcomes_and_costs(results: Path, tmp_path: Path) -> None:
    tables.build(results, "par", SEEDS, results / "par" / "tables")
    text = write_report(results, tmp_path).read_text(encoding="utf-8")
    claimed = text.split('id="par-claims"')[1].split("</article>")[0]
    assert "PAR ends highest of all methods" in claimed
    assert claimed.count("badge confirmed") > 5
    assert text.index('id="par-claims"') < text.index('id="par-table-1"')
    assert "the SFT model" in text.split('id="par-outcomes"')[1].split("</article>")[0]
    assert "lost after the peak" in text.split('id="par-outcomes-table"')[1].split("</article>")[0]
    assert "all together" in text.split('id="par-costs"')[1].split("</article>")[0]
    figure = text.split('id="par-figure-5"')[1].split("</article>")[0]
    assert figure.count("error bars are one standard error") == 1
    assert "proxy reward" in figure
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| PAR ends highest of all methods | §4.4, Table 1 | confirmed |" in markdown
