"""Finished trainings that another stage with equal inputs continues from, such as in cells that differ only in labels
which the training does not read.

In a tree that has the folder `FOLDER`, as a study's world has, the first stage leaves the state after its last step
there. A stage that trains the same goes on from it, takes no further step, and is evaluated on its own data. The key is
that of a checkpoint over what the training alone reads, and over the code, so that a result is bit by bit the same as
without reuse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core import distributed
from tasks.running.artifacts import Inputs, source_digest
from tasks.running.exclusive import in_turn

if TYPE_CHECKING:
    from tasks.running.checkpoints import RunCheckpoints

FOLDER = Path(".work") / "reused_training"


@contextmanager
def reuse_training(
    stage: str, version: int, inputs: Sequence[Path | str], rows: Sequence[object], seed: int
) -> Iterator[RunCheckpoints | None]:
    """Yields the checkpoints that a stage reads an equal finished training from, or leaves its own in; None in a tree
    without `FOLDER`. Of stages with equal inputs, one at a time is in the block.

    Args:
        stage, version: of the stage.
        inputs: files, folders and entries of pages that its training reads, beside the rows.
        rows: that it trains on, of token ids; what a file says beside these, such as true rewards, is not read.
        seed: of the training.
    """
    if not FOLDER.is_dir() or distributed.world_size() > 1:
        yield None
        return
    from tasks.running.checkpoints import CheckpointStore, RunCheckpoints, run_key

    trained = hashlib.sha256(repr(rows).encode()).hexdigest()
    digests = {**Inputs.of(inputs).digests, "rows": trained, "sources": source_digest()}
    key = run_key(stage, version, digests, seed)
    store = CheckpointStore(FOLDER, f"{stage}-{key[:12]}", key, keep=1)
    with in_turn(FOLDER / f"{stage}-{key[:12]}.lock", "another stage trains the same model"):
        yield RunCheckpoints(store, 0.0)
