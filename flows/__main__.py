"""Flows of the command line, each in a process of its own: `python -m flows CALL PARAMETERS`.

    python -m flows paper '{"paper": "segment", "rows": ["bandit"], "seeds": [0]}'
    python -m flows study '{"name": "credit", "worlds": 2}'

`rewardsmith` reads the options and starts this. Without PREFECT_API_URL a temporary Prefect server is started for it.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from flows.working_tree import end_orphans, mark
from rlhf_core.errors import RewardsmithError, prints_errors
from rlhf_core.services import client

#: Functions by call; each returns the text that is printed at its end, or None.
CALLS = {
    "paper": "flows.paper:run_paper",
    "study": "flows.study:study",
    "tune": "flows.study:tune_rows",
    "worker": "flows.worker:serve",
    "adopt": "flows.recipe:adopt",
}
#: Exit status of a run that Ctrl-C ended.
INTERRUPTED = 128 + signal.SIGINT
INTERRUPTED_TEXT = "interrupted; run the same command again to continue: a stage with a checkpoint goes on from there"


def _end_without_server(error: BaseException) -> int:
    """Says how a run ended whose state the Prefect server did not take; returns its exit status."""
    import httpx

    from flows.scheduler import ENDED_WELL

    failure: BaseException | None = error
    while failure is not None and not isinstance(failure, RewardsmithError | KeyboardInterrupt | SystemExit):
        failure = failure.__context__
    if isinstance(failure, RewardsmithError):
        print(f"error: {failure}", file=sys.stderr)
        status = failure.exit_status
    elif failure is not None:
        print(INTERRUPTED_TEXT, file=sys.stderr)
        status = failure.code if isinstance(failure, SystemExit) and isinstance(failure.code, int) else INTERRUPTED
    elif ENDED_WELL:
        print(ENDED_WELL[-1], flush=True)
        status = 0
    else:
        traceback.print_exception(error)
        again = "the run did not end; run the same command again: what has a result does not run again"
        print(f"error: {again}", file=sys.stderr)
        status = 1
    how = "has gone" if isinstance(error, httpx.ConnectError) else "did not answer"
    why = str(error) or type(error).__name__
    print(f"note: the Prefect server {how} ({why}), so its pages lack the end of the run", file=sys.stderr)
    return status


@prints_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a call; returns the exit status: 1 for a run that failed or was cancelled, 2 for a user's error, 130 for
    Ctrl-C."""
    call, parameters = arguments or sys.argv[1:]
    logging.raiseExceptions = False  # a server that has gone costs one line, not one for each log record
    client(1).close()  # refuses proxies and certificates that Prefect's clients cannot use
    root = Path.cwd()
    # in order, so that the temporary Prefect server ends, too; Prefect catches the signal first, then calls this
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    end_orphans(root)
    if call != "worker":  # whose stages outlive it
        os.environ |= mark(root)
    import httpx
    from prefect.exceptions import Abort, MissingResult

    try:
        module, _, function = CALLS[call].partition(":")
        text = getattr(importlib.import_module(module), function)(**json.loads(parameters))
    except KeyboardInterrupt:
        print(INTERRUPTED_TEXT, file=sys.stderr)
        return INTERRUPTED
    except Abort as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MissingResult:  # Prefect sent the final state twice, as the server answered late; the second lacks its text
        text = "the run ended well; its stages are listed above"
    except httpx.TransportError as error:
        status = _end_without_server(error)
        if isinstance(error, httpx.ConnectError):  # what Prefect sends at the process's end would wait for the server
            os._exit(status)
        return status
    if text is not None:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
