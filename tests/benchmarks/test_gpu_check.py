"""The GPU check covers every kind of stage, names what is absent or failed, and runs whole in small without a GPU."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import __main__ as gpu_check
from benchmarks.gpu_check.device import ABSENT, FAILED, MEASURED, Device, Row
from benchmarks.gpu_check.parts import LIGHT_STAGES, PARTS, _agreement_row, attention, generation
from benchmarks.gpu_check.random_work import TINY, Check
from benchmarks.gpu_check.table import COLUMNS, read_rows, row_line
from rlhf_core.models.forecast import PEAKS, Work

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"device": "a GPU", "torch": "2", "commit": "a", "rehearsal": False}


def test_every_kind_of_stage_has_a_part_or_no_heavy_work() -> None:
    stages = {path.stem for path in (ROOT / "tasks").glob("*.py")} - {"__init__", "command_line"}
    covered = {stage for part in PARTS.values() for stage in part.stages}
    assert covered | set(LIGHT_STAGES) == stages
    assert not covered & set(LIGHT_STAGES)


def test_engines_and_attentions_that_are_absent_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check = Check(TINY, Device())
    monkeypatch.setenv("REWARDSMITH_VLLM_PYTHON", "/nowhere/python")
    rows = {row.what: row for row in generation(check)}
    assert {name: row.outcome for name, row in rows.items()} == {
        "engine loop, 4 rows": MEASURED, "engine loop, 8 rows": MEASURED, "engine vllm": ABSENT
    }  # fmt: skip
    assert "vLLM is not installed" in rows["engine vllm"].reason
    kinds = {row.what: row for row in attention(check)}
    assert kinds["sdpa, SFT step"].tokens_per_second
    if not torch.cuda.is_available():
        assert kinds["flash_attention_2"].outcome == ABSENT
        assert "needs a GPU" in kinds["flash_attention_2"].reason


def test_a_device_that_computes_something_else_fails() -> None:
    row = _agreement_row("bf16", torch.tensor([0.0, 0.5]), torch.tensor([0.0, 0.2]), 0.1)
    assert (row.outcome, row.reason) == (FAILED, "bf16: 0.3 apart, and 0.1 is allowed")
    assert _agreement_row("bf16", torch.tensor([0.0, 0.5]), torch.tensor([0.0, 0.45]), 0.1).outcome == MEASURED
    assert _agreement_row("bf16", torch.tensor([float("nan")]), torch.tensor([0.0]), 0.1).outcome == FAILED


def test_share_of_the_peak_is_operations_over_what_the_device_could_do() -> None:
    device = Device(PEAKS["A100"])
    row = device.row("x", 2.0, tokens=100, work=Work(trained=52e12), traffic=2039e9)
    assert row.tokens_per_second == 50
    assert row.share_of_peak == pytest.approx(0.5)
    assert row.assumed_share == pytest.approx(0.35)
    assert row.share_of_bandwidth == pytest.approx(0.5)


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "--rehearse" in capsys.readouterr().err


def test_a_part_that_takes_too_long_is_a_failed_row(tmp_path: Path) -> None:
    gpu_check.run_in_process("sft", tmp_path, MACHINE, None, limit=0.2)
    assert read_rows(tmp_path, ["sft"], MACHINE) == {"sft": [Row("", FAILED, "it was ended after 0.2 s")]}


def test_the_published_table_is_made_of_records() -> None:
    header = f"| {' | '.join(COLUMNS)} |\n"
    published = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").partition(header)[2].partition("\n\n")[0]
    recorded = {
        row_line(part, Row(**row))
        for path in (ROOT / "reference" / "gpu_check").glob("*.json")
        for part, rows in json.loads(path.read_text(encoding="utf-8"))["parts"].items()
        for row in rows
    }
    lines = published.splitlines()[1:]
    assert len(lines) > 10
    assert set(lines) <= recorded


@pytest.mark.parametrize("name", PARTS)
def test_every_part_runs_on_a_tiny_shape(name: str) -> None:
    rows = list(PARTS[name].run(Check(TINY, Device())))
    timed = [row for row in rows if row.outcome == MEASURED and row.difference is None]
    assert rows
    assert all(row.seconds > 0 and row.memory_gib > 0 for row in timed)
    assert not timed or name != "agreement"
    assert all(row.reason for row in rows if row.outcome == ABSENT)


@pytest.mark.platform
def test_a_rehearsal_runs_a_part_in_a_process_and_writes_table_and_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_check.main(["--rehearse", "--only", "sft", "--out", str(tmp_path)]) == 0
    assert list(json.loads((tmp_path / "gpu_check.json").read_text())["parts"]) == ["sft"]
    text = (tmp_path / "gpu_check.md").read_text()
    assert text.startswith("**REHEARSAL")
    assert text in capsys.readouterr().out


def test_the_document_has_the_figures_of_the_stages_that_ran_on_a_gpu() -> None:
    runs = json.loads((ROOT / "reference" / "gpu_stages.json").read_text())["runs"]
    text = " ".join((ROOT / "docs" / "performance.md").read_text().split())
    whole = [run for run in runs if run["run"].startswith("36 steps")]
    *gpu, cpu = whole
    assert len({run["result_digest"] for run in gpu}) == 1 < len(gpu)
    ends = [f"{run['win_rate_vs_sft']:.0f} %, " + word for run, word in ((gpu[0], f"KL {gpu[0]['kl']:.0f}"), (cpu, ""))]
    assert f"ends at a win rate of {ends[0]} ({ends[1]}{cpu['kl']:.0f} on the CPU from the same models" in text
    short = [run for run in runs if run["run"] == "6 steps"]
    with_zero = [f"{run['win_rate_vs_sft']:.0f}" for run in short if run["deepspeed"]]
    (without,) = (f"{run['win_rate_vs_sft']:.0f}" for run in short if not run["deepspeed"])
    said = f"win rates of {min(with_zero)} to {max(with_zero)} % with ZeRO 0, 2, 3 and offload, {without} % without"
    assert said in text
    assert {f"{run['win_rate_vs_sft_se']:.0f}" for run in (*whole, *short)} == {"2"}
    killed = [(run, again) for run, again in pairwise(runs) if "killed" in again["run"]]
    assert [run["deepspeed"] for run, _ in killed] == ["zero 3", "zero 3, offload"]
    assert all(run["result_digest"] == again["result_digest"] for run, again in killed)
