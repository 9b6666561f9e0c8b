"""One stage, run by one machine among several.

    python -m tasks.dvc.shared_stage policy-segment-bandit-0 --remote team --commit HEAD --upstream sft-phi3-mini ...

1. The stage's inputs are pulled by the digests in dvc.lock, and their content is hashed again: differences are refused.
2. The stage runs alone (`tasks.dvc.one_stage`).
3. A file that the stage reads, or the code, that changed in the meantime: the result is discarded, nothing is pushed.
4. Its outputs are pushed, and after them its run-cache entry.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.dvc.lock_files import locked_stage
from tasks.dvc.one_stage import TEMPORARY, ended, reproduce
from tasks.dvc.remote import Remote, RemoteFailed
from tasks.running.commit import changed_since

#: Exit status of an error of the user's.
USER_ERROR = 2


def _inputs(entry: Mapping[str, Any]) -> dict[str, str]:
    return {dep["path"]: dep.get("md5", "") for dep in entry.get("deps", [])}


def run_one(root: Path, address: str, *, upstream: Sequence[str], name: str, commit: str) -> str:
    """Runs one stage as the module's text says; returns how it ended (see `tasks.dvc.one_stage`).

    Args:
        root: the clone, which is the working directory.
        address: the stage as DVC names it.
        upstream: addresses of the stages that it reads from.
        name: the remote.
        commit: what the clone's code and parameters have to be at.

    Raises:
        RewardsmithError: inputs that cannot be had or do not match, a tree that changed, a remote that refuses.
        DvcException: the stage failed, or DVC refuses it.
    """
    from dvc.stage.serialize import to_single_stage_lockfile

    with closing(Remote(root, name)) as remote:
        remote.load([address, *upstream])
        remote.pull_inputs(address)
        remote.key(address)
        before = _inputs(to_single_stage_lockfile(remote.stages[address]))
    outcome = reproduce(root, address)
    with closing(Remote(root, name)) as remote:
        remote.load([address])
        after = _inputs(locked_stage(root, address))
        changed = [path for path in after if after[path] != before.get(path)] or changed_since(root, commit)
        if changed:
            remote.discard(address)
            raise RewardsmithError(
                f"{', '.join(changed[:3])} changed while stage {address} ran, so its result has no known inputs: it "
                "is discarded and was not pushed. Commit the change, then run the same command again"
            )
        remote.push([address])
    return outcome


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.dvc.shared_stage", description="Runs one stage for several machines."
    )
    parser.add_argument("address", help="the stage, as DVC names it")
    parser.add_argument("--remote", required=True, help="the DVC remote that the machines share")
    parser.add_argument("--commit", required=True, help="commit that the tree must be at")
    parser.add_argument("--upstream", nargs="*", default=[], help="addresses of the stages that it reads from")
    options = parser.parse_args(arguments)
    given = {"upstream": options.upstream, "name": options.remote, "commit": options.commit}
    try:
        return ended(lambda: run_one(Path.cwd(), options.address, **given))
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return TEMPORARY if isinstance(error, RemoteFailed) else USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
