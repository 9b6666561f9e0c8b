"""The flow of one stage, which a worker of a work pool runs for a coordinator (`flows/work_pool.py`).

The stage runs in the worker's clone, which REWARDSMITH_TREE names, within the machine's slots. Its inputs come from the
DVC remote and its result goes there.

All machines of a run have the same code: one commit, nothing uncommitted, the same versions. A worker serves the queues
of its code in the work pool, one for each number of GPUs that it can give; a run's stages go to the queues of the run's
code. So no stage begins on a machine that would compute something else.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.flow_runs import PASSING
from flows.slots import Grant, Slots, shared
from flows.stage_run import Command, RunningStages, StageFailed, run_stage
from flows.working_tree import end_orphans
from rlhf_core.errors import RewardsmithError
from tasks.dvc.remote import RemoteFailed
from tasks.dvc.stage_results import StageResults
from tasks.graph import dvc_files as graph
from tasks.running import machine
from tasks.running.artifacts import RECORDED_PACKAGES
from tasks.running.commit import changed_since, commit_of, listed
from tasks.running.exclusive import in_turn

#: Names the clone of a machine's worker, in its environment; the working directory without it, as in containers.
TREE = "REWARDSMITH_TREE"


def require_prefect_server() -> None:
    """Refuses the temporary server that a run without a platform starts for itself.

    Raises:
        RewardsmithError: PREFECT_API_URL is not set.
    """
    from prefect.settings import PREFECT_API_URL

    if not PREFECT_API_URL.value():
        raise RewardsmithError(
            "a work pool needs a Prefect server that all its machines reach: set PREFECT_API_URL and "
            "PREFECT_API_AUTH_STRING to it (`rewardsmith up` starts one, docs/cluster.md)"
        )


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
            "the same name. Commit (and push, and pull there), or run without --pool"
        )
    return commit


@dataclass(frozen=True)
class SameCode:
    """Commit and versions that all machines of a run have.

    Attributes:
        commit: of the clone.
        versions: of Python and of the packages that a result's record names.
    """

    commit: str
    versions: dict[str, str]

    @classmethod
    def of(cls, root: Path) -> SameCode:
        """Returns what this machine has; refuses a clone with uncommitted changes (see `check_clean`)."""
        versions = {name: metadata.version(name) for name in RECORDED_PACKAGES}
        return cls(check_clean(root), {"python": platform.python_version(), **versions})

    def words(self) -> str:
        """Returns the commit and versions as one line."""
        return f"commit {self.commit[:10]}, " + ", ".join(f"{name} {one}" for name, one in self.versions.items())

    def queue(self, gpus: int) -> str:
        """Returns the name of the work queue for stages of this code that need so many GPUs."""
        digest = hashlib.sha256(json.dumps(self.versions, sort_keys=True).encode()).hexdigest()
        return f"{self.commit[:10]}-{digest[:6]}-{gpus}-gpus"

    def check(self, other: dict[str, Any]) -> None:
        """Refuses a run whose code is not this machine's.

        Args:
            other: the run's, as `asdict` makes it.

        Raises:
            RewardsmithError: another commit or other versions.
        """
        if other != asdict(self):
            raise RewardsmithError(
                f"the run is at {SameCode(**other).words()}, and its worker at {self.words()}. Bring the worker's "
                "clone and environment to the run's (`git checkout`, constraints.txt) and start the worker again"
            )


@contextmanager
def granted(needs: Mapping[str, float]) -> Iterator[Grant]:
    """Holds a stage's cores, GPUs and memory of this machine, which it waits for.

    Raises:
        RewardsmithError: the machine never has them.
    """
    own = Slots(machine.cores(), machine.gpus(), machine.memory_gb())
    own.refuse_impossible("here", needs)
    grant = own.take(needs)
    assert grant is not None, "nothing else has taken from it"
    with shared(grant) as given:
        yield given


def prepare(root: Path, address: str, *, remote: str, given: Mapping[str, Any], key: str) -> None:
    """Brings this clone into the state that the stage needs: its pipeline files, and its inputs.

    Args:
        given: the results that the stage reads, by address (`StageResults.entry`).
        key: of the stage's result, from the coordinator.

    Raises:
        RewardsmithError: this clone gives the result another key.
    """
    files = {one.rpartition(":")[0] for one in (address, *given)}
    with in_turn(root / ".work" / "prepare.lock", "another stage prepares this clone"):
        end_orphans(root)
        if folders := [Path(file).parent for file in sorted(files) if file]:
            graph.write(root, folders)
        with closing(StageResults(root, [address, *given], remote)) as results:
            results.take_inputs(given)
            if (own := results.key(address)) != key:
                raise RewardsmithError(
                    f"stage {address} has the key {own[:10]} in this worker's clone and {key[:10]} in the run's: a "
                    "file that it reads differs. Commit it, and bring both clones to that commit"
                )


@flow(name="stage", flow_run_name="{address}", persist_result=False)
def stage(
    address: str,
    name: str,
    out: str,
    needs: dict[str, float],
    remote: str,
    given: dict[str, Any],
    key: str,
    code: dict[str, Any],
) -> State[Any]:
    """Runs one stage of a run on this machine.

    Args:
        address: the stage as DVC names it.
        name: the stage as a file name, for its log.
        out: the stage's output directory.
        needs: cores, GPUs and memory.
        remote: the DVC remote of the run.
        given: the results that the stage reads, by address.
        key: of the stage's result.
        code: commit and versions of the run.
    """
    root = Path(os.environ.get(TREE, ".")).resolve()
    log = get_run_logger()
    try:
        SameCode.of(root).check(code)
        prepare(root, address, remote=remote, given=given, key=key)
        with granted(needs) as grant, closing(StageResults(root, [address], remote)) as results:
            command = Command(results.command(address), address, name, out, grant.environment())
            done = run_stage(root, command, results, running=RunningStages(), log=log.info)
            results.push([address])
    except RewardsmithError as failure:
        passing = isinstance(failure, RemoteFailed) or (isinstance(failure, StageFailed) and failure.retry)
        return Failed(message=str(failure), name=PASSING if passing else "Failed")
    return Completed(message=done.outcome)
