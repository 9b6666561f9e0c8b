"""Numbers of a result that are not what they seem: of policies with signs of reward hacking, and judged ones.

Runs, tables, report and MLflow show the signs of reward hacking. A judge that gives no readable verdict says nothing of
a pair. Where that is more than one pair in ten, the mean over the others is not the row's number: it is left blank,
with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.evaluation.hacking_alarm import Alarm
from rlhf_core.typed import typed
from tasks.running.artifacts import read_jsonl, read_object
from tasks.running.result_digests import exists_or_raise_if_lost

if TYPE_CHECKING:
    from tasks.graph.stages import Stage

#: A policy's signs of reward hacking, a row each, in its result.
ALARMS_FILE = "alarms.jsonl"
#: Smallest share of judged pairs with a valid verdict.
LEAST_VALID = 0.9
#: Endings of the metrics of a benchmark's verdicts; those of MT-Bench's grades begin with its name.
ENDINGS = ("_wr", "_wr_se", "_wr_lower", "_wr_upper", "_lc")
GRADES = ("mtbench", "mtbench_turn1", "mtbench_turn2")


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


def too_few_valid(valid: int, pairs: int) -> str | None:
    """Returns why no number is made of the verdicts of some pairs; None where enough are valid."""
    if valid >= LEAST_VALID * pairs:
        return None
    return f"{valid} of {pairs} judged pairs have a valid verdict, below {100 * LEAST_VALID:.0f} %"


def blank_numbers(result: Path) -> dict[str, str]:
    """Returns the judged metrics of a result that are blank, each with the reason."""
    found = dict(_by_verdicts(_rows(result / "judgements.jsonl")))
    metrics = read_object(result / "metrics.json") if exists_or_raise_if_lost(result / "metrics.json") else {}
    prompts = Counter(str(row["benchmark"]) for row in _rows(result / "choices.jsonl"))
    return found | dict(_by_counts(metrics, prompts, _rows(result / "checkpoints.jsonl")))


def _rows(file: Path) -> list[dict[str, Any]]:
    return read_jsonl(file) if exists_or_raise_if_lost(file) else []


def _is_valid(judgement: Mapping[str, Any]) -> bool:
    found = [judgement[name] for name in ("preference", "label", "value") if name in judgement]
    return bool(judgement["valid"]) and (not found or any(one is not None for one in found))


def _by_verdicts(judgements: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yields the metrics of benchmarks and of opponents."""
    for field in ("benchmark", "opponent"):
        verdicts: dict[str, list[bool]] = {}
        for row in judgements:
            if field in row:
                verdicts.setdefault(str(row[field]), []).append(_is_valid(row))
        for name, valid in verdicts.items():
            if (reason := too_few_valid(sum(valid), len(valid))) is not None:
                of_benchmark = GRADES if name == "mtbench" else tuple(f"{name}{ending}" for ending in ENDINGS)
                names = of_benchmark if field == "benchmark" else (f"second/{name}", f"second_se/{name}")
                yield from ((metric, reason) for metric in names)


def _by_counts(
    metrics: Mapping[str, Any], prompts: Mapping[str, int], checkpoints: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Yields the metrics whose number of invalid verdicts is a metric itself: of Best-of-N, and over the SFT model."""
    for name, invalid in metrics.items():
        judge, within, rest = name.partition("_invalid/")
        pairs = prompts.get(rest.partition("/")[0], 0) if within else 0
        if pairs and (reason := too_few_valid(pairs - int(invalid), pairs)) is not None:
            yield from ((f"{judge}{end}/{rest}", reason) for end in ("", "_se"))
    if checkpoints and "judged_unparsable" in metrics:
        pairs = int(checkpoints[-1]["n"])
        if (reason := too_few_valid(pairs - int(metrics["judged_unparsable"]), pairs)) is not None:
            yield "judged_win_rate_vs_sft", reason
