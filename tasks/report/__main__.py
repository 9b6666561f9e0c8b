"""Renders the report: one self-contained page and a Markdown file.

    python -m tasks.report --results results/testbed --out report/                 index.html and report.md
    python -m tasks.report --results results/testbed --out report/ --laboratory    hackability.html

Reads what the tables stages wrote (`python -m tasks.tables`) and the records of the runs behind them; the
page opens from disk, without network.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tasks.report.hackability import write_laboratory
from tasks.report.page import write_page
from tasks.report.report_page import report_page
from tasks.running.stage import run_main


def write_report(results: Path, out: Path) -> Path:
    """Writes `<out>/index.html` and `<out>/report.md`, each whole or not at all; returns the page's path."""
    return write_page(report_page(results), out / "index.html", also=(out / "report.md",))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--results", type=Path, required=True, help="results of one scale: results/testbed")
    parser.add_argument("--out", type=Path, required=True, help="folder for the page")
    parser.add_argument("--laboratory", action="store_true", help="the page of every reward and mitigation that ran")
    options = parser.parse_args(arguments)
    write = write_laboratory if options.laboratory else write_report
    print(f"report: {write(options.results, options.out)}")


if __name__ == "__main__":
    run_main(main)
