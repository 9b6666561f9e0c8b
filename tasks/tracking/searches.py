"""Searches of MLflow as links of the report: the rows and seeds of a table side by side.

`tasks.tracking.mirror` notes the experiment of a paper in `.work/tracking/<paper>.json`. The link leads to the server
that the runs went to; without a server there is the filter, to be pasted into MLflow's search field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tasks.running.artifacts import write_json
from tasks.running.platform_state import read_private
from tasks.tracking.databases import without_passwords

FOLDER = Path(".work") / "tracking"
#: Times of files are those of the system's last tick, up to some hundredths of a second before `time.time()`.
CLOCK_SECONDS = 0.1


@dataclass(frozen=True)
class Search:
    """A search of runs: MLflow's filter, and its page where there is a server."""

    filter: str
    link: str | None


def note_experiment(root: Path, paper: str, uri: str, experiment: str) -> None:
    """Notes where a paper's runs are: the server's address without user and password, empty for a database."""
    server = without_passwords(uri).rstrip("/") if urlsplit(uri).scheme in ("http", "https") else ""
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    write_json(root / FOLDER / f"{paper}.json", {"server": server, "experiment": experiment})


def experiment_link_written_since(root: Path, paper: str, moment: float) -> bool:
    """Returns whether a paper's experiment was noted at or after a moment, in seconds of `time.time()`."""
    file = root / FOLDER / f"{paper}.json"
    return file.exists() and file.stat().st_mtime >= moment - CLOCK_SECONDS


def link_to_runs(root: Path, paper: str) -> str | None:
    """Returns MLflow's page of a paper's runs; None without a server, or where they were never mirrored."""
    return _page(read_private(root / FOLDER / f"{paper}.json"))


def _page(noted: Mapping[str, Any]) -> str | None:
    if not noted.get("server"):
        return None
    return f"{noted['server']}/#/experiments/{quote(str(noted['experiment']), safe='')}/runs"


def table_search(root: Path, paper: str, table: str, scale: str) -> Search | None:
    """Returns the runs behind a table; None for a paper whose runs were never mirrored."""
    return _search(root, paper, f"tags.`{table}` = 'true' and tags.scale = '{scale}' and tags.kind = 'row'")


def _search(root: Path, paper: str, query: str) -> Search | None:
    noted = read_private(root / FOLDER / f"{paper}.json")
    page = _page(noted)
    return Search(query, page and f"{page}?searchFilter={quote(query, safe='')}") if "experiment" in noted else None
