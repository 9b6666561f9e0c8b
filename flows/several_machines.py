"""Several machines on one run: each has a clone and the same flow, and takes stages that no other machine runs.

They share two things, and none of them leads:

- a Prefect server (`PREFECT_API_URL`): a running stage is a lease there, which ends with the process that holds it;
- a DVC remote (`tasks/dvc/remote.py`): a stage whose result is there is taken over without running.

A stage is held from before the remote is asked until its result is pushed, so no two machines run it. Where that fails
(a machine that was cut off for longer than its lease), the stage runs twice with the same result.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import httpx

from flows.leases import Leases
from flows.run_notes import add_tags
from rlhf_core.errors import RewardsmithError
from tasks.dvc.remote import Remote, RemoteFailed
from tasks.graph.stages import Stage
from tasks.running.commit import changed_since, commit_of, listed

#: Decisions on a stage: run it here, use the result on the remote, or wait and ask again.
Decision = Literal["run", "use result", "wait"]
#: Seconds between looks at a stage that another machine runs.
LOOK_SECONDS = 5.0
#: Seconds that a machine without a running stage waits for a remote that does not answer.
LOST_SECONDS = 600.0
#: What the names of the limits begin with; the rest is the key of the stage's result.
LIMIT = "stage"
#: What the tag of a flow run begins with that names its machine.
MACHINE = "machine:"
#: What the limit of a run's own lease begins with, which its process holds while it lives; the rest is the run's id.
ALIVE = "alive"


def check_clean(root: Path) -> str:
    """Returns the commit of a clone whose code and parameters are committed.

    Raises:
        RewardsmithError: they are not, so other machines would run something else.
    """
    commit = commit_of(root)
    changed = changed_since(root, commit) if commit else ["no commit"]
    if changed:
        raise RewardsmithError(
            f"this clone differs from its commit in {listed(changed)}: other machines would run something else under "
            "the same name. Commit (and push, and pull there), or run without --remote"
        )
    return commit


def check_server() -> None:
    """Refuses the temporary server that a run without a platform starts for itself.

    Raises:
        RewardsmithError: PREFECT_API_URL is not set.
    """
    from prefect.settings import PREFECT_API_URL

    if not PREFECT_API_URL.value():
        raise RewardsmithError(
            "several machines need one Prefect server, which shows each machine what the others run: set "
            "PREFECT_API_URL and PREFECT_API_AUTH_STRING to it (`rewardsmith up` starts one, docs/cluster.md)"
        )


class Machines:
    """This machine among those that share a run.

    Args:
        root: the clone.
        name: the DVC remote that all share.
        stages: every stage of the run, current or not, in an order that runs.

    Raises:
        RewardsmithError: no common server, a clone that is not committed, a remote that is unknown or not writable.
    """

    def __init__(self, root: Path, name: str, stages: Mapping[str, Stage], log: Any) -> None:
        check_server()
        self.root, self.stages, self.log = root, stages, log
        self.commit = check_clean(root)
        logging.getLogger("dvc").setLevel(logging.WARNING)
        self.remote = Remote(root, name)
        try:
            self.remote.check()
            self.remote.load(stages)
            self.remote.push([a for a, s in stages.items() if s.state == "current"])
        except BaseException:
            self.remote.close()
            raise
        self.leases = Leases()
        self._held: dict[str, tuple[str, UUID]] = {}
        self._next_look: dict[str, float] = {}
        self._said: set[str] = set()
        self._lost_since: float | None = None
        self._own: tuple[str, UUID] | None = None
        self._sign()

    def close(self) -> None:
        """Releases this machine's stages to other machines."""
        try:
            self.remote.write_locks()
            with suppress(httpx.HTTPError):  # a server that is gone ends no run that is done
                crash_dead_runs(self.leases.client)
                if self._own is not None:
                    self._give_up(*self._own)
        finally:
            self.remote.close()
            self.leases.close()

    def shared_call(self, address: str) -> list[str]:
        """Returns the module that runs a stage for all machines, with its arguments."""
        upstream = self.stages[address].upstream
        call = ["tasks.dvc.shared_stage", address, "--remote", self.remote.name]
        return [*call, "--commit", self.commit, *(["--upstream", *upstream] if upstream else [])]

    def take(self, address: str, *, able: bool) -> Decision:
        """Decides what this machine does with a stage whose inputs are known.

        Args:
            able: whether this machine can run the stage now; otherwise it only asks the remote for the result.

        Returns:
            `run`: this machine now holds the stage and runs it.
            `use result`: the result is on the remote.
            `wait`: another machine runs the stage, this machine cannot, or the remote does not answer; ask again.

        Raises:
            RemoteFailed: the remote has not answered for LOST_SECONDS, and no stage runs here.
        """
        if time.monotonic() < self._next_look.get(address, 0.0):
            return "wait"
        self._next_look[address] = time.monotonic() + LOOK_SECONDS
        known = self._learn(address)
        if known is None:
            return "wait"
        if known:
            return "use result"
        if not able:
            return "wait"
        limit = f"{LIMIT}-{self.remote.key(address)[:32]}"
        lease = self._lease(limit)
        if lease is None:
            self._say_where(address)
            return "wait"
        known = self._learn(address)  # another machine may have pushed it since the first look
        if known is None:
            self.leases.give_back(lease)
            return "wait"
        if known:
            self._give_up(limit, lease)
            return "use result"
        self._held[address] = limit, lease
        self._next_look.pop(address)
        self.remote.write_locks()
        return "run"

    def _learn(self, address: str) -> bool | None:
        """Returns whether the remote has a stage's result; None while it cannot be asked, which is said once."""
        try:
            known = self.remote.learn(address)
        except RemoteFailed as error:
            if self._lost_since is None:
                self._lost_since = time.monotonic()
                self.log.warning("%s. Running stages continue; no other starts before it answers", error)
            elif not self._held and time.monotonic() - self._lost_since > LOST_SECONDS:
                raise
            return None
        if self._lost_since is not None:
            self._lost_since = None
            self.log.info("remote '%s' answers again", self.remote.name)
        return known

    def finished(self, address: str, *, done: bool) -> None:
        """Gives up a stage that this machine held; `done` when its result is pushed."""
        limit, lease = self._held.pop(address)
        if done:
            self.remote.note(address)
            self._give_up(limit, lease)
        else:
            self.leases.give_back(lease)

    def bring(self, addresses: list[str]) -> None:
        """Brings results into this clone, whichever machine made them."""
        self.remote.write_locks()
        self.remote.pull(addresses)

    def _lease(self, limit: str) -> UUID | None:
        from prefect.exceptions import ObjectAlreadyExists

        with suppress(ObjectAlreadyExists):
            self.leases.client.upsert_global_concurrency_limit_by_name(limit, 1)
        try:
            return self.leases.take(limit)
        except LookupError:  # its last holder has just removed it
            return None

    def _give_up(self, limit: str, lease: UUID) -> None:
        """Gives a lease back with its limit, which nobody needs once the result is on the remote."""
        from prefect.exceptions import ObjectNotFound

        self.leases.give_back(lease)
        with suppress(ObjectNotFound):
            self.leases.client.delete_global_concurrency_limit_by_name(limit)

    def _sign(self) -> None:
        """Tags the flow run with its place, by which other machines name it, and takes the lease that tells its death.

        A run of the same place that looks alive is dead, since a clone has one scheduler: it becomes crashed. So does
        one on another machine that no longer holds its lease.
        """
        from prefect.client.schemas.filters import FlowRunFilter
        from prefect.runtime import flow_run
        from prefect.states import Crashed

        place = [f"{MACHINE}{socket.gethostname()}", f"clone:{self.root}"]
        alive = FlowRunFilter.model_validate({"tags": {"all_": place}, "state": {"type": {"any_": ["RUNNING"]}}})
        for run in self.leases.client.read_flow_runs(flow_run_filter=alive):
            if str(run.id) != flow_run.id:
                self.leases.client.set_flow_run_state(run.id, Crashed(message="its process was killed"), force=True)
        crash_dead_runs(self.leases.client)
        if flow_run.id:
            limit = f"{ALIVE}-{flow_run.id}"
            lease = self._lease(limit)  # before the tag: a tagged run without a lease is dead
            self._own = (limit, lease) if lease is not None else None
            add_tags(UUID(flow_run.id), [*place, f"commit:{self.commit[:10]}"])

    def _say_where(self, address: str) -> None:
        """Says once which machine runs a stage."""
        if address not in self._said:
            self._said.add(address)
            self.log.info(
                "%s is running %s; its result will come from remote '%s'",
                address,
                at_work(self.leases.client, address),
                self.remote.name,
            )


def crash_dead_runs(client: Any, living: Collection[str] = ()) -> list[str]:
    """Makes runs crashed (those that were being cancelled: cancelled) that share their work and whose machine died:
    nobody holds their lease; returns their names.

    A machine that was cut off for longer than its lease looks dead, too; its results count all the same, and at its end
    its run is what it has become.

    Args:
        living: ids of runs whose process is known to live.
    """
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Cancelled, Crashed

    alive = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "CANCELLING"]}}})
    dead = []
    for run in client.read_flow_runs(flow_run_filter=alive, limit=200):
        if str(run.id) in living or not any(tag.startswith(MACHINE) for tag in run.tags):
            continue
        name = f"{ALIVE}-{run.id}"
        try:
            held = client.read_global_concurrency_limit_by_name(name).active_slots
        except ObjectNotFound:  # it is about to end
            continue
        if not held:
            message = "its machine died, or was cut off for longer than its lease"
            end = Cancelled if run.state.is_cancelling() else Crashed
            client.set_flow_run_state(run.id, end(message=message), force=True)
            with suppress(ObjectNotFound):
                client.delete_global_concurrency_limit_by_name(name)
            dead.append(str(run.name))
    return dead


def at_work(client: Any, address: str) -> str:
    """Names the machine that runs a stage, as Prefect knows it."""
    from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter

    wanted = TaskRunFilter.model_validate({"name": {"any_": [address]}, "state": {"type": {"any_": ["RUNNING"]}}})
    for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(), task_run_filter=wanted, limit=5):
        tags = dict(tag.split(":", 1) for tag in run.tags if ":" in tag)
        if "machine" in tags:
            return f"on {tags['machine']} in {tags['clone']} (run {run.name}, commit {tags['commit']})"
    return "on another machine"
