"""The tour's commands, one block after another, in the clone of a demo that is smaller than the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.small_repository import clean_environment
from tests.test_documentation import ROOT, blocks, text_of

TOUR = ROOT / "docs" / "tour.md"
#: Settings that are smaller than in the demo, by page and entry.
SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "data": {"demo": {"rows": {
        "sft": 200, "sft_validation": 20, "prompts": 64, "preference_train": 120, "preference_validation": 40,
        "preference_ood": 10, "benchmark": 24,
    }}},
    "policy": {"demo": {"optimiser": {"iterations": 2, "critic_warmup": 0}, "checkpoints": 2, "checkpoint_prompts": 8}},
    "backbones": {"demo": {"training": {"epochs": 0.3}}},
    "stages": {"normaliser": {"pairs": 120, "min_samples": 4}},
}  # fmt: skip


def smaller(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict):
            smaller(settings.setdefault(name, {}), value)
        else:
            settings[name] = value


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the clone `.demo`, whose demo is small and has one seed."""
    demo = tmp_path / ".demo"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(demo)], check=True)
    for page, changes in SMALL.items():
        path = demo / f"params/scales/testbed/{page}.yaml"
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        smaller(settings, changes)
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    rows = demo / "params.yaml"
    rows.write_text(rows.read_text(encoding="utf-8").replace("seeds: [1, 7]", "seeds: [1]"), encoding="utf-8")
    subprocess.run([sys.executable, "-P", "-m", "tasks.command_line", "graph"], cwd=demo, check=True)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.mark.platform
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path(sys.prefix, "bin/activate").exists(), reason="not a virtual environment")
def test_every_command_of_the_tour_works(project: Path) -> None:
    environment = clean_environment(PYTHONPATH=str(ROOT), COLUMNS="80")

    def shell(text: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text], cwd=project, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    opening, *steps = blocks(text_of(TOUR), "bash")
    assert "− vanilla" in shell(f"{opening}\nrewardsmith run"), "the rows stand beside the plain reward"
    said = {step: shell(f"{opening}\n{step}") for step in steps}
    trained = next(out for step, out in said.items() if "rewardsmith run my-study" in step)
    assert any(line.startswith("penalty ") for line in trained.splitlines()), "the run ends with its row"
    planned = next(out for step, out in said.items() if "sed" in step)
    assert planned.count("policy-my-study-penalty-1") == 1, "the changed row runs, the old one does not"
    assert "up to date" in planned.splitlines()[-1]
    for page in ("compare.html", "index.html"):
        assert (project / ".demo/report" / page).stat().st_size > 10_000


def test_every_picture_is_on_a_page_and_they_are_small() -> None:
    pictures = list((ROOT / "docs/pictures").iterdir())
    lines = [line for page in (ROOT / "docs").glob("*.md") for line in page.read_text(encoding="utf-8").splitlines()]
    shown = {line.rsplit("/", 1)[-1].rstrip(")") for line in lines if line.startswith("![")}
    assert {path.name for path in pictures} == shown
    assert sum(path.stat().st_size for path in pictures) < 300_000
