"""Searches of MLflow as links of the report: the rows and seeds of a table side by side, and the runs of one row and
seed.

`tasks.tracking.mirror` notes the experiment of a paper in `.work/tracking/<paper>.json`. The link leads to the server
that the runs went to; without a server there is the filter, to be pasted into MLflow's search field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from tasks.running.artifacts import write_json
from tasks.running.platform_state import read_private

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
    parts = urlsplit(uri)
    server = parts.scheme in ("http", "https")
    address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/") if server else ""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{paper}.json", {"server": address, "experiment": experiment})


def experiment_link_written_since(root: Path, paper: str, moment: float) -> bool:
    """Returns whether a paper's experiment was noted at or after a moment, in seconds of `time.time()`."""
    file = root / FOLDER / f"{paper}.json"
    return file.exists() and file.stat().st_mtime >= moment - CLOCK_SECONDS


def link_to_runs(root: Path, paper: str) -> str | None:
    """MLflow's page of a paper's runs; None without a server, or where they were never mirrored."""
    noted = read_private(root / FOLDER / f"{paper}.json")
    return _page(noted) if noted.get("server") else None


def _page(noted: Mapping[str, Any]) -> str:
    return f"{noted['server']}/#/experiments/{quote(str(noted['experiment']), safe='')}/runs"


def table_search(root: Path, paper: str, table: str, scale: str) -> Search | None:
    """Returns the runs behind a table; None for a paper whose runs were never mirrored."""
    return _search(root, paper, f"tags.`{table}` = 'true' and tags.scale = '{scale}' and tags.kind = 'row'")


def run_search(root: Path, paper: str, path: str) -> Search | None:
    """Returns the run of one row and seed; None for a paper whose runs were never mirrored.

    Args:
        root: of the tree.
        paper: of the row.
        path: the stage's folder, relative to the root.
    """
    return _search(root, paper, f"tags.path = '{path}'")


def _search(root: Path, paper: str, query: str) -> Search | None:
    noted = read_private(root / FOLDER / f"{paper}.json")
    if "experiment" not in noted:
        return None
    return Search(query, f"{_page(noted)}?searchFilter={quote(query, safe='')}" if noted["server"] else None)
