"""`rewardsmith rehearse`: the whole graph of a scale in small, through the papers' flow, and the list at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.commands.processes import flow_of, run_module, show_progress
from tasks.dvc.pipelines import asked_papers
from tasks.graph.check import refuse_rows
from tasks.graph.names import SUITE
from tasks.rehearsal.empty_cells import Listing, listing_of
from tasks.rehearsal.endpoint import endpoints, read_replies
from tasks.rehearsal.tree import environment, write_tree


def rehearse(
    root: Path, paper: str, rows: Sequence[str], *, scale: str, given: Path | None, replies: Path | None, verbose: bool
) -> Listing:
    """Rehearses rows of a paper, or the suite, and prints the list; returns it.

    Args:
        root: the repository.
        paper: a paper, or SUITE for the five.
        rows: of the paper, empty for all.
        scale: that is rehearsed.
        given: folder of real rows, None for made-up rows alone.
        replies: file of the replies of judges and teachers, None for drawn verdicts.
        verbose: show the stages' own logs.

    Raises:
        RewardsmithError: what cannot be rehearsed, before anything runs.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()  # of stand-ins, each written in a moment
    said = None if replies is None else read_replies(replies)
    rehearsal = write_tree(root, scale, given, replies)
    asked = dict.fromkeys(asked_papers(rehearsal.tree, paper, scale=rehearsal.name, full=True), tuple(rows))
    refuse_rows(rehearsal.tree, rehearsal.name, asked)
    words = [*flow_of(paper), "--scale", rehearsal.name, *(["--full"] if paper == SUITE else [])]
    words += ["--rows", *rows] if rows else []
    show_progress(verbose)
    with endpoints(said) as served:
        surroundings = environment(rehearsal.tree, served)
        status = run_module(words[0], words[1:], verbose=verbose, folder=rehearsal.tree, environment=surroundings)
    found = listing_of(rehearsal, asked)
    if status and not found.failed:
        found.failed["flow"] = f"the flow ended with status {status}; its log is above"
    file = found.write(rehearsal)
    print(file.read_text(encoding="utf-8"))
    print(f"list: {file.relative_to(root)}; report: {(rehearsal.tree / 'report').relative_to(root)}/index.html")
    return found
