"""Random and mutated inputs at every door: never a traceback, never a changed score. `make fuzz` runs it.

    python -m tests.fuzz --seconds 120 --seed 0
    python -m tests.fuzz --seconds 30 --seed 0 --area checkpoints
    python -m tests.fuzz --seed 0 --area checkpoints --case 12

Prints cases and faults by area, and each fault with its input and the number of its case; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.errors import RewardsmithError
from tests.fuzz.checkpoints import checkpoints
from tests.fuzz.damage import Area
from tests.fuzz.models import models
from tests.fuzz.programs import programs
from tests.fuzz.results import results
from tests.fuzz.settings import pages, settings
from tests.fuzz.texts import data_rows, judge_replies, model_answers


def _of(area: Area) -> Callable[[Path], AbstractContextManager[Area]]:
    """Returns an area that needs no preparation."""

    @contextmanager
    def prepared(folder: Path) -> Iterator[Area]:
        yield area

    return prepared


#: Areas by name: each makes its files in a folder of its own, and gives its case.
AREAS: Mapping[str, Callable[[Path], AbstractContextManager[Area]]] = {
    "judge replies": _of(judge_replies),
    "model answers": _of(model_answers),
    "data rows": _of(data_rows),
    "settings": settings,
    "pages": pages,
    "checkpoints": checkpoints,
    "models": models,
    "results": results,
    "programs": programs,
}


@dataclass
class Found:
    """The cases of an area, those of them that were refused in words, and the faults."""

    cases: int = 0
    refused: int = 0
    faults: int = 0


def run(name: str, seconds: float, seed: int, only: int | None = None) -> Found:
    """Runs cases of an area for some seconds, not counting its preparation; at least one, or only one."""
    found, quiet = Found(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        with redirect_stdout(quiet):
            area = opened.enter_context(AREAS[name](Path(folder)))
        end, number = time.monotonic() + seconds, only or 1
        while not found.cases or (only is None and time.monotonic() < end):
            found.cases += 1
            try:
                with redirect_stdout(quiet), redirect_stderr(quiet):
                    area(random.Random(f"{seed} {name} {number}"))
            except RewardsmithError:
                found.refused += 1
            except Exception:
                found.faults += 1
                shown = traceback.format_exc().encode("ascii", "backslashreplace").decode()
                print(f"{name}: case {number} of seed {seed}:\n{shown}")
            number += 1
            quiet.truncate(0)
    print(f"{name}: {found.cases} cases, {found.refused} refused in words, {found.faults} faults", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", choices=AREAS, action="append", help="one area; again for several; all without it")
    parser.add_argument(
        "--case", type=int, help="the number of one case of each area, as a message about a fault has it"
    )
    options = parser.parse_args(arguments)
    areas = options.area or tuple(AREAS)
    found = [run(name, options.seconds / len(areas), options.seed, options.case) for name in areas]
    return int(any(area.faults for area in found))


if __name__ == "__main__":
    sys.exit(main())
