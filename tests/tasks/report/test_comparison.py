"""Rows beside the first one: differences over worlds, what else differs, the same prompts, page and terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.errors import RecipeError
from tasks.commands import results_app
from tasks.report.comparison import meanings, print_rows, same_prompts, same_rollouts, write_comparison
from tasks.report.row_runs import compare_rows, row_runs
from tasks.running.artifacts import write_json, write_jsonl
from tests.browser import WIDTHS, browsing, needs_browser
from tests.small_repository import PROJECT

PROMPTS = [f"What is {number}?" for number in range(12)]


def run(
    root: Path, row: str, seed: int, rate: float, *, data: str = "dialogue", alarm: str = "", **more: float
) -> Path:
    """A run whose answer to every second prompt is as good as its win rate says."""
    paper, name = row.split("/")
    out = root / "results/testbed" / paper / "policy" / name / str(seed)
    rewards = [rate / 100 if number % 2 else 0.5 for number in range(len(PROMPTS))]
    answers = [
        {"id": f"{seed}-{i}", "benchmark": "alpaca", "prompt": prompt, "response": f"{name} {i}", "true_reward": reward}
        for i, (prompt, reward) in enumerate(zip(PROMPTS, rewards, strict=True))
    ]
    rollouts = [
        {"step": step, "id": "1", "prompt": PROMPTS[0], "response": f"{name}!", "tokens": [name, "!"],
         "rewards": [1.0, -rate], "true_reward": 0.5}
        for step in (1, 7)
    ]  # fmt: skip
    (out / "record").mkdir(parents=True)
    (out / "result").mkdir()
    write_jsonl(out / "result/generations.jsonl", answers)
    write_jsonl(out / "result/rollouts.jsonl", rollouts)
    steps = [{"step": step, "kl": step / 2, "reward": 0.1 * step, "proxy": 0.2 * step} for step in (1, 2, 7)]
    write_jsonl(out / "result/history.jsonl", steps)
    alarms = [{"step": 7, "kind": alarm, "since": 2, "message": "kl is 9"}] if alarm else []
    write_jsonl(out / "result/alarms.jsonl", alarms)
    write_json(out / "result/metrics.json", {"win_rate_vs_sft": rate, "kl": 3.5, "alpaca_tokens": 20.0, **more})
    inputs = [f"results/testbed/shared/data/{data}/result", "results/testbed/shared/sft/phi3-mini/0/result"]
    write_json(out / "record/record.json", {"inputs": dict.fromkeys(inputs, "0")})
    return out


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three worlds of two rows of Segment, in which the second is worse by 4, 5 and 6 points."""
    (tmp_path / "params").symlink_to(PROJECT / "params")
    (tmp_path / "params.yaml").symlink_to(PROJECT / "params.yaml")
    for seed in (0, 1, 2):
        run(tmp_path, "segment/segment", seed, 60.0 + seed)
        run(tmp_path, "segment/bandit", seed, 56.0, alarm="kl" if seed == 1 else "")
    return tmp_path


def test_differences_are_over_worlds(root: Path) -> None:
    found = compare_rows(root, "testbed", ["segment/segment", "bandit"])
    first, second = found.rows
    assert (found.metric, first.difference) == ("win_rate_vs_sft", None)
    assert second.difference is not None
    assert second.difference.effect.estimate == pytest.approx(-5.0)
    interval = second.difference.effect.interval()
    assert interval is not None
    assert interval.upper == pytest.approx(-5.0 + 4.302653 / 3**0.5)
    assert second.alarms == {1: "kl at step 7"}
    said = "below, its interval without 0 (one comparison, not corrected); its alarm rang, read its answers first"
    assert meanings(found) == [f"Bandit (Sequence): {said}."]
    assert [line.split(":")[0] for line in found.caveats] == ["Exploratory"]


def test_held_out_prompts_that_are_trained_on_are_told_beside_the_numbers(root: Path) -> None:
    data = root / "results/testbed/shared/data/dialogue/result"
    data.mkdir(parents=True)
    facts = {"rows": {"preference.ood": 40, "benchmarks/alpaca": 8}, "overlap": {"benchmarks/alpaca": 2}}
    write_json(data / "data.json", facts)
    said = "2 of 8 rows of benchmarks/alpaca ask prompts that are trained on: numbers measured on them are too good."
    assert compare_rows(root, "testbed", ["segment/segment", "bandit"]).caveats[0] == said


def test_what_else_differs_is_said(root: Path) -> None:
    run(root, "par/par", 0, 70.0, data="ultrafeedback")
    found = compare_rows(root, "testbed", ["segment/segment", "par/par"])
    assert "Rows have data of their own (segment/segment: dialogue; par/par: ultrafeedback)" in found.caveats[0]
    assert "Not the same worlds: par/par lacks world 1, 2." in found.caveats
    assert any(line.startswith("One world says nothing") for line in found.caveats)
    assert meanings(found) == ["PAR: above in the only world; nothing is known beyond it."]
    run(root, "par/vanilla", 9, 70.0)
    assert "par/vanilla shares no world" in " ".join(compare_rows(root, "testbed", ["bandit", "par/vanilla"]).caveats)


def test_the_same_prompts_and_rollouts_stand_side_by_side(root: Path) -> None:
    rows = [row_runs(root, "testbed", "segment", name) for name in ("segment", "bandit")]
    texts = same_prompts(rows, 3)
    assert len(texts) == 3
    for prompt, (first, second) in texts:
        number = PROMPTS.index(prompt)
        assert (first["response"], second["response"]) == (f"segment {number}", f"bandit {number}")
    ((prompt, (first, _)),) = same_rollouts(rows, 3)
    assert (prompt, first["tokens"], first["rewards"]) == (PROMPTS[0], ["segment", "!"], [1.0, -60.0])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["segmnt"], "unknown paper or row 'segmnt'; did you mean 'segment'"),
        (["token"], "several papers have a row 'token'; name one of: segment/token, sentence/token"),
        (["bandit", "segment/bandit"], "row 'segment/bandit' is named twice"),
        (["bandit", "par/par"], "no results of par/par at scale testbed: rewardsmith run par/par$"),
        (
            ["par/par", "par/vanilla", "mixed/segment-par"],
            "rewardsmith run par/par par/vanilla and rewardsmith run mixed/segment-par$",
        ),
    ],
)
def test_wrong_rows_are_named(root: Path, names: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        compare_rows(root, "testbed", names)


def test_rows_without_results_at_a_seed_have_others(root: Path) -> None:
    message = r"no results of segment/bandit \(has seed 0, 1, 2\), par/par at scale testbed, seed 3: rewardsmith run"
    with pytest.raises(RecipeError, match=f"{message} segment/bandit --seed 3 and .* par/par --seed 3$"):
        compare_rows(root, "testbed", ["bandit", "par/par"], seeds=[3])


def test_a_metric_that_a_row_lacks_is_named(root: Path) -> None:
    run(root, "par/par", 0, 70.0, gsm8k=0.5)
    with pytest.raises(RecipeError, match="metric 'gsm8k' is missing of segment/segment"):
        compare_rows(root, "testbed", ["segment/segment", "par/par"], metric="gsm8k")


@pytest.mark.parametrize("width", [60, 80])
def test_the_terminal_keeps_to_its_width(
    root: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_rows(root, "testbed", ["segment/segment", "bandit"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "−5.0 [−7.5, −2.5]" in text
    assert text.count("± is a standard error, [..] a 95 % interval, both over worlds.") == 1
    assert "Hacking alarm of segment/bandit at seed 1: kl at step 7" in text


def test_rows_are_listed_with_their_seeds(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(root)
    run(root, "segment/segment", 7, 50.0)
    results_app.rows()
    lines = capsys.readouterr().out
    assert "segment/segment  0 to 2, 7" in lines
    assert "segment/token" not in lines
    results_app.rows("segment")
    assert "segment/token" in capsys.readouterr().out
    with pytest.raises(RecipeError, match="unknown paper 'segmen'"):
        results_app.rows("segmen")


def test_the_page_escapes_what_models_say_and_has_curves_and_texts(root: Path, tmp_path: Path) -> None:
    file = root / "results/testbed/segment/policy/bandit/0/result/generations.jsonl"
    file.write_text(file.read_text().replace("bandit 1", "<script>alert(1)</script>"))
    found = compare_rows(root, "testbed", ["segment/segment", "bandit"])
    page = write_comparison(found, tmp_path / "report").read_text()
    assert "<script>alert" not in page
    for part in (
        "Learning curves",
        "What each reward pays for",
        "−5.0",
        "Hacking alarm of segment/bandit",
        "true reward 0.50",
    ):
        assert part in page, part


@pytest.mark.platform
@needs_browser
def test_on_a_telephone_the_numbers_scroll_beside_their_rows(root: Path, tmp_path: Path) -> None:
    page = write_comparison(compare_rows(root, "testbed", ["segment/segment", "bandit"]), tmp_path / "report")
    with browsing(tmp_path, WIDTHS[1]) as tab:
        tab.open(page.as_uri())
        tab.keeps_names(".lead .scroll", 3)
