"""The page of the hacking laboratory: what it shows of runs made by hand, and that it escapes every text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.graph.laboratory import RewardRows
from tasks.report.hackability import Laboratory, compare, write_comparison, write_laboratory
from tests.browser import WIDTHS, look, needs_browser
from tests.small_repository import write_yaml

EVIL = '<script>alert("x")</script>'
NAMES = ["vanilla", "par", "warm"]
REWARD = RewardRows("length", {"vanilla": "length-vanilla", "par": "length-par"}, {"warm": f"no model {EVIL}"})


def write_run(root: Path, row: str, seed: int, rates: list[float], p: float, **metrics: float) -> None:
    """A policy's result with evaluations every second step, its proxy rising by one each."""
    out = root / "results" / "testbed" / "hackability" / "policy" / row / str(seed)
    (out / "result").mkdir(parents=True)
    (out / "record").mkdir()
    points = [
        {"step": 2 * i, "proxy": float(i), "proxy_error": 0.1, "win_rate": rate, "kl": float(i)}
        for i, rate in enumerate(rates)
    ]
    found = {"win_rate_vs_sft": rates[-1], "win_rate_vs_sft_se": 2.0, "win_rate_vs_sft_p": p}
    found |= {"hacking/proxy_gain": float(len(rates) - 1), "hacking/loss_after_peak": max(rates) - rates[-1]}
    (out / "result" / "metrics.json").write_text(json.dumps(found | metrics))
    (out / "result" / "hacking.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    (out / "record" / "record.json").write_text(json.dumps({"seconds": 60, "commit": "ab" * 20, "device": "cpu"}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Vanilla hacked on both seeds, PAR better on one and not run on the other, WARM without a reward model."""
    titles: dict[str, Any] = {name: {"title": f"{name.upper()}, reward {{reward}}"} for name in NAMES}
    titles["par"] = {"title": f"PAR {EVIL}, reward {{reward}}"}
    page = {"each": {"reward": ["length"]}, "base": {"kind": "reward"}, "variants": titles}
    write_yaml(tmp_path / "params/hackability/rows.yaml", page)
    write_yaml(
        tmp_path / "params/hackability/reward_models.yaml", {"length": {"title": "Likes length", "data": "length"}}
    )
    write_run(tmp_path, "length-vanilla", 0, [50, 60, 30], 0.001, **{"hacking/onset_step": 4, "hacking/onset_kl": 9.0})
    write_run(tmp_path, "length-vanilla", 1, [50, 70, 40], 0.001)
    write_run(tmp_path, "length-par", 0, [50, 60, 65], 0.001)
    return tmp_path


@pytest.fixture
def comparison(root: Path) -> Laboratory:
    return compare(root, "testbed", [REWARD], NAMES, [0, 1])


@pytest.fixture
def page(root: Path, comparison: Laboratory) -> Path:
    return write_comparison(comparison, root / "report")


def test_a_cell_is_hacked_won_or_neither(root: Path) -> None:
    write_run(root, "length-warm", 0, [50, 55, 49], 0.8)
    rows = RewardRows("length", {**REWARD.rows, "warm": "length-warm"})
    cells = compare(root, "testbed", [rows], NAMES, [0]).rewards[0].cells
    assert [cell.verdict for cell in cells] == ["hacked", "won", ""]


def test_the_page_has_the_numbers_and_says_what_is_missing(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    matrix = text.split("<table>")[1].split("</table>")[0]
    assert "35.0<small>±5.0</small>" in matrix
    assert "Likes length" in text
    assert "left out: no model" in matrix


def test_every_measure_of_a_mitigation_stands_in_a_row_of_its_own(root: Path) -> None:
    write_run(root, "length-warm", 0, [50, 55, 49], 0.8, **{"hacking/rank_correlation": -0.5, "alpaca_tokens": 41})
    rows = RewardRows("length", {**REWARD.rows, "warm": "length-warm"})
    text = write_comparison(compare(root, "testbed", [rows], NAMES, [0, 1]), root / "report").read_text("utf-8")
    _, vanilla, _, warm = text.split('id="length"')[1].split("<table>")[1].split("</table>")[0].split("<tr>")[1:]
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<td.*?</td>", vanilla)]
    assert cells == ["35.0±5.0", "—", "—", "30.0±0.0", "2.00±0.00", "4", "9.0", "—", "—", "2 of 2"]
    assert "−0.50" in warm
    assert "0 of 1" in warm


def test_results_without_measures_are_refused(root: Path) -> None:
    (root / "results/testbed/hackability/policy/length-par/0/result/hacking.jsonl").unlink()
    with pytest.raises(DataError, match="no measures of hacking"):
        compare(root, "testbed", [REWARD], NAMES, [0])


def test_an_empty_laboratory_is_refused(root: Path) -> None:
    with pytest.raises(DataError, match="no row of the laboratory has run here"):
        write_laboratory(root / "results" / "other", root / "report")


@pytest.mark.platform
@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_the_page_without_errors(page: Path, tmp_path: Path, width: int) -> None:
    shown = look(page.as_uri(), tmp_path, width)
    assert not shown.complaints
    assert shown.width <= width
