"""The code that the machines of a run must share: one commit, nothing uncommitted, the same versions.

A worker serves the queues of its code in the work pool, one for each number of GPUs that it can give; a run's stages go
to the queues of the run's code. So no stage begins on a machine that would compute something else.
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.running.artifacts import RECORDED_PACKAGES
from tasks.running.commit import changed_since, commit_of, listed


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
