"""Recovery from killed processes in Prefect: runs that look alive, and slots that nobody holds."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

from flows.deployments import POOL
from flows.leases import FOLDER as LEASES
from flows.leases import release_dead
from flows.run_notes import HOST, process_of
from flows.servers.settings import Settings, slots_name
from flows.working_tree import end_group, end_orphans, tidy
from rlhf_core.errors import RewardsmithError
from tasks.running.exclusive import only_scheduler
from tasks.running.platform_state import FOLDER as PLATFORM
from tasks.running.platform_state import read_private

#: A run that is asked to end has this long for its stages.
ENDING_SECONDS = 60.0
#: A living process has noted a lease by then.
NOTING_SECONDS = 5.0


def _of_this_machine(run: Any, folder: Path) -> bool:
    """Returns whether the run's process was on this machine: noted here, tagged so at its start, or started by a worker
    here.

    One that had not begun has no place yet; this tree's worker had taken it, if it is of this platform's pool.
    """
    if (folder / f"{run.id}.json").exists():
        return True
    places = {tag.removeprefix(HOST) for tag in run.tags if tag.startswith(HOST)}
    if place := str(run.infrastructure_pid or "").rpartition(":")[0]:
        places.add(place)
    if not places:
        return run.state is not None and run.state.is_pending() and run.work_pool_name in (None, POOL)
    return places == {slots_name()}


def repair(settings: Settings, *, worker_alive: bool) -> list[str]:
    """Brings Prefect's states and limits in line with the processes that live; returns what was done, in words.

    1. A run that is running without a process becomes crashed; one that was being cancelled becomes cancelled, and its
       process ends (where a worker lives, the worker or the process itself does that, `flows/cancelling.py`).
    2. A run that a dead worker had taken but not started is scheduled again.
    3. Leases of dead processes are given back; where no run lives, leases that nobody noted and slots without a lease.
    4. Stages that a killed scheduler left are ended, and DVC's locks of dead processes removed.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas import StateType
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
    from prefect.states import Cancelled, Crashed, Scheduled

    folder = settings.folder / "flow-runs"
    done: list[str] = []
    living: list[str] = []
    kinds = [StateType.RUNNING, StateType.CANCELLING, StateType.PENDING]
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=kinds)))
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=wanted, limit=200):
            if not _of_this_machine(run, folder):
                continue
            process = process_of(folder, str(run.id))
            kind = run.state.type if run.state else None
            if kind == StateType.CANCELLING and not (worker_alive and process):
                if process is not None:
                    _end(process)
                client.set_flow_run_state(run.id, Cancelled(message="no process was left to end it"), force=True)
                done.append(f"run {run.name} is cancelled")
            elif process is not None:
                living.append(str(run.id))
            elif kind == StateType.RUNNING:
                client.set_flow_run_state(run.id, Crashed(message="its process was killed"), force=True)
                done.append(f"run {run.name} is crashed: its process was killed")
                (folder / f"{run.id}.json").unlink(missing_ok=True)
            elif kind == StateType.PENDING and not worker_alive:
                client.set_flow_run_state(run.id, Scheduled(message="its worker was killed"), force=True)
                done.append(f"run {run.name} is scheduled again: its worker was killed before it began")
        done += [f"slot(s) of {name} are free again" for name in release_dead(client, settings.folder)]
        if not living:
            done += _free_slots(client, settings.folder)
    for note in folder.glob("*.json"):
        if process_of(folder, note.stem) is None:
            done += _end_stages(Path(read_private(note).get("root", settings.root)))
            note.unlink(missing_ok=True)
    return done + _end_stages(settings.root)


def cancel_stranded(client: Any) -> list[str]:
    """Cancels runs that wait in a work pool which somebody removed: no worker would ever take them."""
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.states import Cancelled

    waiting = FlowRunFilter.model_validate({"state": {"type": {"any_": ["SCHEDULED"]}}})
    done = []
    for run in client.read_flow_runs(flow_run_filter=waiting, limit=200):
        if run.deployment_id is not None and run.work_pool_name is None:
            text = "its work pool had been removed; start it again"
            client.set_flow_run_state(run.id, Cancelled(message=text), force=True)
            done.append(f"run {run.name} is cancelled: {text}")
    return done


def _free_slots(client: Any, platform: Path) -> list[str]:
    """Frees slots of this machine that are held although no run lives: by no lease, which nothing else would free, or
    by one that its process was killed before it could note.

    Args:
        platform: the platform's folder; the server keeps its leases in `prefect-home` there.
    """
    from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate

    mine = {
        str(limit.id): limit.name
        for limit in client.read_global_concurrency_limits(limit=200)
        if limit.name.startswith(f"{slots_name()}-")
    }
    freed, held = [], set()
    for path in (platform / "prefect-home" / "concurrency_leases").glob("*.json"):
        names = [mine[str(i)] for i in read_private(path).get("resource_ids", ()) if str(i) in mine]
        noted = (platform / LEASES / path.name).exists()
        if not names or noted or _age(path) < NOTING_SECONDS:
            held |= set(names)
            continue
        client.release_concurrency_slots_with_lease(UUID(path.stem))
        freed += [f"slot(s) of {name} are free again" for name in names]
    for limit in client.read_global_concurrency_limits(limit=200):
        if str(limit.id) in mine and limit.active_slots and limit.name not in held:
            client.update_global_concurrency_limit(limit.name, GlobalConcurrencyLimitUpdate(active_slots=0))
            freed.append(f"{limit.active_slots} slot(s) of {limit.name} are free again")
    return freed


def _age(path: Path) -> float:
    """Returns seconds since a file was written; none for one that is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _end_stages(root: Path) -> list[str]:
    """Ends the stages of killed flows in a tree, and tidies the tree unless it is gone or a scheduler runs there."""
    if not root.is_dir():
        return []
    ended = end_orphans(root)
    try:
        with only_scheduler(root):
            return ended + tidy(root)
    except RewardsmithError:  # another scheduler
        return ended


def end_runs(root: Path) -> list[str]:
    """Ends the processes of all flow runs of a tree, and the stages of those that were killed; returns what was ended,
    in words. It needs no server."""
    folder = root / PLATFORM / "flow-runs"
    ended, trees = 0, {root}
    for note in folder.glob("*.json"):
        trees.add(Path(read_private(note).get("root", root)))
        process = process_of(folder, note.stem)
        if process is not None:
            _end(process)
            ended += 1
    said = [f"{ended} run(s)"] if ended else []
    return said + [line.removeprefix("ended ") for tree in sorted(trees) for line in end_orphans(tree)]


def _end(process: psutil.Process) -> None:
    """Asks a run's process to end with its stages; one that does not is killed with its group."""
    with suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
        process.terminate()
        try:
            process.wait(ENDING_SECONDS)
        except psutil.TimeoutExpired:
            end_group(process.pid)
            process.kill()  # it may lead no group
