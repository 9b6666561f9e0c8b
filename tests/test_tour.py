"""The tour's commands, one after another, in the clone of a demo that is smaller than the real one."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_line import rewardsmith
from tests.small_repository import command
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
def demo(tmp_path: Path) -> Path:
    """The clone `.demo` with results of the demo, which is small and has one seed: its stages in this process."""
    root = tmp_path / ".demo"
    command("git", "clone", "-q", str(ROOT), str(root), root=ROOT)
    for page, changes in SMALL.items():
        path = root / f"params/scales/testbed/{page}.yaml"
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        smaller(settings, changes)
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    rows = root / "params.yaml"
    rows.write_text(rows.read_text(encoding="utf-8").replace("seeds: [1, 7]", "seeds: [1]"), encoding="utf-8")
    assert rewardsmith("graph", root=root).returncode == 0
    stages = yaml.safe_load((root / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    with chdir(root):
        for stage in stages.values():
            _python, _m, module, *arguments = shlex.split(stage["cmd"], comments=True)
            importlib.import_module(module).main(arguments)
    command("dvc", "commit", "-q", "-f", root=root)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return root


@pytest.mark.platform
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path(sys.prefix, "bin/activate").exists(), reason="not a virtual environment")
def test_every_command_of_the_tour_works(demo: Path) -> None:
    """Training in a shell as the page has it, the rest in this process."""
    opening, *steps = blocks(text_of(TOUR), "bash")
    said: dict[str, str] = {}
    for line in re.split(r"\n(?=rewardsmith |sed |mkdir )", "".join(steps).rstrip()):
        if line.startswith("rewardsmith run"):
            shell = ("bash", "-euo", "pipefail", "-c", f"{opening}\n{line}")
            done = command(*shell, root=demo.parent, PYTHONPATH=str(ROOT), COLUMNS="80")
        elif line.startswith("rewardsmith"):
            done = rewardsmith(*shlex.split(line)[1:], root=demo)
        else:
            done = command("bash", "-euo", "pipefail", "-c", line, root=demo)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        said[f"{len(said)} {line}"] = done.stdout
    [trained] = [out for line, out in said.items() if "run my-study" in line]
    assert any(line.startswith("penalty ") for line in trained.splitlines()), "the run ends with its row"
    first, changed, back = (out for line, out in said.items() if "plan my-study" in line)
    assert first.count("policy-my-study-penalty-1") == 1, "all else is the demo's"
    assert changed.count("policy-my-study-penalty-1") == 1, "the changed row runs, the old one does not"
    assert "up to date" in changed.splitlines()[-1]
    assert " run" not in back.splitlines()[-1]
    for page in ("compare.html", "index.html"):
        assert (demo / "report" / page).stat().st_size > 10_000


def test_every_picture_is_on_a_page_and_they_are_small() -> None:
    pictures = list((ROOT / "docs/pictures").iterdir())
    lines = [line for page in (ROOT / "docs").glob("*.md") for line in page.read_text(encoding="utf-8").splitlines()]
    shown = {line.rsplit("/", 1)[-1].rstrip(")") for line in lines if line.startswith("![")}
    assert {path.name for path in pictures} == shown
    assert sum(path.stat().st_size for path in pictures) < 300_000
