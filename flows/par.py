"""The PAR paper.

python -m flows.par --full                   every row of the paper, three seeds
python -m flows.par --rows par --seeds 0     one row and what it needs
"""

from __future__ import annotations

import sys

from flows.paper import command_line, paper_flow

par = paper_flow("par", "Reward Shaping to Mitigate Reward Hacking")

if __name__ == "__main__":
    sys.exit(command_line(par, "par"))
