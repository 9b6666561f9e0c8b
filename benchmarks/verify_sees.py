"""Faults that `rewardsmith verify` finds: plants each of `benchmarks.verify_faults` into a copy of finished stages.

    python -m benchmarks.verify_sees ROOT --work FOLDER [--only no_kl shaping] [--variation FILE] [--record FILE]

ROOT is a tree in which `make demo-all` has finished; it is only read. Tolerances are those of
reference/same_seed_variation.json, and the reference is ROOT itself. A fault is found if what its stages computed
deviates, or what their records say that they read; the record counts the first alone, too, and says which faults change
so few numbers that they look as another processor might. Digests of results, which would find every changed file, do
not count. Writes reference/verify_faults.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.fault_planting import Planting, commands, linked
from benchmarks.verify_faults import FAULTS, Fault
from tasks.commands.fingerprints import fingerprint
from tasks.commands.result_mismatches import result_mismatches
from tasks.commands.verify import FEW_COMPUTED, VARIATION, Compared, Deviation, Variation, compare, exit_status
from tasks.graph.names import DEMO_ALL
from tasks.params.settings import DEFAULT_SCALE
from tasks.running.artifacts import read_json, write_json

RECORD = Path("reference/verify_faults.json")


def planted(root: Path, work: Path, fault: Fault, variation: Variation) -> tuple[list[Compared], list[str]]:
    """Returns a fault's stages beside the finished ones, and their numbers that do not follow from their rows."""
    at = Planting(root, work, fault.stages)
    at.begin()
    fault.plant(at)
    at.seal()
    pairs = {
        stage: (fingerprint(at.finished(stage), root), fingerprint(at.copy(stage), root)) for stage in fault.stages
    }
    own = [f"{stage}: {words}" for stage in fault.stages for words in result_mismatches(at.copy(stage), root)]
    return [compare(stage, *pair, variation) for stage, pair in pairs.items()], own


def comparisons(root: Path, variation: Variation) -> int:
    """Returns how many comparisons `rewardsmith verify demo-all` makes."""
    there = (root / "results" / DEFAULT_SCALE / stage for stage in commands(root, (DEMO_ALL,)))
    found = (fingerprint(out, root) for out in there if (out / "result").exists())
    return sum(len(compare("", one, one, variation).distances) for one in found)


def detection_record(fault: Fault, compared: list[Compared], own: list[str], total: int) -> dict[str, Any]:
    """Returns what is recorded of a fault: deviations of results and of inputs, the farthest first.

    Args:
        total: comparisons of all headline rows.
    """
    deviations = [*(Deviation("", words) for words in own), *(found for one in compared for found in one.deviations)]
    results = [*own, *(f"{one.stage}: {words}" for one in compared for words in one.beyond)]
    inputs = [f"{one.stage}: {words}" for one in compared for words in one.other]
    counts = {"results": len(results), "inputs": len(inputs)}
    few = exit_status(deviations, total) == FEW_COMPUTED
    return {
        "fault": fault.says,
        "stages": list(fault.stages),
        **counts,
        "few_computed": few,
        "first": [*inputs[:1], *results[:2]],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify_sees", description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--variation", type=Path, default=VARIATION)
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args(arguments)
    variation: Variation = read_json(options.variation)["spread"]
    root = linked(options.root.resolve(), options.work.resolve() / "finished")
    total = comparisons(root, variation)
    found: Mapping[str, Any] = read_json(options.record)["faults"] if options.record.exists() else {}
    for name in options.only:
        compared, own = planted(root, options.work.resolve() / name, FAULTS[name], variation)
        found = {**found, name: detection_record(FAULTS[name], compared, own, total)}
        print(f"{name}: {found[name]['results']} of results, {found[name]['inputs']} of inputs", flush=True)
        by_results = sum(each["results"] > 0 for each in found.values())
        seen = sum(each["results"] + each["inputs"] > 0 for each in found.values())
        counts = {"planted": len(found), "found": seen, "found_by_results": by_results}
        write_json(options.record, {**counts, "faults": found})
    print(f"found {seen} of {len(found)}, {by_results} by results alone")


if __name__ == "__main__":
    main(sys.argv[1:])
