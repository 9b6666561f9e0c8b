"""What every stage's command line shares: threads, errors and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.errors import NumericsError, RewardsmithError

if TYPE_CHECKING:
    import torch

#: Exit code for an error that the caller has to fix; a scheduler does not retry it.
USER_ERROR = 2


def argument_parser(module: str, description: str, **paths: str) -> argparse.ArgumentParser:
    """A parser with the stage's path arguments (name=help), `--out` and `--stage-version`.

    A help text that ends in '[optional]' makes its argument optional, '[optional, several]' a list that may be empty.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    for name, text in paths.items():
        flag = f"--{name.replace('_', '-')}"
        if text.endswith("[optional, several]"):
            parser.add_argument(flag, type=Path, nargs="+", default=[], help=text)
        else:
            parser.add_argument(flag, type=Path, required=not text.endswith("[optional]"), help=text)
    parser.add_argument("--out", type=Path, required=True, help="output directory: result/ and record/ go there")
    parser.add_argument("--stage-version", type=int, help="expected VERSION of the stage's code")
    return parser


def set_threads() -> int:
    """Threads of this process: REWARDSMITH_THREADS, else 1, so that results agree whoever starts a stage."""
    import torch

    threads = int(os.environ.get("REWARDSMITH_THREADS", "1"))
    torch.set_num_threads(threads)
    return threads


@contextmanager
def training_on(data: Path) -> Iterator[None]:
    """Puts the file whose rows are trained on in front of a numeric failure's message."""
    try:
        yield
    except NumericsError as error:
        raise NumericsError(f"file {data}: {error}") from None


def device() -> torch.device:
    """Where models live: a GPU when one was given by CUDA_VISIBLE_DEVICES, else the CPU.

    A scheduler names a stage's GPU there; a stage that declares none runs on the CPU wherever it runs.
    """
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1")
    return torch.device("cuda" if given and torch.cuda.is_available() else "cpu")


def run_stage(main: Callable[[list[str] | None], Any]) -> None:
    """Runs a stage's main function; an error of the caller's prints one line and exits with USER_ERROR."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        main(None)
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)
