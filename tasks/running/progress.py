"""A progress bar for long work, of rank 0; plain lines when the output is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlhf_core import distributed

LINES = 5


@contextmanager
def progress(label: str, steps: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """Yields `advance(**figures)`, to be called once a step; `done` steps are behind a resumed run."""
    if distributed.rank():
        yield lambda **figures: None
        return
    if sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
        with Progress(*columns, TimeRemainingColumn()) as bar:
            task = bar.add_task(label, total=steps, completed=done, figures="")
            yield lambda **figures: bar.update(task, advance=1, figures=_text(figures))
        return
    started = time.monotonic()

    def advance(**figures: float) -> None:
        nonlocal done
        done += 1
        if done == steps or done % max(1, steps // LINES) == 0:
            print(f"{label}: {done}/{steps} {_text(figures)} {time.monotonic() - started:.0f} s", file=sys.stderr)

    yield advance


def _text(figures: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.3f}" for name, value in figures.items())
