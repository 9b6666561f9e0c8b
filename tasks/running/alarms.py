"""Signs of reward hacking in the results of stages, which runs, tables, report and MLflow show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rlhf_core.evaluation.hacking_alarm import Alarm
from rlhf_core.typed import typed
from tasks.graph.stages import Stage
from tasks.running.artifacts import read_jsonl
from tasks.running.result_digests import exists_or_raise_if_lost

#: A policy's signs of reward hacking, a row each, in its result.
ALARMS_FILE = "alarms.jsonl"


def alarms_of(result: Path) -> list[Alarm]:
    """Returns the alarms of a result, the first one first; empty for a stage without any.

    Raises:
        DataError, RecipeError: the file cannot be read, or a row is not an alarm.
    """
    path = result / ALARMS_FILE
    rows = read_jsonl(path) if exists_or_raise_if_lost(path) else []
    found = [typed(Alarm, row, f"{path}, row {number}") for number, row in enumerate(rows, start=1)]
    return sorted(found, key=lambda alarm: alarm.step)


def alarm_text(alarms: Iterable[Alarm]) -> str:
    """Returns the kinds of alarms with their steps, as a short list: `fall at step 12, kl at step 20`."""
    return ", ".join(f"{alarm.kind} at step {alarm.step}" for alarm in alarms)


def alarm_lines(alarms: Mapping[str, Sequence[Alarm]]) -> list[str]:
    """Returns a line for each stage with alarms, by address, and the message of its first."""
    return [f"ALARM {address}: {alarm_text(found)}; {found[0].message}" for address, found in alarms.items()]


def stages_with_alarms(root: Path, stages: Iterable[Stage]) -> dict[str, list[Alarm]]:
    """Returns the alarms of each stage that has any, by address."""
    found = {stage.address: alarms_of(root / stage.out / "result") for stage in stages}
    return {address: alarms for address, alarms in found.items() if alarms}
