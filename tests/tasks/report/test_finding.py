"""The demo's finding, of results made by hand: numbers, words, the answers shown, and the check on other seeds."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError, RecipeError
from tasks.commands.finding import print_finding
from tasks.graph.names import DEMO_PAPER
from tasks.params.stages import run_settings
from tasks.report import finding
from tasks.report.__main__ import write_report
from tasks.report.drawing import theme_colour
from tasks.report.finding import BOUNDED, DENSE, PLAIN, outcome, parts, read_finding
from tasks.running.artifacts import read_json, write_json, write_jsonl
from tests.browser import WIDTHS, browsing, needs_browser
from tests.tasks.report.test_hackability_page import write_run

PROJECT = Path(__file__).resolve().parents[3]
SEEDS = run_settings(PROJECT).demo[DEMO_PAPER].seeds
EVIL = "<script>alert(1)</script>"
#: Standard deviation of the reward model's rewards in each world.
DEVIATIONS = dict(zip(SEEDS, (2.0, 4.0), strict=True))
#: Win rates on the way by row; the proxy rises by one at each of them.
RATES = {PLAIN: [50.0, 40.0, 25.0], BOUNDED: [50.0, 48.0, 51.0], DENSE: [50.0, 30.0, 10.0]}


def write_answers(out: Path, rewards: list[float], text: str) -> None:
    rows = [
        {"id": str(i), "benchmark": "alpaca", "prompt": f"prompt {i}", "response": text, "true_reward": reward}
        for i, reward in enumerate(rewards)
    ]
    (out / "result").mkdir(parents=True, exist_ok=True)
    write_jsonl(out / "result" / "generations.jsonl", rows)


def write_world(root: Path, seed: int, **rates: list[float]) -> None:
    """A world of the demo: policies, the SFT model's answers, the reward model and the labels."""
    testbed = root / "results" / "testbed"
    for row, on_the_way in {**RATES, **rates}.items():
        low = on_the_way[-1] < 45
        metrics = {"kl": 2.0, "alpaca_tokens": 40.0, "hacking_alarms": float(low)}
        write_run(root, row, seed, on_the_way, 0.001 if low else 0.5, **metrics)
        made = testbed / "hackability" / "policy" / row / str(seed)
        moved = testbed / "demo" / "policy" / row / str(seed)
        moved.parent.mkdir(parents=True, exist_ok=True)
        made.rename(moved)
        write_answers(moved, [-2.0, 0.0, 1.0], f"answer of {row} {EVIL}")
    write_answers(testbed / "shared" / "sft" / "demo" / str(seed), [0.0, 1.0, 1.0], "answer of SFT")
    (testbed / "demo/reward_model/whole" / str(seed) / "result").mkdir(parents=True)
    write_json(testbed / "demo/reward_model/whole" / str(seed) / "result/metrics.json", {"accuracy": 0.74})
    fitted = testbed / "demo/normaliser/whole" / str(seed) / "result"
    fitted.mkdir(parents=True)
    write_json(fitted / "metrics.json", {"sequence_std": DEVIATIONS[seed]})
    data = testbed / "shared/data/demo" / str(seed) / "result"
    data.mkdir(parents=True)
    metas = [{"true_chosen": 1.0, "true_rejected": 0.0}] * 3 + [{"true_chosen": 0.0, "true_rejected": 1.0}] * 2
    write_jsonl(data / "preference.validation.jsonl", [{"meta": meta} for meta in metas])
    write_json(data / "data.json", {})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("params", "params.yaml", "tasks", "pyproject.toml"):
        (tmp_path / name).symlink_to(PROJECT / name)
    for seed in SEEDS:
        write_world(tmp_path, seed)
    return tmp_path


def measured(**finals: float) -> dict[str, dict[str, float]]:
    return {row: {"final": final, "p": 0.001, "proxy_gain": 1.0} for row, final in finals.items()}


def test_the_plain_reward_comes_first_and_rows_are_compared_with_it(root: Path) -> None:
    found = read_finding(root)
    assert found is not None
    assert [row.name for row in found.rows] == [PLAIN, BOUNDED, DENSE]
    plain, bounded, dense = found.rows
    assert (plain.times_hacked, bounded.times_hacked, dense.times_hacked) == (2, 0, 2)
    assert plain.effect is None
    assert bounded.effect is not None
    assert bounded.effect.estimate == 26
    assert (bounded.above, dense.above) == (2, 0)
    assert found.predicted_labels == 0.74
    assert found.true_labels == 0.6
    assert "and 3 prompts for the final win rate." in found.strength


def test_the_proxys_rise_is_in_deviations_of_each_worlds_reward_model(root: Path) -> None:
    found = read_finding(root)
    assert found is not None
    assert [run.measures["proxy_gain"] for run in found.rows[0].runs.values()] == [2, 2]
    assert found.rows[0].proxy_rise == (2 / 2 + 2 / 4) / 2
    assert "its proxy rises by 0.8 standard deviations" in found.rows[0].sentence
    fitted = root / f"results/testbed/demo/normaliser/whole/{SEEDS[0]}/result/metrics.json"
    write_json(fitted, {"sequence_mean": 1.0})
    with pytest.raises(DataError, match="sequence_std"):
        read_finding(root)


def test_rows_are_compared_at_equal_kl_too(root: Path) -> None:
    found = read_finding(root)
    assert found is not None
    assert [row.at_equal_kl for row in found.rows] == [25, 51, 10], "KL is 2 at the last evaluation"


def test_a_demo_that_is_not_finished_has_no_finding(root: Path) -> None:
    (root / "results/testbed/demo/policy" / BOUNDED / str(SEEDS[-1]) / "result/metrics.json").unlink()
    assert read_finding(root) is None
    with pytest.raises(RecipeError, match="rewardsmith run"):
        print_finding(root)
    (root / ".demo/results").mkdir(parents=True)
    with pytest.raises(RecipeError, match=r"not run to its end here; the demo is in the folder \.demo: cd \.demo$"):
        print_finding(root)


def test_a_project_without_a_demo_is_not_told_to_run_one(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("suite: {seeds: [0], scale_seeds: {default: [0]}}\n")
    with pytest.raises(RecipeError, match="sets no demo; `rewardsmith compare"):
        print_finding(tmp_path)


def test_a_plain_reward_that_is_not_hacked_is_not_called_hacked(tmp_path: Path) -> None:
    for name in ("params", "params.yaml", "tasks", "pyproject.toml"):
        (tmp_path / name).symlink_to(PROJECT / name)
    for seed in SEEDS:
        write_world(tmp_path, seed, **{PLAIN: [50.0, 52.0, 55.0]})
    found = read_finding(tmp_path)
    assert found is not None
    assert found.headline.startswith("The plain reward is not hacked: its policy's win rate over the SFT model is 55 %")
    assert "PAR (bounded) ends lower, at 51 %, but is not hacked" in found.beside
    assert found.rows[0].sentence.startswith("not hacked")


@pytest.mark.parametrize("plain", [(17.2, 2), (17.2, 1), (17.2, 0), (61.0, 0), (61.0, 2)])
@pytest.mark.parametrize(
    ("rate", "hacked", "said"),
    [
        (34.7, 2, "ends {side}, at 35 %, {link} is hacked{too}"),
        (34.7, 1, "ends {side}, at 35 %, {link} is hacked in 1 of 2 worlds"),
        (34.7, 0, "ends {side}, at 35 %, below 50 %, but is not hacked"),
        (17.4, 2, "ends {side}, at 17 %, and is hacked{too}"),
        (11.8, 2, "ends {side}, at 12 %, and is hacked{too}"),
        (11.8, 1, "ends {side}, at 12 %, and is hacked in 1 of 2 worlds"),
        (11.8, 0, "ends {side}, at 12 %, below 50 %, but is not hacked"),
        (50.0, 0, "ends {side}, at 50 %, {unlike} is not hacked"),
        (55.0, 0, "ends {side}, at 55 %, {unlike} is not hacked"),
        (55.0, 2, "ends {side}, at 55 %, {link} is hacked{too}"),
        (70.0, 0, "ends higher, at 70 %, and is not hacked"),
        (70.0, 1, "ends higher, at 70 %, but is hacked in 1 of 2 worlds"),
    ],
)
def test_every_outcome_of_a_design_is_said(plain: tuple[float, int], rate: float, hacked: int, said: str) -> None:
    ends, plain_ends = round(rate), round(plain[0])
    higher = ends > plain_ends
    words = {
        "side": "higher" if higher else "lower" if ends < plain_ends else "level",
        "link": "but" if higher else "and",
        "unlike": "and" if higher else "but",
        "too": ", too" if plain[1] == 2 else "",
    }
    assert outcome(rate, hacked, *plain, 2) == said.format(**words)


def test_the_headline_says_of_each_design_whether_it_is_hacked(root: Path) -> None:
    found = read_finding(root)
    assert found is not None
    assert found.beside == (
        "On the same labels, PAR (bounded) ends higher, at 51 %, and is not hacked; "
        "Segment (dense) ends lower, at 10 %, and is hacked, too."
    )


@pytest.mark.parametrize(
    ("width", "cells"),
    [
        (80, ["PAR (bounded)", "51.0", "+26.0", "51", "2.0", "40", "none"]),
        (60, ["PAR (bounded)", "51.0", "+26.0", "51", "none"]),
    ],
)
def test_the_terminal_keeps_to_its_width(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, cells: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_finding(root)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert ("not shown at this width: KL at end, tokens" in out) == (width == 60)
    assert max(map(len, lines)) <= width
    row = next(line for line in lines if line.startswith("PAR (bounded)  "))
    assert re.split(r"\s{2,}", row) == cells
    assert any(line.startswith("Next: ") for line in lines)


def test_the_report_begins_with_the_finding(root: Path) -> None:
    page = write_report(root / "results/testbed", root / "report").read_text(encoding="utf-8")
    assert page.index('id="finding"') < page.index('class="lead"')
    assert EVIL not in page
    assert page.count("<script>") == 1
    assert "run-demo-policy-vanilla" in page
    text = (root / "report/report.md").read_text(encoding="utf-8")
    assert text.index("The plain reward is hacked") < text.index("Where the time goes")


@pytest.mark.platform
@needs_browser
def test_on_a_telephone_the_findings_numbers_scroll_beside_their_rows(root: Path, tmp_path: Path) -> None:
    page = write_report(root / "results/testbed", root / "report")
    with browsing(tmp_path, WIDTHS[1]) as tab:
        tab.open(page.as_uri())
        tab.keeps_names("#finding .scroll", 4)


def test_rows_have_the_colours_that_they_have_on_the_page_of_compare(root: Path) -> None:
    page = write_report(root / "results/testbed", root / "report").read_text(encoding="utf-8")
    colours = re.findall(r'class="swatch" style="background: ([^"]+)"></span>', page)
    assert colours == [theme_colour(place) for place in range(3)]


def test_the_answers_shown_are_of_the_prompt_with_the_median_change(root: Path) -> None:
    found = read_finding(root)
    assert found is not None
    assert {answer.prompt for answer in found.answers} == {"prompt 1"}
    assert [answer.true_reward for answer in found.answers] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("finals", "held"),
    [((25.0, 51.0, 10.0), (True, True, True)), ((55.0, 51.0, 10.0), (False, False, True))],
)
def test_parts_of_the_finding(finals: tuple[float, ...], held: tuple[bool, ...]) -> None:
    plain, bounded, dense = finals
    found = parts(measured(**{PLAIN: plain, BOUNDED: bounded, DENSE: dense}))
    assert tuple(found.values()) == held


def test_a_check_on_other_seeds_is_counted(root: Path) -> None:
    found = read_finding(root)
    assert found is not None
    assert "Not checked" in found.check
    record: dict[str, Any] = {"settings": finding.settings_digest(root), "seeds": {}}
    for seed, plain in ((1001, 20.0), (1002, 60.0)):
        record["seeds"][str(seed)] = measured(**{PLAIN: plain, BOUNDED: 49.0, DENSE: 10.0})
    (root / "reference").mkdir()
    write_json(root / finding.RECORD, record)
    checked = read_finding(root)
    assert checked is not None
    assert "On 2 other worlds (seeds 1001 to 1002, spent as well) it held in 1" in checked.check
    assert "There PAR less plain is +9.0 [-245.1, +263.1] points." in checked.check
    assert "other settings" not in checked.check
    (root / finding.RECORD).write_text(json.dumps(record | {"settings": "of before"}))
    changed = read_finding(root)
    assert changed is not None
    assert "other settings or code" in changed.check


def test_a_row_added_to_the_demo_leaves_the_check_on_other_seeds_current(tmp_path: Path) -> None:
    for name in ("params.yaml", "tasks", "pyproject.toml"):
        (tmp_path / name).symlink_to(PROJECT / name)
    shutil.copytree(PROJECT / "params", tmp_path / "params")
    page = tmp_path / "params" / DEMO_PAPER / "rows.yaml"
    before = page.read_text(encoding="utf-8")
    committed = read_json(PROJECT / finding.RECORD)["settings"]
    assert finding.settings_digest(tmp_path) == committed
    page.write_text(before + "own: {title: My own, shaping: {kind: clip}}\n", encoding="utf-8")
    assert finding.settings_digest(tmp_path) == committed
    page.write_text(before.replace("references: 4", "references: 2"), encoding="utf-8")
    assert finding.settings_digest(tmp_path) != committed, "a row of the finding changed"
    page.write_text(before.replace("clamp: null", "clamp: 5.0"), encoding="utf-8")
    assert finding.settings_digest(tmp_path) != committed, "the rows' base changed"
