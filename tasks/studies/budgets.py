"""Budgets of a study's rows, from its records and its tuning: a comparison of unequal ones says so."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.origins import placed
from tasks.studies.tuned import TunedRow, tuned_rows
from tasks.studies.tuning_match import other_than_tuned, tuning_differences

#: Amounts that should be equal for both rows of a comparison.
EQUAL = ("updates", "rollouts")
#: The least training of a row that samples its rollouts while it trains: a policy that hardly moved shows nothing.
LEAST = {"updates": 60, "iterations": 30}
#: The ratio of the tokens that two rows learned from above which a comparison says so.
MOST_TOKENS = 1.5
#: Headings of a table of budgets, behind the row's name.
BUDGET_COLUMNS = (
    "trials", "updates", "rollouts", "tokens", "tuning, core-hours", "worlds, core-hours", "KL", "clip fraction",
    "explained variance",
)  # fmt: skip


@dataclass(frozen=True)
class RowBudget:
    """Budget of a row: means over worlds and cells, None where no record says.

    Attributes:
        row: its name.
        trials: of tuning, finished ones.
        updates: of the policy's weights.
        rollouts: responses sampled while training.
        tokens: of responses learned from.
        tuning_seconds: core-seconds of all trials.
        final_seconds: core-seconds of training and evaluation in all worlds and cells.
        kl: nats per response from the SFT model at the end.
        clip_fraction, explained_variance: means over the second half of training.
    """

    row: str
    trials: int
    updates: float | None
    rollouts: float | None
    tokens: float | None
    tuning_seconds: float
    final_seconds: float
    kl: float | None
    clip_fraction: float | None
    explained_variance: float | None

    @property
    def texts(self) -> list[str]:
        """Returns the budget as a table shows it, by `BUDGET_COLUMNS`; blank where it is not known."""
        shown = [
            *(("{:,.0f}", value) for value in (self.trials, self.updates, self.rollouts, self.tokens)),
            *(("{:.2f}", seconds / 3600) for seconds in (self.tuning_seconds, self.final_seconds)),
            *(("{:.3g}", value) for value in (self.kl, self.clip_fraction, self.explained_variance)),
        ]
        return ["" if value is None else form.format(value) for form, value in shown]


def core_hours(records: Iterable[Mapping[str, Any]]) -> float:
    """Returns core-hours of the stages behind some records, each stage once."""
    seconds = 0.0
    for record in records:
        parts = [part for cell in record["cells"].values() for part in (cell["rows"], cell["above"])]
        seconds += math.fsum(one["seconds"] for part in parts for one in part.values()) * record["machine"]["threads"]
    return seconds / 3600


def row_budgets(
    spec: StudySpec, records: Iterable[Mapping[str, Any]], tuning: Mapping[str, Any] | None
) -> dict[str, RowBudget]:
    """Returns the budget of each row of a study by name.

    Args:
        spec: the study.
        records: of its worlds.
        tuning: the record of its tuning, None without one.
    """
    tuned, known = _tuned(tuning), list(records)
    return {row: _budget(row, _runs(known, row), tuned.get(row)) for row in spec.rows}


def _tuned(tuning: Mapping[str, Any] | None) -> dict[str, TunedRow]:
    return {} if tuning is None else tuned_rows(tuning)


def _runs(records: Sequence[Mapping[str, Any]], row: str, cells: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Returns what every world and cell, of some cells if given, says of a row, with core-seconds."""
    found = []
    for record in records:
        for name, cell in record["cells"].items():
            if row in cell["rows"] and (cells is None or name in cells):
                run = cell["rows"][row]
                found.append({**run, "core_seconds": run["seconds"] * record["machine"]["threads"]})
    return found


def _budget(row: str, runs: Sequence[Mapping[str, Any]], tuned: TunedRow | None) -> RowBudget:
    def of(part: str, name: str) -> float | None:
        values = [run.get(part, {}).get(name) for run in runs]
        known = [float(value) for value in values if isinstance(value, int | float)]
        return fmean(known) if known else None

    return RowBudget(
        row=row,
        trials=0 if tuned is None else tuned.trials,
        updates=of("training", "updates"),
        rollouts=of("training", "rollouts"),
        tokens=of("training", "tokens"),
        tuning_seconds=0.0 if tuned is None else tuned.core_seconds,
        final_seconds=math.fsum(run["core_seconds"] for run in runs),
        kl=of("metrics", "kl"),
        clip_fraction=of("training", "clip_fraction"),
        explained_variance=of("training", "explained_variance"),
    )


def unequal(
    spec: StudySpec,
    hypothesis: Hypothesis,
    records: Iterable[Mapping[str, Any]],
    tuning: Mapping[str, Any] | None,
) -> str | None:
    """Returns how the budgets of the rows that a hypothesis compares differ, as 'unequal: ...'; None where they do not.

    Rows have equal budgets where as many trials over the same ranges were made of both, and both have as many updates
    and rollouts in every cell of every world that counts.
    """
    rows, known = (hypothesis.row, hypothesis.than or spec.main), list(records)
    found = [] if tuning is None else tuning_differences(rows, tuning, _tuned(tuning))
    places: dict[str, list[str]] = {}
    for record in known:
        for cell in spec.weighted_cells(hypothesis):
            for said in _differences(record, cell, rows):
                places.setdefault(said, []).append(f"in world {record['world']}, cell '{cell}'")
    found += [placed(said, where) for said, where in places.items()]
    return f"unequal: {'; '.join(found)}" if found else None


def not_as_tuned(
    spec: StudySpec, row: str, records: Iterable[Mapping[str, Any]], tuning: Mapping[str, Any] | None
) -> list[str]:
    """Returns how a row differs from what was tuned under its name, in words; none where nothing was."""
    tuned = _tuned(tuning)
    return other_than_tuned(spec, row, tuning, tuned[row], list(records)) if tuning and row in tuned else []


def untuned(spec: StudySpec, hypothesis: Hypothesis, tuning: Mapping[str, Any] | None) -> str | None:
    """Returns that neither row of a hypothesis was tuned, in words; None where one was."""
    rows, tuned = (hypothesis.row, hypothesis.than or spec.main), _tuned(tuning)
    return None if {*rows} & {*tuned} else f"neither '{rows[0]}' nor '{rows[1]}' was tuned"


def more_tokens(spec: StudySpec, hypothesis: Hypothesis, records: Iterable[Mapping[str, Any]]) -> str | None:
    """Returns which row of a hypothesis learned from far more tokens than the other one, in words; None where neither
    did, or where it is not known."""
    rows, cells, known = (hypothesis.row, hypothesis.than or spec.main), spec.weighted_cells(hypothesis), [*records]
    means = {row: _budget(row, _runs(known, row, cells), None).tokens or 0.0 for row in rows}
    most, least = sorted(rows, key=lambda row: -means[row])
    if not means[least] or means[most] <= MOST_TOKENS * means[least]:
        return None
    return f"'{most}' learned from {means[most] / means[least]:.1f} times as many tokens as '{least}'"


def _differences(record: Mapping[str, Any], cell: str, rows: tuple[str, str]) -> list[str]:
    found = []
    for name in EQUAL:
        values = [record["cells"][cell]["rows"][row].get("training", {}).get(name) for row in rows]
        if values[0] is None and values[1] is None:
            found.append(f"{name} of '{rows[0]}' and '{rows[1]}' are not known")
        elif values[0] != values[1]:
            said = [f"{_number(value)} of '{row}'" for row, value in zip(rows, values, strict=True)]
            found.append(f"{name} {' and '.join(said)}")
    return found


def _number(value: float | None) -> str:
    return "an unknown number" if value is None else f"{value:g}"


def little_training(row: str, records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns what a row lacks in training, in words: updates, or iterations of fresh rollouts."""
    found = []
    runs = [run["training"] for run in _runs(list(records), row) if run.get("training", {}).get("rollouts")]
    for name, least in LEAST.items():
        fewest = min((run[name] for run in runs), default=least)
        if fewest < least:
            found.append(f"'{row}' has {fewest:g} {name}; at least {least} are asked for")
    return found
