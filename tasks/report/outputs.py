"""Outputs of the stages of one scale: `results/<scale>/<group>/<kind>/<name>/<seed>/{result,record}/`.

Only `result/` is read here; `record/` says how a result was made and is read by the report page alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from rlhf_core.published.row_map import RecipeRow
from tasks.graph.results import stopped
from tasks.graph.stages import Stage
from tasks.graph.times import clock
from tasks.running.artifacts import read_jsonl, read_object
from tasks.running.doubtful_numbers import blank_numbers
from tasks.running.result_digests import exists_or_raise_if_lost


def provenance(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns commits (with a plus where files were changed), devices, days and time of records, as texts by name."""
    days = sorted(str(record["started"])[:10] for record in records if record.get("started"))
    commits = (f"{one['commit'][:12]}{'+' if one.get('dirty') else ''}" for one in records if one.get("commit"))
    devices = (str(one["device"]) for one in records if one.get("device"))
    named = {"commit": commits, "run on": devices, "date": days[:1] + days[-1:]}
    texts = {name: ", ".join(dict.fromkeys(found)) or "not recorded" for name, found in named.items()}
    return texts | {"time of the runs": clock(sum(float(one.get("seconds", 0)) for one in records))}


@dataclass(frozen=True)
class StageOutput:
    """One finished stage: a row (or reward model, ...) at one seed."""

    path: Path
    seed: int

    @property
    def result(self) -> Path:
        return self.path / "result"

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Returns the numbers of `metrics.json`, without judged ones that are blank."""
        found = read_object(self.result / "metrics.json")
        return {name: float(value) for name, value in found.items() if name not in self.blank}

    def rows(self, file: str) -> list[dict[str, Any]]:
        """Returns rows of a JSON Lines file of the result; empty where the stage wrote none."""
        path = self.result / file
        return read_jsonl(path) if exists_or_raise_if_lost(path) else []

    def values(self, file: str) -> dict[str, Any]:
        """Returns the content of a JSON file of the result; empty where the stage wrote none."""
        path = self.result / file
        return read_object(path) if exists_or_raise_if_lost(path) else {}

    @cached_property
    def judgements(self) -> list[dict[str, Any]]:
        return self.rows("judgements.jsonl")

    @cached_property
    def blank(self) -> dict[str, str]:
        """Returns the judged metrics that too few valid verdicts are behind, each with the reason."""
        return blank_numbers(self.result)

    @cached_property
    def generations(self) -> list[dict[str, Any]]:
        return self.rows("generations.jsonl")

    @cached_property
    def scores(self) -> dict[str, dict[str, Any]]:
        """Scores of each test answer by the holistic reward and by aspects, by prompt; empty where there are none."""
        return {str(row["id"]): row for row in self.rows("scores.jsonl")}

    @cached_property
    def judge_settings(self) -> dict[str, Any]:
        """Returns who compares this row's answers with another row's; empty where nobody does."""
        return self.values("judge.json")

    @cached_property
    def win_rate_facts(self) -> dict[str, dict[str, Any]]:
        """Returns reference, protocol, judge and counts of every win rate that a judge decided, by metric; empty where
        true rewards decided."""
        return self.values("win_rates.json")

    @cached_property
    def benchmarks(self) -> dict[str, dict[str, Any]]:
        """Returns the items and settings of published benchmarks that were measured."""
        return self.values("benchmarks.json")

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        return self.rows("history.jsonl")


#: Row name -> seed -> output.
Outputs = Mapping[str, Mapping[int, StageOutput]]


@dataclass(frozen=True)
class ResultTree:
    """The folder `results/<scale>/`: the outputs of all stages of one scale, for the seeds that are reported.

    Args:
        root: the scale's results, such as `results/testbed`.
        seeds: the seeds that are read; others are ignored.
        allowed: `result` folders that may be read, None for all: a pipeline stage reads what it declares.
    """

    root: Path
    seeds: tuple[int, ...]
    allowed: frozenset[str] | None = None
    _known: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise DataError(
                "results folder does not exist",
                file=str(self.root),
                remedy="Run a paper first, for example `rewardsmith run segment`",
            )
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise DataError(f"seeds are {list(self.seeds)}", field="seeds", remedy="Give each seed once")

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns what `make` returned when it was first asked for by a key: tables, figures and claims share it."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _may_read(self, result: Path) -> bool:
        return self.allowed is None or result.as_posix() in self.allowed

    def folder(self, group: str, kind: str, name: str, seed: int) -> Path:
        return self.root / group / kind / name / str(seed)

    def outputs(self, group: str, kind: str, name: str) -> dict[int, StageOutput]:
        """Returns the outputs of finished stages by seed; empty where nothing was run.

        Args:
            group: the paper or study, or 'shared'.
            kind: of the stage, such as `policy`.
            name: of the row, model or data set.
        """
        found = {}
        for seed in self.seeds:
            path = self.folder(group, kind, name, seed)
            if self._may_read(path / "result") and exists_or_raise_if_lost(path / "result" / "metrics.json"):
                found[seed] = self._known.setdefault(path, StageOutput(path, seed))
        return found

    def of(self, row: RecipeRow) -> dict[int, StageOutput]:
        return self.outputs(row.group, row.kind, row.name)

    def stopped(self, row: RecipeRow) -> dict[int, str]:
        """Returns the reason why a row's stage stopped, by seed; empty if it did not stop."""
        found = {}
        for seed in self.seeds:
            path = self.folder(row.group, row.kind, row.name, seed) / "result"
            if self._may_read(path) and (reason := stopped(path)) is not None:
                found[seed] = reason
        return found

    def data(self, name: str, seed: int) -> Path:
        """Returns the `result` folder of a data set at a seed: the seed's own draw, else the one that all seeds share.

        Items of another draw have other ids, so that a draw which is missing here is not taken for another.
        """
        shared = self.root / "shared" / "data" / name / "result"
        own = shared.parent / str(seed) / "result"
        return own if (own.exists() if self.allowed is None else self._may_read(own)) else shared

    def data_rows(self, data: str, seed: int, file: str) -> list[dict[str, Any]]:
        """Returns the rows of a file of a data set at a seed; empty if the file is missing."""
        path = self.data(data, seed) / file
        return read_jsonl(path) if exists_or_raise_if_lost(path) else []

    def stage_folders(self, rows: Iterable[RecipeRow]) -> Iterator[Path]:
        """Yields the `result/` folders of rows that were run or stopped: what the tables stage depends on."""
        for row in rows:
            for output in self.of(row).values():
                yield output.result
            for seed in self.stopped(row):
                yield self.folder(row.group, row.kind, row.name, seed) / "result"


def of_one_seed(runs: Mapping[str, Mapping[int, StageOutput]]) -> dict[str, StageOutput]:
    """Returns the outputs of several rows at the first seed that all of them have; empty if there is no such seed.

    Rows that were not run are left out. Rows of different seeds answer different prompts.
    """
    there = {name: by_seed for name, by_seed in runs.items() if by_seed}
    seeds = [seed for seed in next(iter(there.values()), {}) if all(seed in by_seed for by_seed in there.values())]
    return {name: by_seed[seeds[0]] for name, by_seed in there.items()} if seeds else {}


def overlap_in_words(facts: Mapping[str, Any]) -> list[str]:
    """Returns how many held-out rows of a data.json ask prompts that are trained on, a text for each set with any."""
    return [
        f"{count:,} of {facts['rows'][name]:,} rows of {name} ask prompts that are trained on"
        for name, count in facts.get("overlap", {}).items()
    ]


def result_in_words(root: Path, stage: Stage) -> str:
    """Returns what a stage's result says, for the line that a run prints about it; empty where it says nothing."""
    result = Path(stage.out) / "result"
    if stage.kind == "prepare":
        path = root / result / "data.json"
        facts = read_object(path) if exists_or_raise_if_lost(path) else {}
        files = facts.get("quarantine", [])
        bad, total = sum(file["quarantined"] for file in files), sum(file["total"] for file in files)
        found = [f"{bad:,} of {total:,} rows in quarantine: {result}/quarantine/"] if bad else []
        return "; ".join([*found, *overlap_in_words(facts)])
    path = root / result / "metrics.json"
    metrics = read_object(path) if exists_or_raise_if_lost(path) else {}
    if stage.kind == "reward_model" and "accuracy" in metrics:
        dropped = int(sum(metrics.get(f"{split}_pairs_dropped", 0) for split in ("train", "validation", "ood")))
        left_out = f"; {dropped:,} pairs left out, which the limits cut to equal or empty answers" if dropped else ""
        return f"right about {100 * metrics['accuracy']:.0f} % of held-out labels{left_out}"
    if stage.kind == "policy" and "win_rate_vs_sft" in metrics:
        kl = f", KL {metrics['kl']:.1f}" if "kl" in metrics else ""
        return f"win rate over SFT {metrics['win_rate_vs_sft']:.0f} %{kl}"
    return ""
