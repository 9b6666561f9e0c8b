"""Kills workers, coordinator and Prefect server of a work pool at random and looks whether anything is lost.

    python -m tests.pool_chaos --kills 20 --seed 0

In each round, a coordinator and two workers, in clones of their own, run a small repository with stand-in stages from
nothing to its end. Machines are killed (SIGKILL to all their processes) while a stage runs, and started again by the
same commands. Afterwards every file of the results is compared with those of an uninterrupted `dvc repro`, and counted:
stages that ran again without a kill, files of the remote that are not what their names say, results that another clone
cannot take from the remote, processes left over.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from flows.working_tree import running_groups
from tests.small_repository import command
from tests.team import Server, Team, calls, differing, kill

TARGETS = ("worker", "coordinator", "server")
#: Kills of one round, which has seven stages.
ROUND_KILLS = 4
#: Seconds that a stand-in stage takes, and that a round may take.
STAGE_SECONDS, ROUND_SECONDS = "3", 3600.0


@dataclass
class Report:
    """Kills, and the problems found afterwards.

    Attributes:
        again: stages that ran a second time, since a kill cut them.
        restarts: workers and coordinators that ended by themselves after a kill, and were started again.
    """

    kills: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    stages: int = 0
    again: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        killed, ended = (
            ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
            for counts in (self.kills, self.restarts)
        )
        runs = f"{sum(self.kills.values())} kills ({killed}) in {self.rounds} runs of {self.stages} stages"
        return f"{runs}, {self.again} run again; ended by themselves: {ended}; {len(self.problems)} problem(s)"


class Machines:
    """Server, coordinator and workers of one round."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.team, self.report = Team(folder), report
        self.server = Server(folder)
        os.environ["PREFECT_API_URL"] = self.server.url
        self.main = self.team.clone("main")
        self.workers = {
            root: self.team.worker(root, STAGE_SECONDS) for root in map(self.team.clone, ("first", "second"))
        }
        self.coordinator = self.team.coordinator(self.main)

    def at_work(self) -> list[Path]:
        """Returns the workers' clones where a stage runs."""
        return [root for root in self.workers if running_groups(root)]

    def kill(self, target: str, rng: random.Random) -> None:
        """Kills a machine, and starts it again."""
        if target == "server":
            self.server.kill()
            self.server.start()
        elif target == "coordinator":
            kill(self.coordinator, self.main)
            self.coordinator = self.team.coordinator(self.main)
        else:
            root = rng.choice(self.at_work() or list(self.workers))
            kill(self.workers[root], root)
            self.workers[root] = self.team.worker(root, STAGE_SECONDS)
        self.report.kills[target] += 1

    def mend(self) -> bool:
        """Starts again what ended by itself; returns whether the run has come to its end."""
        for root, process in self.workers.items():
            if process.poll() is not None:
                self.report.restarts["worker"] += 1
                self.workers[root] = self.team.worker(root, STAGE_SECONDS)
        ended = self.coordinator.poll()
        if ended:
            self.report.restarts["coordinator"] += 1
            self.coordinator = self.team.coordinator(self.main)
        return ended == 0

    def close(self) -> None:
        """Ends every machine."""
        for root, process in {**self.workers, self.main: self.coordinator}.items():
            if process.poll() is None:
                kill(process, root)
        self.server.close()


def one_round(folder: Path, left: list[str], rng: random.Random, report: Report) -> None:
    """Runs from nothing to the end, with kills on the way.

    Args:
        left: the targets of the kills to come, from which this round takes its own.
    """
    machines, kills = Machines(folder, report), 0
    try:
        until = time.monotonic() + ROUND_SECONDS
        while not machines.mend():
            assert time.monotonic() < until, f"the run did not end: {machines.team.log(machines.main)[-2000:]}"
            if left and kills < ROUND_KILLS and machines.at_work():
                time.sleep(rng.uniform(0.0, 2.0))
                machines.kill(left.pop(), rng)
                kills += 1
            time.sleep(0.2)
        report.rounds += 1
        report.problems += faults(machines, kills, report)
    finally:
        machines.close()


def faults(machines: Machines, kills: int, report: Report) -> list[str]:
    """Returns what is wrong after a round."""
    team, main = machines.team, machines.main
    alone, taker = team.clone("alone"), team.clone("taker")
    command("dvc", "repro", "-q", root=alone)
    found = [f"{name} differs" for name in differing(alone, main)]
    ran = Counter(out for root in machines.workers for out in calls(root))
    again = sum(ran.values()) - len(ran)
    report.stages, report.again = len(calls(alone)), report.again + again
    if set(ran) != set(calls(alone)):
        found.append(f"workers ran {sorted(ran)}, and alone {sorted(calls(alone))}")
    if again > kills:
        found.append(f"{again} stages ran again after {kills} kill(s): {ran}")
    if calls(main):
        found.append(f"the coordinator ran {calls(main)}")
    found += [f"{name} on the remote is half-written" for name in team.half_written()]
    command("dvc", "repro", "-q", "--pull", root=taker)
    if calls(taker) or differing(alone, taker):
        found.append(f"the remote lacks results: another clone ran {calls(taker)}")
    if "up to date" not in (status := command("dvc", "status", root=main).stdout):
        found.append(f"DVC would run something again: {status}")
    found += [f"a stage is left in {root.name}" for root in machines.at_work()]
    return found


def chaos(folder: Path, kills: int, seed: int) -> Report:
    """Kills each of TARGETS equally often, in a random order, in rounds of at most ROUND_KILLS."""
    report, rng = Report(), random.Random(seed)
    left = [TARGETS[number % len(TARGETS)] for number in range(kills)]
    rng.shuffle(left)
    while left:
        place = folder / f"round-{report.rounds}"
        place.mkdir()
        one_round(place, left, rng, report)
        for line in (*report.problems, report.line()):
            print(line, flush=True)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pool_chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = chaos(Path(folder), options.kills, options.seed)
    print(f"{time.monotonic() - began:.0f} s")
    return int(bool(report.problems))


if __name__ == "__main__":
    sys.exit(main())
