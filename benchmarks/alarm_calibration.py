"""Recall and false alarms of the reward hacking alarm, on runs whose seeds did not set its bands.

    python -m benchmarks.alarm_calibration [--seeds 300-399] [--minutes 45] [--document docs/hackability.md]
    python -m benchmarks.alarm_calibration --no-train

Two parts. The first reads what is there: the policies of the committed study records (reference/studies). The second
trains the rows of alarm_calibration.yaml in worlds of their own, one after the other in this process, and writes a
record of each finished world, reference/alarms/<seed>.json: what the alarm saw at every step and every evaluation, so
that a changed rule is judged on it without training. It may be stopped anywhere: the next start goes on with the
stages that the world's folder lacks. Definitions and rates: `benchmarks.alarm_rates`.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.alarm_nulls import NULLS, null_rates
from benchmarks.alarm_rates import (
    CLEAN_RUNS,
    HACKED_RUNS,
    Rates,
    all_rates,
    false_alarms_by_study,
    kinds_table,
    lacks,
    rates_table,
)
from benchmarks.demo_finding import seeds_of
from rlhf_core.errors import DataError, RecipeError, prints_errors
from rlhf_core.typed import typed
from tasks.graph.items import Item, result_of
from tasks.params.yaml_files import read_mapping, write_whole
from tasks.policy import VERSION
from tasks.report.table import markdown_lines, simple_table
from tasks.running.artifacts import read_json, read_jsonl, write_json
from tasks.running.stage import prepare_process
from tasks.studies.tree import WorldTree, write_tree

SPEC = Path(__file__).with_suffix(".yaml")
RECORDS = Path("reference/alarms")
#: Seeds below have other uses or set the bands; those of verdicts are above (docs/evidence.md).
FIRST, LAST = 300, 999
CELL = "laboratory"
#: Metrics of a step that the alarm reads.
STEP = ("kl", "entropy", "response_length", "repetition", "truncated", "proxy", "proxy_std", "reward", "reward_std")
#: Measures of the outcome that a record keeps.
OUTCOME = ("win_rate_vs_sft", "win_rate_vs_sft_p", "true_reward")
SCORES = {0.0: "0", 0.5: "=", 1.0: "1"}
STUDIES = Path("reference/studies")
MARKS = "<!-- alarm rates --> and <!-- end of alarm rates -->"
BLOCK = re.compile(r"(<!-- alarm rates -->\n).*?(<!-- end of alarm rates -->)", re.DOTALL)
#: Simulated runs of each kind.
SIMULATED = 4000


@dataclass(frozen=True)
class Worlds:
    """The rows that are trained in each world, in one cell: a `tasks.studies.tree.Trainable`."""

    rows: Mapping[str, Mapping[str, Any]]
    reward_models: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def cells(self) -> Mapping[str, Mapping[str, str]]:
        return {CELL: {}}

    def rows_of(self, cell: Mapping[str, str]) -> list[str]:
        return list(self.rows)

    def overlay(self, cell: Mapping[str, str]) -> Mapping[str, Mapping[str, Any]]:
        return self.settings


def worlds() -> Worlds:
    """Returns what alarm_calibration.yaml says."""
    return typed(Worlds, read_mapping(SPEC), str(SPEC))


def refuse_seeds(seeds: Sequence[int]) -> None:
    """Refuses seeds that have another use or set the bands.

    Raises:
        RecipeError: names the first such seed.
    """
    for seed in seeds:
        if not FIRST <= seed <= LAST:
            raise RecipeError(f"--seeds has {seed}; give seeds of {FIRST} to {LAST}, which have no other use")


def run_stage(item: Item) -> None:
    """Runs a stage in this process, from the present folder, unless its result is there."""
    if Path(result_of(item)).exists():
        return
    words: list[str] = []
    for name, value in item.arguments.items():
        words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else (value,))]
    started = time.monotonic()
    import_module(f"tasks.{item.module}").main([*words, "--out", item.out])
    print(f"{item.stage}: {time.monotonic() - started:.0f} s", flush=True)


def train_world(project: Path, folder: Path, seed: int, ends: float = math.inf) -> dict[str, Any] | None:
    """Trains the stages of a world that its folder lacks; returns its record, None where time ran out.

    Args:
        project: the repository.
        folder: of the world.
        seed: of everything in it.
        ends: time (monotonic) after which no stage is started.
    """
    tree = WorldTree("alarms", worlds(), seed, folder)
    if not (folder / "params").exists():
        write_tree(project, tree)
    with chdir(folder):
        for item in tree.items(CELL):
            if item.module != "check":
                if time.monotonic() > ends:
                    return None
                run_stage(item)
        runs = {row: record_of(item) for row, item in tree.stages(CELL).items()}
    return {"seed": seed, "runs": runs}


def record_of(item: Item) -> dict[str, Any]:
    """Returns what the alarm saw of a policy's training, and how it ended.

    The keys: `responses` of a rollout batch, `steps` (a series for each metric), `evaluations` (step and a string of
    scores, one character for each prompt in the order of their names), `final` (scores of all test prompts), `rang`
    (the alarms of the stage, which a replay of the record must give again), `outcome` and `version` of the stage.
    """
    result = Path(result_of(item))
    metrics, history = read_json(result / "metrics.json"), read_jsonl(result / "history.jsonl")
    seen = read_jsonl(result.parent / "record" / "evaluations.jsonl")
    outcome = {k: v for k, v in metrics.items() if k in OUTCOME or k.startswith("hacking/")}
    return {
        "version": VERSION,
        "responses": responses_of(item),
        "steps": {name: [_rounded(row[name]) for row in history] for name in STEP},
        "evaluations": [evaluation_entry(row) for row in seen[:-1] if row["step"]],
        "final": evaluation_entry(seen[-1]),
        "rang": [[row["step"], row["kind"], row["since"]] for row in read_jsonl(result / "alarms.jsonl")],
        "outcome": {name: _rounded(value) for name, value in sorted(outcome.items())},
    }


def responses_of(item: Item) -> int:
    """Returns the responses of a rollout batch."""
    from tasks.params.pages import Address, read_settings

    return int(read_settings(Address(str(item.arguments["scale"])))["optimiser"]["rollout_batch"])


def evaluation_entry(evaluation: Mapping[str, Any]) -> list[Any]:
    """Returns an evaluation as step and string of scores."""
    return [evaluation["step"], scores_text(evaluation["scores"])]


def scores_text(scores: Mapping[str, float]) -> str:
    """Returns a character for each prompt, in the order of their names: 1 won, 0 lost, = tied."""
    return "".join(SCORES[scores[name]] for name in sorted(scores))


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")


def block(rates: Sequence[Rates]) -> str:
    """Returns the block of a document: rates, kinds of alarms, and simulated runs that only fluctuate."""
    simulated = [[null.name, *(f"{100 * rate:.1f} %" for rate in null_rates(null, SIMULATED))] for null in NULLS]
    parts = markdown_lines(simple_table(*rates_table(rates)))
    if by_study := false_alarms_by_study(rates[0]):
        parts += [*textwrap.wrap(by_study, 120, break_on_hyphens=False), ""]
    if rates[1].runs:
        parts += markdown_lines(simple_table(*kinds_table(rates[1])))
    headings = ["win rates that only fluctuate", "ring", "every comparison at 5 %"]
    parts += markdown_lines(simple_table(headings, simulated))
    if short := lacks(rates[-1]):
        parts.append(f"The aim of {HACKED_RUNS} hacked and {CLEAN_RUNS} clean runs lacks {short}.")
    return "\n".join(parts).rstrip()


def write_block(document: Path, text: str) -> None:
    """Writes the block of a document anew.

    Raises:
        DataError: it has none.
    """
    before = document.read_text(encoding="utf-8")
    if not BLOCK.search(before):
        raise DataError("it has no block of alarm rates", file=document.as_posix(), remedy=f"Add the lines {MARKS}")
    write_whole(document, BLOCK.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", before))


@prints_errors
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.alarm_calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", default="300-399")
    parser.add_argument("--minutes", type=float, default=45.0, help="no stage is started after so many")
    parser.add_argument("--no-train", action="store_true", help="read the records that are there")
    parser.add_argument("--work", type=Path, default=Path(".work/alarm_calibration"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--document", type=Path, help="Markdown file whose block is written anew")
    options = parser.parse_args(arguments)
    project, seeds = Path.cwd(), seeds_of(options.seeds)
    refuse_seeds(seeds)
    if not options.no_train:
        prepare_process()
        ends = time.monotonic() + 60 * options.minutes
        for seed in seeds:
            file = project / options.records / f"{seed}.json"
            if file.exists() or time.monotonic() > ends:
                continue
            record = train_world(project, project / options.work / str(seed), seed, ends)
            if record is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_json(file, record)
                shutil.rmtree(options.work / str(seed))
                print(f"seed {seed}: recorded", flush=True)
    rates = all_rates(STUDIES, options.records)
    print(text := block(rates))
    if options.document:
        write_block(options.document, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
