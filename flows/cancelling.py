"""A run that is cancelled in Prefect's page ends itself where nobody else does.

A worker ends the runs that it started. Nobody ends one whose worker was killed, or one that a command line started.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tasks.running.platform_state import alive, read_processes

if TYPE_CHECKING:
    from prefect.exceptions import Abort

#: Seconds between looks at the run's state.
LOOK_SECONDS = 5.0
#: A worker that lives has ended its run by then: it looks every 10 s, and kills what has not ended 30 s later.
WORKER_SECONDS = 60.0
#: Set in the process of a run that a worker started.
STARTED = "PREFECT__FLOW_RUN_ID"


class _Watch:
    """Looks at the state of this process's run, and asks the process to end when it is being cancelled.

    It sends the signal once, and only where nobody else does: a second one would interrupt the ending of the stages.
    """

    def __init__(self, run: UUID) -> None:
        from prefect.client.orchestration import get_client
        from prefect.logging import get_logger

        self.run, self.asked = run, False
        self.client, self._log = get_client(sync_client=True), get_logger("cancelling")
        self._worker = _worker()
        self._over, self._lock = False, threading.Lock()
        threading.Thread(target=self._look, daemon=True).start()

    def _patience(self) -> float:
        """Returns seconds that are left to whoever started the run."""
        if not os.environ.get(STARTED) or (self._worker is not None and not alive(self._worker)):
            return 0.0
        return WORKER_SECONDS

    def _look(self) -> None:
        since: float | None = None
        while not self._over:
            time.sleep(LOOK_SECONDS)
            if self._over or not self.cancelling():
                since = None
                continue
            since = since or time.monotonic()
            if time.monotonic() - since < self._patience():
                continue
            with self._lock:
                if not self._over:
                    self.asked = True
                    os.kill(os.getpid(), signal.SIGTERM)
                    # last: a line that a killed worker no longer reads would end this thread
                    self._log.warning("the run is cancelled and no worker ends it: ending now")
            return

    def stop(self) -> None:
        """Asks no more."""
        with self._lock:
            self._over = True

    def cancelling(self) -> bool:
        """Returns whether the run is being cancelled; a server that does not answer now is asked again."""
        import httpx
        from prefect.exceptions import PrefectException

        try:
            state = self.client.read_flow_run(self.run).state
        except (httpx.HTTPError, PrefectException):
            return False
        return state is not None and state.is_cancelling()

    def cancelled(self) -> Abort:
        """Makes the run cancelled; gives what ends it without another state."""
        from prefect.exceptions import Abort
        from prefect.states import Cancelled

        self.client.set_flow_run_state(self.run, Cancelled(message="it ended itself with its stages"), force=True)
        return Abort("the run was cancelled in Prefect")


@contextmanager
def ends_when_cancelled(run: UUID) -> Iterator[None]:
    """Ends this process as on SIGTERM, within the block, when its run is being cancelled and no worker ends it.

    Call it in the main thread. A temporary server's run cannot be cancelled.

    Raises:
        Abort: it was cancelled; all within has ended, and its state is Cancelled.
    """
    from prefect.settings import PREFECT_API_URL

    if not PREFECT_API_URL.value():
        yield
        return
    watch = _Watch(run)
    try:
        try:
            yield
        finally:
            watch.stop()
    except BaseException as error:  # a worker's signal, or a terminal's: who sent it says what becomes of the run
        if watch.asked or (isinstance(error, Exception) and watch.cancelling()):
            raise watch.cancelled() from error
        raise
    else:
        if watch.cancelling():
            raise watch.cancelled()


def _worker() -> dict[str, Any] | None:
    """Returns the note of the platform's worker, which started the run if a worker of this platform did."""
    platform = os.environ.get("REWARDSMITH_PLATFORM")
    worker = read_processes(Path(platform)).get("worker") if platform else None
    return worker if isinstance(worker, dict) else None
