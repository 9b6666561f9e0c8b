"""The scheduler: asks DVC once which stages are stale, and runs them as Prefect tasks within the machine's slots.

1. A working tree has one scheduler. The scheduler first removes the leftovers of killed processes.
2. Each stale stage is one Prefect task, which takes its result from DVC's cache, or runs its command and commits what
   it made. Stages that read from a stale stage are stale.
3. A stage starts when its inputs are done and its cores, GPUs and memory are free. Of the stages that can start, the
   one that begins the longest chain of work goes first.
4. When a stage fails, the stages that read from it are skipped and the others continue. Only transient errors are
   retried.
"""

from __future__ import annotations

import os
import queue
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.futures import PrefectFuture
from prefect.states import Completed
from prefect.tasks import exponential_backoff

from flows.live_tracker import LiveTracker
from flows.slots import POLL_SECONDS, Grant, Slots, shared
from flows.stage_run import (
    Command,
    RunningStages,
    StageDone,
    StageFailed,
    noted_failure,
    run_stage,
    stage_environment,
    stage_log,
)
from flows.work_pool import WorkPool
from flows.working_tree import tidy
from rlhf_core.errors import RewardsmithError
from rlhf_core.evaluation.hacking_alarm import Alarm
from tasks.dvc.stage_results import StageResults
from tasks.dvc.stale import read_state
from tasks.graph.stages import Stage, modules_of_files_never_run, stopped_stages
from tasks.graph.times import expected_seconds, seconds_to_end
from tasks.report.outputs import result_in_words
from tasks.running.doubtful_numbers import alarm_lines, alarm_text, alarms_of, stages_with_alarms
from tasks.running.fork_server import ForkServer
from tasks.running.locks import only_scheduler

RETRIES = 2
BACKOFF_SECONDS = 2.0
#: Set by `rewardsmith run`: a line for each finished stage in place of Prefect's log on the terminal.
SWITCH = "REWARDSMITH_PROGRESS"
#: Texts of this process's runs that ended well, also where their server has gone.
ENDED_WELL: list[str] = []
#: Name of the completed state of a stage, or a run, with signs of reward hacking.
ALARM_STATE = "Alarm"
#: The Prefect event of a sign of reward hacking.
ALARM_EVENT = "rewardsmith.alarm"


class RunFailed(RewardsmithError):
    """A run with failed stages; the message lists them."""

    exit_status = 1


@dataclass
class RunSummary:
    """Outcomes of the requested stages, by address.

    Attributes:
        current: stages whose results were up to date before the run.
        done: ends of stages that got their result in the run.
        failed: errors.
        skipped: the failed stage that each one reads from.
        stopped: reasons of the results that are stops, of current and done stages.
        alarms: signs of reward hacking of current and done stages that have any.
        failed_seconds: the seconds that each failed stage took, and its cores.
    """

    current: list[str] = field(default_factory=list)
    done: dict[str, StageDone] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    alarms: dict[str, list[Alarm]] = field(default_factory=dict)
    failed_seconds: dict[str, tuple[float, int]] = field(default_factory=dict)

    def line(self) -> str:
        """Returns one line: the number of stages by outcome, then how many of the results are stops or have alarms."""
        counts = {"current": len(self.current)} | Counter(done.outcome for done in self.done.values())
        counts |= {"failed": len(self.failed), "skipped": len(self.skipped), "of them stopped": len(self.stopped)}
        counts["with an alarm"] = len(self.alarms)
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing to do"


def ring(root: Path, stage: Stage) -> list[Alarm]:
    """Returns the signs of reward hacking of a finished stage; logs them, and emits each as a Prefect event, whose
    resource is the stage and whose payload the alarm."""
    alarms = alarms_of(root / stage.out / "result")
    for alarm in alarms:
        get_run_logger().warning("alarm: %s: step %d: %s", stage.address, alarm.step, alarm.message)
        named = {"id": f"rewardsmith.stage.{stage.file_name}", "name": stage.address}
        resource = {f"prefect.resource.{key}": value for key, value in named.items()}
        emit_event(event=ALARM_EVENT, resource=resource, payload=asdict(alarm))
    return alarms


def completed_state(summary: RunSummary) -> State[str]:
    """Returns the state of a run that ended well; it is named Alarm where a result has signs of reward hacking."""
    text = "\n".join([summary.line(), *alarm_lines(summary.alarms)])
    ENDED_WELL.append(text)
    return Completed(name=ALARM_STATE if summary.alarms else None, message=summary.line(), data=text)


def can_retry(task_: Any, task_run: Any, state: Any) -> bool:
    """Returns whether Prefect retries a failed stage: only transient errors are retried."""
    error = getattr(state, "data", None)
    return isinstance(error, StageFailed) and error.retry


@task(
    name="stage",
    task_run_name="{stage.address}",
    retries=RETRIES,
    retry_delay_seconds=exponential_backoff(backoff_factor=BACKOFF_SECONDS),
    retry_jitter_factor=0.2,
    retry_condition_fn=can_retry,
    persist_result=False,
    cache_policy=NO_CACHE,
)
def stage_task(
    place: ThisMachine | WorkPool, stage: Stage, grant: Grant, running: RunningStages
) -> Any:  # returns a State; Prefect gives the caller its data, the StageDone
    """Runs one stage and streams its log into Prefect's log; its state is named Alarm where it has signs of hacking."""
    named = {"address": stage.address, "out": stage.out, "log": place.log_of(stage)}
    with noted_failure(place.root, stage.file_name, **named, running=running):
        done = place.run(stage, grant, running, get_run_logger())
    alarms = ring(place.root, stage)
    name, message = (ALARM_STATE, alarm_text(alarms)) if alarms else (None, done.outcome)
    return Completed(name=name, message=message, data=done)


class ThisMachine:
    """This machine as the place of a run's stages.

    Args:
        stale: the stages that run.
        server: forks their processes.

    Raises:
        RewardsmithError: a stage needs more GPUs than there are.
    """

    def __init__(self, root: Path, stale: Mapping[str, Stage], server: ForkServer) -> None:
        self.root, self.server, self.slots = root, server, Slots.of_machine()
        for address, stage in stale.items():
            self.slots.refuse_impossible(address, stage.needs)
        server.begin([stage.kind for stage in stale.values()])
        self.results = StageResults(root, stale)

    def __str__(self) -> str:
        return f"{self.slots.cores} core(s), {len(self.slots.gpus)} GPU(s)"

    def run(self, stage: Stage, grant: Grant, running: RunningStages, log: Any) -> StageDone:
        """Runs one stage within this machine's slots."""
        with shared(grant, cancelled=lambda: running.cancelled) as own:
            command = Command(stage.command, stage.address, stage.file_name, own.environment())
            return run_stage(self.root, command, self.results, running=running, log=log.info, server=self.server)

    def log_of(self, stage: Stage) -> str:
        """Returns where the log of a stage is."""
        return stage_log(stage.file_name)

    def close(self) -> None:
        self.results.close()


class _Run:
    """Run of the stale stages, from the first start to the last end."""

    def __init__(
        self,
        place: ThisMachine | WorkPool,
        stale: Mapping[str, Stage],
        expected: Mapping[str, float | None],
        summary: RunSummary,
        live: LiveTracker | None,
    ) -> None:
        self.place, self.stale, self.summary, self.live = place, stale, summary, live
        # each stage that has not started -> the stages that it waits for: the stale ones that it reads from
        self.waiting = {a: {u for u in s.upstream if u in stale} for a, s in stale.items()}
        self.priority = seconds_to_end(stale, expected)
        #: Of each stage that runs: its task, its slots and when it began.
        self.at_work: dict[str, tuple[PrefectFuture[StageDone], Grant, float]] = {}
        self.ended: queue.Queue[str] = queue.Queue()
        self.running = RunningStages()

    def run(self, log: Any) -> None:
        """Runs the stages until none waits or runs; an interrupted run ends its running stages."""
        try:
            while self.waiting or self.at_work:
                self.start_ready()
                with suppress(queue.Empty):  # looks again after a moment, since other runs may free slots
                    self.end(self.ended.get(timeout=POLL_SECONDS), log)
        finally:
            self.running.end_all()
            for future, *_ in self.at_work.values():
                with suppress(TimeoutError):
                    future.wait(timeout=30)

    def start_ready(self) -> None:
        """Starts the stages that can start, the one with the longest chain of work behind it first."""
        for address in sorted((a for a, left in self.waiting.items() if not left), key=lambda a: -self.priority[a]):
            stage = self.stale[address]
            if (grant := self.place.slots.take(stage.needs)) is None:
                continue
            del self.waiting[address]
            future = stage_task.submit(self.place, stage, grant, self.running)
            self.at_work[address] = future, grant, time.monotonic()
            if self.live is not None:
                self.live.write("start", stage)
            future.add_done_callback(partial(self.on_done, address))

    def on_done(self, address: str, _: Any) -> None:
        """Queues the end of a stage; Prefect may call it in another thread."""
        self.ended.put(address)

    def end(self, address: str, log: Any) -> None:
        """Notes the result or failure of a stage that ended."""
        (future, grant, began), stage = self.at_work.pop(address), self.stale[address]
        self.place.slots.give_back(grant)
        future.wait()
        result = future.state.result(raise_on_failure=False) if future.state.is_final() else None
        done = result if future.state.is_completed() and isinstance(result, StageDone) else None
        if self.live is not None:
            self.live.write("end", stage)
        if done is None:
            self.summary.failed[address] = str(result or future.state.message)
            self.summary.failed_seconds[address] = (round(time.monotonic() - began, 2), grant.cores)
            log.error("%s", self.summary.failed[address])
            self.skip_readers(address)
            self.show(address, f"FAILED, log: {self.place.log_of(stage)}")
            return
        self.summary.done[address] = done
        for left in self.waiting.values():
            left.discard(address)
        alarms = alarms_of(self.place.root / stage.out / "result")
        words = result_in_words(self.place.root, stage)
        text = f"{done.outcome} in {done.seconds:.1f} s"
        log.info("%s %s", address, text)
        rang = f", ALARM: {alarm_text(alarms)}" if alarms else ""
        self.show(address, f"{text}{f': {words}' if words else ''}{rang}")

    def skip_readers(self, address: str) -> None:
        """Skips what reads from a failed stage, or from what reads from it."""
        reached = {address}
        for reader, one in self.stale.items():  # in an order that runs
            if reached & {*one.upstream}:
                reached.add(reader)
                if self.waiting.pop(reader, None) is not None:
                    self.summary.skipped[reader] = f"reads from {address}, which failed"

    def show(self, address: str, text: str) -> None:
        """Prints a line on a stage that ended, for `rewardsmith run`, in place of Prefect's log."""
        if os.environ.get(SWITCH) == "true":
            count = len(self.summary.done) + len(self.summary.failed)
            print(f"[{count:>3}/{len(self.stale)}] {address} {text}", flush=True)


def run_stale(
    root: Path,
    files: Sequence[str],
    *,
    papers: Collection[str] = (),
    rows: Sequence[str] = (),
    seeds: Sequence[int] = (),
    pool: str = "",
    remote: str = "",
    live_paper: str = "",
) -> RunSummary:
    """Brings the chosen stages up to date. Call it inside a flow.

    Args:
        root: the repository.
        files: dvc.yaml files relative to the root.
        papers: limits the stages to these papers; empty for all papers in the files.
        rows, seeds: limits the stages to these rows and seeds and the stages that they need; empty for all.
        pool: the Prefect work pool that runs the stages; empty for this machine alone.
        remote: the DVC remote by which the pool's results come.
        live_paper: the paper in whose MLflow experiment stages that several papers share are shown while they
            train; empty shows no stage, and so does a pool, whose stages have their histories on other machines.

    Raises:
        RewardsmithError: another scheduler runs in this tree, a row or seed is unknown, or the remote cannot be used.
    """
    log, summary = get_run_logger(), RunSummary()
    server = ForkServer(root, stage_environment(root, Grant(1, (), 0.0).environment()))
    with only_scheduler(root):
        if not pool:
            server.begin(modules_of_files_never_run(root, files))  # imports while DVC looks
        for line in tidy(root):
            log.warning("%s", line)
        chosen = read_state(root, files, rows, seeds, papers)
        stale = {address: stage for address, stage in chosen.items() if stage.state != "current"}
        expected = expected_seconds(root, stale.values())
        with ExitStack() as held:
            place = WorkPool(root, pool, remote, chosen) if pool else ThisMachine(root, stale, server)
            held.callback(place.close)
            log.info("%d of %d stages are stale; %s", len(stale), len(chosen), place)
            live = LiveTracker(root, live_paper, log) if live_paper and not pool else None
            if live is not None:
                held.callback(live.close)
            _Run(place, stale, expected, summary, live).run(log)
        summary.current = [a for a, stage in chosen.items() if stage.state == "current"]
        ended = [chosen[address] for address in [*summary.current, *summary.done]]
        summary.stopped, summary.alarms = stopped_stages(root, ended), stages_with_alarms(root, ended)
    return summary
