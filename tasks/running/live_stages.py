"""Stages that train now, read from the notes that they leave while they run (`tasks.running.live_history`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError
from rlhf_core.evaluation.hacking_alarm import Alarm
from rlhf_core.typed import typed
from tasks.graph.expected import LARGEST
from tasks.graph.stopping import stopped
from tasks.params.settings import DEFAULT_SCALE
from tasks.running.exclusive import is_held
from tasks.running.failures import failures_since
from tasks.running.live_history import ALARMS, EVALUATIONS, FILE, TRAINING, WORK, read_history
from tasks.running.platform_state import alive, read_private

#: Metrics that are shown: a name, the file that has it, and its keys there, of which the first known one counts.
SERIES = (
    ("reward", FILE, ("reward",)),
    ("win rate", EVALUATIONS, ("win_rate_vs_sft",)),
    ("KL", FILE, ("kl",)),
    ("length", FILE, ("response_length",)),
    ("loss", FILE, ("policy_loss", "loss")),
    ("accuracy", FILE, ("accuracy",)),
)
#: Further trees of a repository: those of recipes, and of the worlds of studies and their tuning.
TREES = (".work/recipes/*", ".work/studies/*/*", ".work/tuning/*/*")


@dataclass(frozen=True)
class LiveStage:
    """A stage that trains, or one whose process ended before its result was there.

    Attributes:
        folder: where it leaves its notes.
        tree: the repository that it belongs to.
        out: its output directory in it.
        steps: of the whole training.
        first: the step after which its process began.
        began: when that was; updated: when it last wrote a row. Both are seconds since the epoch.
        working: whether its process is alive.
        step: the last one of which it has a row.
        series: the values of each metric that it has, oldest first.
        alarms: those that rang.
    """

    folder: Path
    tree: Path
    out: str
    steps: int
    first: int
    began: float
    updated: float
    working: bool
    step: int
    series: dict[str, list[float]]
    alarms: tuple[Alarm, ...]

    @property
    def name(self) -> str:
        """Returns kind, paper/name and seed, `policy par/vanilla 0`; at another scale than the testbed's, that too."""
        parts = Path(self.out).parts
        if len(parts) != 6:
            return self.out
        _, scale, paper, kind, name, seed = parts
        return f"{kind} {paper}/{name} {seed}" + ("" if scale == DEFAULT_SCALE else f" ({scale})")

    @property
    def names(self) -> set[str]:
        """Returns the names by which it is asked for: paper, row, and paper/row."""
        parts = Path(self.out).parts
        return {parts[2], parts[4], f"{parts[2]}/{parts[4]}"} if len(parts) == 6 else {self.out}

    def seconds_left(self, now: float) -> float | None:
        """Returns the expected seconds of training that are left; None before the first row."""
        if self.step <= self.first:
            return None
        each = (self.updated - self.began) / (self.step - self.first)
        return max(0.0, each * (self.steps - self.step) - (now - self.updated))


def live_stages(root: Path) -> list[LiveStage]:
    """Returns the stages of a repository and its worlds that train, the one that began first, first."""
    found = (_read(tree, note.parent) for tree in trees(root) for note in (tree / WORK).glob(f"*/{TRAINING}"))
    return sorted((stage for stage in found if stage is not None), key=lambda stage: (stage.began, stage.name))


def trees(root: Path) -> Iterator[Path]:
    """Yields the trees in which a repository's stages run."""
    yield root
    for pattern in TREES:
        with suppress(FileNotFoundError):  # a world's tree is removed at its end
            yield from root.glob(f"{pattern}/")


def run_is_active(root: Path) -> bool:
    """Returns whether a run holds a repository or one of its worlds."""
    return any(is_held(tree / ".work" / "scheduler.lock") for tree in trees(root))


def _read(tree: Path, folder: Path) -> LiveStage | None:
    """Returns the stage of a folder of notes; None if the notes were removed meanwhile or are damaged."""
    note = read_private(folder / TRAINING)
    if not _is_path(tree, note.get("out")) or not all(
        _is_number(note.get(name)) for name in ("steps", "done", "began")
    ):
        return None
    rows = {name: read_history(folder / name) for name in (FILE, EVALUATIONS, ALARMS)}
    last = next((row["step"] for row in reversed(rows[FILE]) if _is_number(row.get("step"))), note["done"])
    try:
        updated = (folder / FILE).stat().st_mtime
    except FileNotFoundError:
        updated = note["began"]
    return LiveStage(
        folder=folder,
        tree=tree,
        out=note["out"],
        steps=note["steps"],
        first=note["done"],
        began=note["began"],
        updated=updated,
        working=alive(note),
        step=int(last),
        series=_series(rows),
        alarms=tuple(_alarms(rows[ALARMS])),
    )


def _is_path(tree: Path, value: Any) -> bool:
    """Returns whether a value may be a folder of a tree, made or not."""
    try:
        return isinstance(value, str) and (tree / value).exists() in (True, False)
    except OSError:  # a name that the system does not allow
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _alarms(rows: list[dict[str, Any]]) -> Iterator[Alarm]:
    """Yields the alarms of a file that is being written, without damaged rows."""
    for row in rows:
        with suppress(RewardsmithError):
            yield typed(Alarm, row, ALARMS)


def _series(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    made: dict[str, list[float]] = {}
    for name, file, keys in SERIES:
        key = next((key for key in keys if any(key in row for row in rows[file])), "")
        values = [float(row[key]) for row in rows[file] if isinstance(row.get(key), float) or _is_number(row.get(key))]
        if values:
            made[name] = values
    return made


def ending(stage: LiveStage) -> str:
    """Returns what became of a stage that trains no longer, in words."""
    if (failure := failures_since(stage.tree, stage.began).get(stage.out)) is not None:
        return f"failed: {failure.message}"
    if (stage.folder / TRAINING).exists():
        return "interrupted; the command that started it goes on from its last checkpoint"
    reason = stopped(stage.tree / stage.out / "result")
    return "done" if reason is None else f"stopped: {reason}"
