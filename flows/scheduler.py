"""The scheduler: asks DVC once which stages are stale, and runs them as Prefect tasks within the machine's slots.

1. A working tree has one scheduler. It first removes the leftovers of killed processes.
2. Each stale stage is one Prefect task, which calls DVC for the stage. Stages that read from a stale stage are stale.
3. A stage starts when its inputs are done and its cores, GPUs and memory are free. The stage with the longest chain of
   work after it goes first.
4. When a stage fails, the stages that read from it are skipped and the others continue. Only errors that may pass are
   retried.
"""

from __future__ import annotations

import queue
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.tasks import exponential_backoff

from flows.progress import Silent, progress
from flows.several_machines import Machines
from flows.shared_slots import POLL_SECONDS, machine_slots
from flows.slots import Grant, Slots
from flows.stage_run import RunningStages, StageDone, StageFailed, run_stage
from flows.working_tree import tidy
from rlhf_core.errors import RewardsmithError
from tasks.dvc.stale import read_state
from tasks.graph.expected import expected_seconds
from tasks.graph.stages import Stage, stopped_stages
from tasks.graph.times import RunTimes, stage_time
from tasks.running import machine
from tasks.running.exclusive import only_scheduler

RETRIES = 2
BACKOFF_SECONDS = 2.0


class RunFailed(RewardsmithError):
    """A run with failed stages; the message lists them."""


@dataclass
class RunSummary:
    """Outcomes of the requested stages; `stopped` has the reason of each stage whose result is a stop."""

    current: list[str] = field(default_factory=list)
    done: dict[str, StageDone] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    times: RunTimes = field(default_factory=lambda: RunTimes(machine.cores()))

    def line(self) -> str:
        """Returns the number of stages by outcome, and the number of stopped results, as one line."""
        counts: dict[str, int] = {"current": len(self.current)}
        for done in self.done.values():
            counts[done.outcome] = counts.get(done.outcome, 0) + 1
        counts |= {"failed": len(self.failed), "skipped": len(self.skipped), "of them stopped": len(self.stopped)}
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing to do"

    def rows(self) -> list[dict[str, Any]]:
        """Returns a table with a row for each stage that was not current."""
        ran = [{"stage": d.address, "outcome": d.outcome, "seconds": d.seconds} for d in self.done.values()]
        for row in ran:
            row |= {"why": f"stopped: {self.stopped[row['stage']]}"} if row["stage"] in self.stopped else {}
        failed = [{"stage": a, "outcome": "failed", "seconds": "", "why": why} for a, why in self.failed.items()]
        skipped = [{"stage": a, "outcome": "skipped", "seconds": "", "why": w} for a, w in self.skipped.items()]
        return [*ran, *failed, *skipped]


def can_retry(task_: Any, task_run: Any, state: Any) -> bool:
    """Returns whether Prefect retries a failed stage: only errors that may pass are retried."""
    error = getattr(state, "data", None)
    return isinstance(error, StageFailed) and error.retry


@task(
    name="stage",
    task_run_name="{address}",
    retries=RETRIES,
    retry_delay_seconds=exponential_backoff(backoff_factor=BACKOFF_SECONDS),
    retry_jitter_factor=0.2,
    retry_condition_fn=can_retry,
    persist_result=False,
    cache_policy=NO_CACHE,
)
def stage_task(
    root: Path,
    address: str,
    name: str,
    out: str,
    environment: Mapping[str, str],
    memory_gb: float,
    running: RunningStages,
    call: Sequence[str] = (),
) -> StageDone:
    """Runs one stage and streams its log into Prefect's log."""
    log = get_run_logger()
    return run_stage(
        root,
        address=address,
        name=name,
        out=out,
        environment=environment,
        memory_gb=memory_gb,
        running=running,
        log=log.info,
        call=call,
    )


def weights(stages: Mapping[str, Stage], expected: Mapping[str, float | None]) -> dict[str, float]:
    """Returns the seconds of the longest chain of stages from each stage on; an unknown time counts as 1."""
    below: dict[str, list[str]] = {address: [] for address in stages}
    for address, stage in stages.items():
        for above in stage.upstream:
            if above in below:
                below[above].append(address)
    longest: dict[str, float] = {}
    for address in reversed(list(stages)):
        own = expected.get(address) or 1.0
        longest[address] = own + max((longest[b] for b in below[address]), default=0.0)
    return longest


class _Run:
    """One pass over the stale stages."""

    def __init__(
        self,
        root: Path,
        stale: dict[str, Stage],
        slots: Slots,
        expected: Mapping[str, float | None],
        show: Silent,
        machines: Machines | None = None,
        summary: RunSummary | None = None,
    ) -> None:
        self.root, self.stale, self.slots, self.expected, self.show = root, stale, slots, expected, show
        self.machines = machines
        self.waiting = {a: {u for u in s.upstream if u in stale} for a, s in stale.items()}
        self.order = weights(stale, expected)
        self.futures: dict[str, PrefectFuture[StageDone]] = {}
        self.grants: dict[str, Grant] = {}
        self.began: dict[str, float] = {}
        self.finished: queue.Queue[str] = queue.Queue()
        self.running = RunningStages()
        self.summary = summary or RunSummary()
        self.bar: Any = None
        if stale:
            self.bar = create_progress_artifact(0.0, key="progress", description=f"{len(stale)} stages")

    def start_ready(self) -> bool:
        """Starts the stages that can start.

        Returns True if results came from another machine, since more stages may be ready then.
        """
        came = False
        ready = [a for a, left in self.waiting.items() if not left]
        for address in sorted(ready, key=lambda a: -self.order[a]):
            stage = self.stale[address]
            grant = self.slots.take(stage.needs)
            if grant is None and (self.machines is None or self.slots.hold(stage.needs)):
                continue
            whose = "ours" if self.machines is None else self.machines.take(address, able=grant is not None)
            if grant is not None and whose == "ours":
                self.start(address, grant)
            elif grant is not None:
                self.slots.give_back(grant)
            if whose == "known":
                del self.waiting[address]
                self.show.started(address)
                self.done(address, StageDone(address, "restored", 0.0))
                came = True
        return came

    def start(self, address: str, grant: Grant) -> None:
        stage = self.stale[address]
        del self.waiting[address]
        self.show.started(address)
        self.grants[address] = grant
        self.began[address] = self.summary.times.elapsed()
        call = self.machines.call(address) if self.machines else ()
        future = stage_task.submit(
            self.root, address, stage.file_name, stage.out, grant.environment(), grant.memory_gb, self.running, call
        )
        self.futures[address] = future
        future.add_done_callback(partial(self.ended, address))

    def done(self, address: str, done: StageDone) -> None:
        """Notes that a stage has its result, so that stages that read from it may start."""
        self.summary.done[address] = done
        for left in self.waiting.values():
            left.discard(address)
        count = len(self.summary.done) + len(self.summary.failed)
        get_run_logger().info("%s %s in %.1f s (%d of %d)", address, done.outcome, done.seconds, count, len(self.stale))
        self.show.finished(address, f"{done.outcome} in {done.seconds:.1f} s", self.seconds_left())

    def ended(self, address: str, _future: Any) -> None:
        self.finished.put(address)

    def finish_one(self, log: Any) -> None:
        """Waits for a stage to end, for at most the time after which slots of other runs may be free."""
        try:
            address = self.finished.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return
        grant = self.grants.pop(address)
        self.slots.give_back(grant)
        self.futures[address].wait()
        self._advance()
        state = self.futures[address].state
        result = state.result(raise_on_failure=False) if state.is_final() else None
        completed = result if state.is_completed() and isinstance(result, StageDone) else None
        self._note(address, grant, completed.outcome if completed else "failed")
        if self.machines is not None:
            self.machines.finished(address, done=completed is not None)
        if completed is not None:
            self.done(address, completed)
            return
        self.summary.failed[address] = str(result or state.message)
        log.error("%s", self.summary.failed[address])
        self.show.finished(address, f"FAILED, log in .work/logs/{self.stale[address].file_name}.log", None)
        for below in self._below(address):
            if self.waiting.pop(below, None) is not None:
                self.summary.skipped[below] = f"reads from {address}, which failed"

    def _note(self, address: str, grant: Grant, outcome: str) -> None:
        """Adds the times of a stage to the run's record of times."""
        times, began = self.summary.times, self.began[address]
        out, took = self.root / self.stale[address].out, times.elapsed() - began
        times.stages.append(
            stage_time(out, stage=address, outcome=outcome, cores=grant.cores, began=began, seconds=took)
        )

    def _advance(self) -> None:
        """Updates the progress bar in Prefect's pages."""
        if self.bar is not None:
            left = len(self.waiting) + len(self.grants)
            update_progress_artifact(self.bar, progress=100.0 * (1 - left / len(self.stale)))

    def seconds_left(self) -> float | None:
        """Returns the expected seconds until the end, None if the time of a stage is unknown."""
        ahead = [self.expected.get(a) for a in (*self.waiting, *self.grants) if self.stale[a].state == "run"]
        known = [seconds for seconds in ahead if seconds is not None]
        return sum(known) / self.slots.cores if known and len(known) == len(ahead) else None

    def _below(self, address: str) -> list[str]:
        reached = {address}
        for name, stage in self.stale.items():
            if reached & set(stage.upstream):
                reached.add(name)
        return [name for name in self.stale if name in reached and name != address]

    def run(self, log: Any) -> RunSummary:
        try:
            while self.waiting or self.grants:
                if not self.start_ready():
                    self.finish_one(log)
        finally:
            self.running.end_all()
            for future in self.futures.values():
                with suppress(TimeoutError):
                    future.wait(timeout=30)
        return self.summary


def run_stale(
    root: Path,
    files: Sequence[str],
    *,
    papers: Collection[str] = (),
    rows: Sequence[str] = (),
    seeds: Sequence[int] = (),
    remote: str = "",
    pull: bool = True,
) -> RunSummary:
    """Brings the chosen stages up to date. Call it inside a flow.

    Args:
        root: the repository.
        files: dvc.yaml files relative to the root.
        papers: limits the stages to these papers; empty for all papers in the files.
        rows, seeds: limits the stages to these rows and seeds and the stages that they need; empty for all.
        remote: the DVC remote through which several machines share the work; empty for this machine alone.
        pull: copies the results of other machines here at the end.

    Raises:
        RewardsmithError: another scheduler runs in this tree, a row or seed is unknown, or the remote cannot be used.
    """
    log, summary = get_run_logger(), RunSummary()
    with only_scheduler(root):
        for line in tidy(root):
            log.warning("%s", line)
        chosen = read_state(root, files, rows, seeds, papers)
        stale = {address: stage for address, stage in chosen.items() if stage.state != "current"}
        expected = expected_seconds(root, stale.values())
        slots = Slots(machine.cores(), machine.gpus(), machine.memory_gb())
        for address, stage in stale.items():
            if not remote:
                slots.check(address, stage.needs)
        with ExitStack() as held:
            machines = held.enter_context(closing(Machines(root, remote, chosen, log))) if remote else None
            if stale:
                slots = machine_slots(slots)
            held.enter_context(closing(slots))
            log.info(
                "%d of %d stages are stale; %d core(s), %d GPU(s)",
                len(stale),
                len(chosen),
                slots.cores,
                len(slots.gpus),
            )
            show = held.enter_context(progress(len(stale)))
            _Run(root, stale, slots, expected, show, machines, summary).run(log)
            if machines and pull:
                machines.bring([a for a, done in summary.done.items() if done.outcome == "restored"])
        summary.current = [a for a, stage in chosen.items() if stage.state == "current"]
        summary.stopped = stopped_stages(root, (chosen[a] for a in [*summary.current, *summary.done]))
    summary.times.write(root)
    if summary.rows():
        create_table_artifact(key="stages", table=summary.rows(), description=summary.line())
    return summary
