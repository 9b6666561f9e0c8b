"""Pipeline stages: each module is one typed function with a command line."""

import gc
import sys

#: When Python looks for garbage, as it was before.
GC_THRESHOLD = gc.get_threshold()

if sys.argv[:1] == [
    "-m"
]:  # `python -m tasks.policy`: nothing that is imported becomes garbage (see `tasks.running.stage`)
    gc.set_threshold(100_000)
