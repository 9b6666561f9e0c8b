"""The end of a process that has imported much, without the seconds that the interpreter takes to clear it all."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """Ends the process after its threads and exit handlers, as `multiprocessing` ends one that it forked."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)
