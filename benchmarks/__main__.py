"""Every comparison, one table and one figure.

    python -m benchmarks [--repeats 3] [--only reward_model dpo]

Writes comparisons.csv, token_statistics.csv, phases.csv and benchmarks.png into `.work/benchmarks`. The peers are
installed by `make bench-peers`; without them only what needs none is run, and the table says so.
"""

from __future__ import annotations

import importlib
import os
import platform
from pathlib import Path
from typing import Any

from benchmarks import phases
from benchmarks.alternating import Row, options, print_rows, write_rows

#: Comparison -> the peer's folder.
COMPARISONS = {
    "token_statistics": None,
    "reward_model": "trl-1.16",
    "dpo": "trl-1.16",
    "grpo": "trl-1.16",
    "ppo": "trl-1.12",
}
