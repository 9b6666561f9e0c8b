"""A row through `rewardsmith rehearse` at scale paper, on made-up rows; the other kinds by the command itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.platform, pytest.mark.timeout(3600)]
ROOT = Path(__file__).resolve().parents[2]


def test_a_row_is_rehearsed_and_marked(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tasks.command_line", "rehearse", "alarm", "qa-alarm", "--scale", "paper"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    tree = tmp_path / ".work" / "rehearsal" / "paper"
    listing = (tree / "rehearsal.md").read_text()
    assert re.search(r"^- alarm: 1 rows, [1-9]\d* of 265 printed cells filled$", listing, re.MULTILINE)
    assert "WITHOUT A REASON" not in listing
    assert "## Failed stages\n\n- none" in listing
    assert "no number on this page is a result" in " ".join((tree / "report" / "index.html").read_text().split())
    results = tree / "results" / "rehearsal-paper" / "alarm" / "tables-so-far" / "result"
    for table in json.loads((results / "tables.json").read_text())["tables"]:
        for row in table["rows"]:
            assert all(cell["partial"] == "rehearsal" for cell in row["cells"].values())
    with sqlite3.connect(tree / "mlflow.db") as database:
        runs = database.execute("select count(*) from runs").fetchone()[0]
        marked = database.execute("select count(*) from tags where key = 'rehearsal' and value = 'true'").fetchone()[0]
    assert runs == marked > 0
