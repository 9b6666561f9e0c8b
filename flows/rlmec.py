"""The RLMEC paper.

python -m flows.rlmec --full                             every row of the paper, three seeds
python -m flows.rlmec --rows math-rlmec --seeds 0        one row and what it needs
"""

from __future__ import annotations

import sys

from flows.paper import command_line, paper_flow

rlmec = paper_flow("rlmec", "Fine-grained RL with Minimum Editing Constraint")

if __name__ == "__main__":
    sys.exit(command_line(rlmec, "rlmec"))
