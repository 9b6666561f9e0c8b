"""Notes of each flow run's process, which tell a living run from one whose process was killed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

from flows.cancelling import ends_when_cancelled
from tasks.running.platform_state import FOLDER, alive, note_of, read_private, write_private

#: Prefix of the tag of a flow run that names the machine of its process.
HOST = "host:"
#: Prefix of the modules that a worker starts for a run: the run's preparation, then the engine.
ENGINE = "prefect."


def notes_folder(root: Path) -> Path:
    """Returns the platform's folder of notes; the worktree of a recipe uses the folder of the platform's tree."""
    return Path(os.environ.get("REWARDSMITH_PLATFORM", root.resolve() / FOLDER)) / "flow-runs"


@contextmanager
def note_running_process(root: Path) -> Iterator[None]:
    """Notes this process as that of the present flow run, while the block runs, and this machine on the run itself.

    It belongs around all that a flow does: a run without a living process is dead. A run that is cancelled ends itself
    where no worker does it. The machine's tag does not pass to the run's tasks.
    """
    from prefect.runtime import flow_run

    if not flow_run.id:
        yield
        return
    add_tags(UUID(flow_run.id), [host_tag()])
    path = notes_folder(root) / f"{flow_run.id}.json" if "REWARDSMITH_PLATFORM" in os.environ else None
    if path is not None:
        write_private(path, note_of(os.getpid()) | {"root": str(root.resolve())})
    try:
        with ends_when_cancelled(UUID(flow_run.id)), tasks_without_place():
            yield
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


@contextmanager
def tasks_without_place() -> Iterator[None]:
    """Keeps the tag of this machine from tasks that are submitted in the block.

    Before a tagged task begins, Prefect asks the server for limits of its tags. A server that is busy often answers
    503, and Prefect waits for two seconds before it asks again.
    """
    from prefect.context import TagsContext

    with TagsContext(current_tags=TagsContext.get().current_tags - {host_tag()}):
        yield


def tag_place() -> None:
    """Notes this machine on a run, as a deployment's last step before the run begins.

    A run that is killed in its first moment, before it says so itself, is known to have been here.
    """
    add_tags(UUID(os.environ["PREFECT__FLOW_RUN_ID"]), [host_tag()])


def host_tag() -> str:
    """Returns the tag of a run that names the machine of its process."""
    return f"{HOST}{socket.gethostname()}"


def add_tags(run: UUID, tags: Sequence[str]) -> None:
    """Tags a flow run; a machine that it ran on before is no longer its machine."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        known = client.read_flow_run(run).tags
        kept = [tag for tag in known if not (tag.startswith(HOST) and host_tag() in tags)]
        client.update_flow_run(run, tags=[*kept, *(tag for tag in tags if tag not in kept)])


def process_of(folder: Path, run: str) -> psutil.Process | None:
    """Returns the living process of a flow run: the noted one, else one that a worker started for it.

    Stages and what else a run calls have its id in their environment, too, and outlive it when it is killed.
    """
    note: dict[str, Any] = read_private(folder / f"{run}.json")
    if alive(note):
        return psutil.Process(int(note["pid"]))
    for process in psutil.process_iter():
        try:
            begun = any(word.startswith(ENGINE) for word in process.cmdline())
            mine = begun and process.environ().get("PREFECT__FLOW_RUN_ID") == run
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.Error:
            continue
    return None
