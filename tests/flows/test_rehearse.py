"""One row of each kind through `rewardsmith rehearse` at scale paper, on made-up rows."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.platform, pytest.mark.timeout(3600)]
ROOT = Path(__file__).resolve().parents[2]
#: Rows of each kind and optimiser, by paper.
KINDS = {
    "segment": ("dpo", "segment"),
    "sentence": ("response", "bench-response", "best-of-n-token", "second-judge"),
    "par": ("grpo-par", "online-dpo", "warm"),
    "alarm": ("mt-alarm", "qa-alarm"),
    "rlmec": ("qa-rlmec", "qa-figa", "qa-coh", "math-ppo-a2c", "math-vanilla-ppo", "math-dpo"),
}


@pytest.mark.parametrize("paper", KINDS)
def test_rows_of_each_kind_are_rehearsed_and_marked(paper: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tasks.command_line", "rehearse", paper, *KINDS[paper], "--scale", "paper"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    tree = tmp_path / ".work" / "rehearsal" / "paper"
    listing = json.loads((tree / "rehearsal.json").read_text())
    assert listing["failed"] == {}
    assert listing["cells"][paper]["filled"] > 0
    assert all(cell["reason"] for cell in listing["cells"][paper]["empty"])
    assert listing["origins"], "every data set says where its rows are from"
    assert "no number on this page is a result" in " ".join((tree / "report" / "index.html").read_text().split())
    results = tree / "results" / "rehearsal-paper" / paper / "tables-so-far" / "result"
    for table in json.loads((results / "tables.json").read_text())["tables"]:
        for row in table["rows"]:
            assert all(cell["partial"] == "rehearsal" for cell in row["cells"].values())
    assert all(
        one["title"].startswith("Rehearsal: ") for one in json.loads((results / "figures.json").read_text())["figures"]
    )
    with sqlite3.connect(tree / "mlflow.db") as database:
        runs = database.execute("select count(*) from runs").fetchone()[0]
        marked = database.execute("select count(*) from tags where key = 'rehearsal' and value = 'true'").fetchone()[0]
    assert runs == marked > 0
