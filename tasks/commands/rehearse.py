"""`rewardsmith rehearse`: the whole graph of a scale in small, through the papers' flow, and the list at the end."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tasks.commands.processes import flow_of, run_module, show_progress
from tasks.dvc.pipelines import asked_papers
from tasks.graph.check import refuse_rows
from tasks.graph.names import SUITE
from tasks.graph.scale import Scale
from tasks.rehearsal.endpoint import endpoints, read_replies
from tasks.rehearsal.equal import Identities, copy_results, equal_rows
from tasks.rehearsal.listing import ForecastGpus, Listing, listing_of, rows_of, write_listing
from tasks.rehearsal.tree import SEED, Rehearsal, environment, write_tree


def rehearse(
    root: Path,
    paper: str,
    rows: Sequence[str],
    *,
    scale: str,
    given: Path | None,
    replies: Path | None,
    machines: ForecastGpus,
    verbose: bool,
) -> Listing:
    """Rehearses rows of a paper, or the suite, and prints the list; returns it.

    Args:
        root: the repository.
        paper: a paper, or SUITE for the five.
        rows: of the paper, empty for all.
        scale: that is rehearsed.
        given: folder of real rows, None for made-up rows alone.
        replies: file of the replies of judges and teachers, None for drawn verdicts.
        machines: GPUs that the forecast is for.
        verbose: show the stages' own logs.

    Raises:
        RewardsmithError: what cannot be rehearsed, before anything runs.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()  # of stand-ins, each written in a moment
    began = time.monotonic()
    said = None if replies is None else read_replies(replies)
    rehearsal = write_tree(root, scale, given, replies)
    papers = asked_papers(rehearsal.tree, paper, scale=rehearsal.name, full=True)
    asked: Mapping[str, Collection[str]] = dict.fromkeys(papers, tuple(rows))
    refuse_rows(rehearsal.tree, rehearsal.name, asked)
    with endpoints(said) as served:
        equal = run_once(rehearsal, asked, served, verbose=verbose)
        status = run_flow(rehearsal, paper, rows, served, verbose=verbose)
    found = listing_of(rehearsal, asked, time.monotonic() - began, machines)
    found.equal = equal
    if status and not found.failed:
        found.failed["flow"] = f"the flow ended with status {status}; its log is above"
    file = write_listing(found, machines, rehearsal.tree)
    print(file.read_text(encoding="utf-8"))
    print(f"list: {file.relative_to(root)}; report: {(rehearsal.tree / 'report').relative_to(root)}/index.html")
    return found


def run_once(
    rehearsal: Rehearsal, asked: Mapping[str, Collection[str]], served: dict[str, str], *, verbose: bool
) -> dict[str, str]:
    """Runs one of each group of equal rows and copies its results to the others; returns these, each with the one
    that ran.

    Args:
        asked: names of rows by paper; empty for all rows of the paper.
    """
    here, found = Scale(rehearsal.tree, rehearsal.name), dict[str, str]()
    for paper, names in asked.items():
        known = {row.name: row for row in rows_of(rehearsal.tree, here, paper)}
        items = {name: here.row(known[name], SEED) for name in names or known if name in known}
        identities = Identities(rehearsal.tree)
        equal = equal_rows(identities, items)
        if not equal:
            continue
        ran = [name for name in items if name not in equal]
        run_flow(rehearsal, paper, ran, served, verbose=verbose, follow=False)
        copy_results(identities, items.values())
        found |= {f"{paper}/{name}": f"{paper}/{first}" for name, first in equal.items()}
    return found


def run_flow(
    rehearsal: Rehearsal,
    paper: str,
    rows: Sequence[str],
    served: dict[str, str],
    *,
    verbose: bool,
    follow: bool = True,
) -> int:
    """Runs the flow of a paper, or of the suite, in a rehearsal's tree; returns its exit status.

    Args:
        rows: of the paper, empty for all.
        served: environment variables of the endpoints.
        verbose: show the stages' own logs.
        follow: make tables so far, report and MLflow's runs afterwards.
    """
    words = flow_of(paper)
    words += ["--scale", rehearsal.name, *(["--full"] if paper == SUITE else [])]
    words += ["--rows", *rows] if rows else []
    words += [] if follow else ["--no-report", "--no-sync"]
    show_progress(verbose)
    surroundings = environment(rehearsal.tree, served)
    return run_module(words[0], words[1:], verbose=verbose, folder=rehearsal.tree, environment=surroundings)
