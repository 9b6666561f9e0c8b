"""Kills workers, coordinator and Prefect server of a work pool at random and looks whether anything is lost.

    python -m tests.pool_chaos --kills 20 --seed 0

In each round, a coordinator and two workers, in clones of their own, run a small repository with stand-in stages from
nothing to its end. A machine is killed (SIGKILL to all its processes) while a stage runs, and started again by the same
command. Afterwards results are compared with those of an uninterrupted `dvc repro` and with the remote's.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

from tests.chaos import Report, main, stages
from tests.small_repository import command
from tests.team import Server, Team, calls, differing, kill

TARGETS = ("worker", "coordinator", "server")
#: Kills of one round, which has seven stages.
ROUND_KILLS = 4
#: Seconds that a stand-in stage takes, and that a round may take.
STAGE_SECONDS, ROUND_SECONDS = "3", 3600.0


class Machines:
    """Server, coordinator and workers of one round."""

    def __init__(self, folder: Path) -> None:
        self.team, self.server = Team(folder), Server(folder)
        os.environ["PREFECT_API_URL"] = self.server.url
        self.main = self.team.clone("main")
        clones = [self.team.clone(name) for name in ("first", "second")]
        self.workers = {root: self.team.worker(root, STAGE_SECONDS) for root in clones}
        self.coordinator = self.team.coordinator(self.main)

    def at_work(self) -> list[Path]:
        """Returns the workers' clones where a stage runs."""
        return [root for root in self.workers if stages(root)]

    def kill(self, target: str, rng: random.Random) -> None:
        """Kills a machine; `mend` starts it again."""
        if target == "server":
            self.server.kill()
            self.server.start()
        elif target == "coordinator":
            kill(self.coordinator, self.main)
        else:
            root = rng.choice(self.at_work() or list(self.workers))
            kill(self.workers[root], root)

    def mend(self) -> bool:
        """Starts again what has ended; returns whether the run has come to its end."""
        for root, process in self.workers.items():
            if process.poll() is not None:
                self.workers[root] = self.team.worker(root, STAGE_SECONDS)
        if ended := self.coordinator.poll():
            self.coordinator = self.team.coordinator(self.main)
        return ended == 0

    def close(self) -> None:
        """Ends every machine."""
        for root, process in {**self.workers, self.main: self.coordinator}.items():
            if process.poll() is None:
                kill(process, root)
        self.server.close()


def one_round(folder: Path, targets: list[str], rng: random.Random, report: Report) -> None:
    """Runs from nothing to the end, with a kill of each target on the way."""
    machines = Machines(folder)
    try:
        until, left = time.monotonic() + ROUND_SECONDS, [*targets]
        while not machines.mend():
            assert time.monotonic() < until, f"the run did not end: {machines.team.log(machines.main)[-2000:]}"
            if left and machines.at_work():
                time.sleep(rng.uniform(0.0, 2.0))
                report.kills[left[-1]] += 1
                machines.kill(left.pop(), rng)
            time.sleep(0.2)
        report.rounds += 1
        report.problems += faults(machines, len(targets) - len(left))
    finally:
        machines.close()


def faults(machines: Machines, kills: int) -> list[str]:
    """Returns what is wrong after a round."""
    team, main = machines.team, machines.main
    alone, taker = team.clone("alone"), team.clone("taker")
    command("dvc", "repro", "-q", root=alone)
    ran = Counter(out for root in machines.workers for out in calls(root))
    command("dvc", "repro", "-q", "--pull", root=taker)
    status = command("dvc", "status", root=main).stdout
    wrong = {
        f"workers ran {sorted(ran)}, and alone {sorted(calls(alone))}": set(ran) != set(calls(alone)),
        f"more stages ran again than {kills} kill(s) cut: {ran}": sum(ran.values()) - len(ran) > kills,
        f"the coordinator ran {calls(main)}": bool(calls(main)),
        f"the remote lacks results: another clone ran {calls(taker)}": bool(calls(taker) or differing(alone, taker)),
        f"DVC would run something again: {status}": "up to date" not in status,
        f"stages are left in {machines.at_work()}": bool(machines.at_work()),
    }
    found = [problem for problem, holds in wrong.items() if holds]
    found += [f"{name} differs" for name in differing(alone, main)]
    return found + [f"{name} on the remote is half-written" for name in team.half_written()]


def chaos(folder: Path, kills: int, seed: int) -> Report:
    """Kills each of TARGETS equally often, in a random order, in rounds of at most ROUND_KILLS."""
    report, rng = Report(), random.Random(seed)
    left = [TARGETS[number % len(TARGETS)] for number in range(kills)]
    rng.shuffle(left)
    while left:
        place = folder / f"round-{report.rounds}"
        place.mkdir()
        round_targets, left = left[:ROUND_KILLS], left[ROUND_KILLS:]
        one_round(place, round_targets, rng, report)
        print(*report.problems, report.line(), sep="\n", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main(chaos, __doc__))
