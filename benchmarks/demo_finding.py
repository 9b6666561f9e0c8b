"""The demo's finding in other worlds: how often it holds.

    python -m benchmarks.demo_finding --seeds 1001-1010 [--jobs 2] [--work .work/demo_finding] [--keep]

Trains the demo's rows at each seed, a world for each, by the stages and settings of the demo, and writes their measures
into reference/demo_finding.json. Six to seven minutes of one core a world. A world that the record has is not trained
again; an interrupted one goes on with the stages that its folder lacks. Seeds are spent ones, but not the demo's own:
docs/evidence.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from rlhf_core.errors import DataError, RecipeError, prints_errors
from tasks.graph.dvc_files import stage_version
from tasks.graph.items import Item
from tasks.graph.names import DEMO_PAPER
from tasks.graph.rows import load_rows
from tasks.graph.scale import Scale
from tasks.params.pages import read_settings
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.stages import run_settings
from tasks.report.hacking_runs import is_hacked, read_hacking_run
from tasks.running.artifacts import read_json, write_json

#: Seeds that no verdict may use: docs/evidence.md.
SPENT = (range(10), range(1000, 1101))
PLACE = f"results/{DEFAULT_SCALE}/"
RECORD = Path("reference/demo_finding.json")
#: Names of the rows that the finding is about: the plain reward, PAR's design, Segment's design.
PLAIN, BOUNDED, DENSE = "vanilla", "par", "segment"


def parts(measured: Mapping[str, Mapping[str, float]]) -> dict[str, bool]:
    """Returns which parts of the finding hold in one world; they were fixed before the demo first ran at its seeds.

    Args:
        measured: measures of `tasks.report.hacking_runs` by row.
    """
    plain, bounded, dense = (measured[row] for row in (PLAIN, BOUNDED, DENSE))
    return {
        "the plain reward is hacked": is_hacked(plain),
        "PAR ends above it": bounded["final"] > plain["final"],
        "Segment is hacked, too": is_hacked(dense),
    }


def settings_digest(root: Path) -> str:
    """Returns a digest of the settings and stage versions behind the rows that the finding is about."""
    scale, rows, found = Scale(root, DEFAULT_SCALE), load_rows(root, DEMO_PAPER), {}
    for row in (rows[name] for name in (PLAIN, BOUNDED, DENSE) if name in rows):
        for stage in scale.row(row, seed=0):  # every seed has the same settings
            settings = [read_settings(address.under(root)) for address in stage.addresses]
            found[stage.stage] = [stage_version(root, stage.module), settings]
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def seeds_of(text: str) -> list[int]:
    """Returns the seeds of '1001-1010' or '1001,1005'.

    Raises:
        RecipeError: not numbers.
    """
    try:
        bounds = [[int(end) for end in part.split("-")] for part in text.split(",")]
        return [seed for part in bounds for seed in range(part[0], part[-1] + 1)]
    except ValueError:
        raise RecipeError(f"--seeds is '{text}'; give numbers or ranges, such as 1001-1010") from None


def refuse_seeds(root: Path, seeds: list[int]) -> None:
    """Refuses seeds that are the demo's own or that other uses need.

    Raises:
        RecipeError: names the first such seed.
    """
    own = run_settings(root).demo[DEMO_PAPER].seeds
    for seed in seeds:
        if seed in own:
            raise RecipeError(f"--seeds has {seed}, a seed of the demo itself; give others, such as 1001-1010")
        if not any(seed in spent for spent in SPENT):
            raise RecipeError(f"--seeds has {seed}, which is not spent; give seeds of 0 to 9 or 1000 to 1100")


def world_items(root: Path, seed: int) -> Iterator[Item]:
    """Yields the stages of the demo's rows in one world, each once and after those that it reads."""
    scale, rows, seen = Scale(root, DEFAULT_SCALE), load_rows(root, DEMO_PAPER), set()
    for name in run_settings(root).demo[DEMO_PAPER].rows:
        for item in scale.row(rows[name], seed):
            if item.stage not in seen and item.module != "check":
                seen.add(item.stage)
                yield item


def train_world(root: Path, work: Path, seed: int) -> dict[str, dict[str, float]]:
    """Trains a world's stages that its folder lacks; returns the measures of each row.

    Raises:
        DataError: a stage failed, with the end of its output.
    """
    folder = work / str(seed)
    threads = {"OMP_NUM_THREADS": "1", "REWARDSMITH_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for item in world_items(root, seed):
        out = item.out.replace(PLACE, f"{folder}/")
        if (root / out / "result").exists():
            continue
        words = [sys.executable, "-m", f"tasks.{item.module}"]
        for name, value in item.arguments.items():
            values = value if isinstance(value, tuple) else (str(value),)
            words += [f"--{name.replace('_', '-')}", *(v.replace(PLACE, f"{folder}/") for v in values)]
        words += ["--out", out, "--stage-version", str(stage_version(root, item.module))]
        done = subprocess.run(words, cwd=root, env={**os.environ, **threads}, capture_output=True, text=True)
        if done.returncode:
            raise DataError(f"seed {seed}: {item.stage} failed: {done.stderr[-1000:]}")
        print(f"seed {seed}: {item.stage}", flush=True)
    found = {}
    for name in run_settings(root).demo[DEMO_PAPER].rows:
        run = read_hacking_run(root / folder / DEMO_PAPER / "policy" / name / str(seed), seed)
        if run is None:
            raise DataError(f"seed {seed}: row '{name}' has no result")
        found[name] = dict(run.measures)
    return found


def open_record(root: Path, path: Path) -> dict[str, Any]:
    """Returns the record, an empty one where there is none.

    Raises:
        DataError: it is of other settings than the present ones.
    """
    digest = settings_digest(root)
    record = dict(read_json(path)) if path.exists() else {"settings": digest, "seeds": {}}
    if record["settings"] != digest:
        raise DataError("it is of other settings or code", file=str(path), remedy="Delete it to check anew")
    return record


@prints_errors
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo_finding",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", default="1001-1010")
    parser.add_argument("--jobs", type=int, default=1, help="worlds at a time, a core each")
    parser.add_argument("--work", type=Path, default=Path(".work/demo_finding"))
    parser.add_argument("--keep", action="store_true", help="leave the worlds' results in the folder of work")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args(arguments)
    root, seeds, lock = Path(), seeds_of(options.seeds), Lock()
    refuse_seeds(root, seeds)
    record = open_record(root, options.record)

    def one(seed: int) -> None:
        measured = train_world(root, options.work, seed)
        with lock:
            record["seeds"][str(seed)] = measured
            write_json(options.record, record)
        held = parts(measured)
        print(f"seed {seed}: " + ", ".join(f"{part}: {'yes' if true else 'no'}" for part, true in held.items()))
        if not options.keep:
            shutil.rmtree(options.work / str(seed))

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, (seed for seed in seeds if str(seed) not in record["seeds"])))
    every = [all(parts(measured).values()) for measured in record["seeds"].values()]
    print(f"the whole finding holds in {sum(every)} of {len(every)} worlds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
