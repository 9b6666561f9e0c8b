"""Schedule of a run's stages on a described cluster, as its coordinator would start them.

A stage begins when its inputs are done and one machine has its GPUs and cores free; of those that can begin, the one
with the longest chain of work behind it goes first. Transfers and queues of the cluster's own are not in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.errors import RecipeError, hint
from rlhf_core.models.cost import PEAKS
from tasks.graph.expected import seconds_to_end
from tasks.graph.stages import Stage

#: `64xH100`, `64xH100/4` with four in each machine, `2xcpu`; several are separated by commas.
WORKERS = re.compile(r"(?P<count>[1-9]\d*)x(?P<kind>[A-Za-z]\w*)(?:/(?P<each>[1-9]\d*))?")
CPU = "cpu"
#: GPUs of one machine, where the description does not say.
GPUS_EACH = 8
#: Seconds that a flow run in a work pool takes beside its stage (docs/cluster.md).
FLOW_RUN_SECONDS = 5.3


@dataclass(frozen=True)
class Machine:
    """A machine of a described cluster.

    Attributes:
        kind: the GPU by a word of its name, such as H100; cpu for a machine without GPUs.
        gpus, cores: what stages can have; the cores of a machine with GPUs count as enough for its GPUs.
    """

    kind: str
    gpus: int
    cores: float

    def fits(self, needs: Mapping[str, float]) -> bool:
        """Returns whether the whole machine has what a stage needs; a stage takes at most all cores of a machine."""
        return needs.get("gpus", 0) <= self.gpus


def machines_of(text: str) -> list[Machine]:
    """Returns the machines of a description such as `64xH100`, `32xH100,32xA100/4` or `2xcpu`.

    Raises:
        RecipeError: text of another form, an unknown GPU, or GPUs that do not fill their machines.
    """
    found: list[Machine] = []
    for part in text.split(","):
        match = WORKERS.fullmatch(part.strip())
        if match is None:
            raise RecipeError(f"--workers: '{part.strip()}' is not of the form 64xH100, 64xH100/4 or 2xcpu")
        count, kind = int(match["count"]), match["kind"]
        if kind == CPU:
            each = int(match["each"] or 1)
        elif kind in PEAKS:
            each = int(match["each"] or min(GPUS_EACH, count))
        else:
            raise RecipeError(f"--workers: unknown GPU '{kind}'{hint(kind, [*PEAKS, CPU], more=len(PEAKS) + 1)}")
        if count % each:
            raise RecipeError(
                f"--workers: {count} {kind} do not fill machines of {each}; write {kind}/N with N of each"
            )
        one = Machine(CPU, 0, each) if kind == CPU else Machine(kind, each, float("inf"))
        found += [one] * (count // each)
    return found


@dataclass(frozen=True)
class SimulatedRun:
    """A simulated run.

    Attributes:
        seconds: from its beginning to its end.
        busy: seconds of a GPU, or of a core on machines without GPUs, that stages hold, in all.
        places: GPUs or cores of the cluster.
        critical: the longest chain of stages, in its order, and its seconds.
        ends: of each stage.
    """

    seconds: float
    busy: float
    places: float
    critical: tuple[str, ...]
    critical_seconds: float
    ends: Mapping[str, float]

    @property
    def idle_share(self) -> float:
        """Returns the share of the GPUs' or cores' time in which no stage holds them."""
        return 1 - self.busy / (self.seconds * self.places) if self.seconds else 0.0


def simulate(stages: Mapping[str, Stage], seconds: Mapping[str, float], machines: Sequence[Machine]) -> SimulatedRun:
    """Returns the schedule of the stages that run.

    Args:
        stages: in an order that runs; one that does not run takes no time and no machine.
        seconds: of each stage that runs, with what a flow run takes beside it.
        machines: of the cluster.

    Raises:
        RecipeError: a stage fits no machine.
    """
    run = {address: stage for address, stage in stages.items() if stage.state == "run"}
    for address, stage in run.items():
        if not any(machine.fits(stage.needs) for machine in machines):
            raise RecipeError(f"stage {address} needs {stage.needs['gpus']} GPU(s) of one machine: none has them")
    above = _above(stages, run)
    behind = seconds_to_end(run, seconds)
    free = [[float(machine.gpus), machine.cores] for machine in machines]
    waiting, ends, held = set(run), dict[str, float](), dict[str, tuple[int, float, float]]()
    now = busy = 0.0
    while waiting or held:
        done = ends.keys() - held.keys()
        ready = [address for address in waiting if above[address] <= done]
        for address in sorted(ready, key=lambda address: (-behind[address], address)):
            if (taken := _take(run[address].needs, machines, free)) is None:
                continue
            waiting.remove(address)
            held[address], ends[address] = taken, now + seconds[address]
            gpus, cores = taken[1:]
            busy += seconds[address] * (gpus if any(machine.gpus for machine in machines) else cores)
        now = min(ends[address] for address in held)
        for address in [address for address in held if ends[address] <= now]:
            place, gpus, cores = held.pop(address)
            free[place][0] += gpus
            free[place][1] += cores
    chain = _longest(run, above, behind, seconds)
    places = float(sum(machine.gpus for machine in machines)) or sum(machine.cores for machine in machines)
    return SimulatedRun(now, busy, places, chain, sum(seconds[address] for address in chain), ends)


def _above(stages: Mapping[str, Stage], run: Collection[str]) -> dict[str, set[str]]:
    """Returns the stages that run which each stage waits for, also through stages that do not run."""
    found: dict[str, set[str]] = {}
    for address, stage in stages.items():
        found[address] = set()
        for upstream in stage.upstream:
            found[address] |= {upstream} if upstream in run else found.get(upstream, set())
    return found


def _take(
    needs: Mapping[str, float], machines: Sequence[Machine], free: list[list[float]]
) -> tuple[int, float, float] | None:
    """Takes a stage's GPUs and cores of the fullest machine that has them; returns its place, GPUs and cores."""
    gpus = needs.get("gpus", 0)
    places = sorted(range(len(machines)), key=lambda place: (free[place][0], free[place][1]))
    for place in places:
        cores = min(needs.get("cores", 1), machines[place].cores)
        if free[place][0] >= gpus and free[place][1] >= cores:
            free[place][0] -= gpus
            free[place][1] -= cores
            return place, gpus, cores
    return None


def _longest(
    run: Mapping[str, Stage],
    above: Mapping[str, set[str]],
    behind: Mapping[str, float],
    seconds: Mapping[str, float],
) -> tuple[str, ...]:
    """Returns the longest chain of stages, in its order."""
    chain: list[str] = []
    candidates = set(run)
    while candidates:
        chain.append(max(candidates, key=lambda address: (behind[address], address)))
        candidates = {address for address in run if chain[-1] in above[address]}
    return tuple(chain)
