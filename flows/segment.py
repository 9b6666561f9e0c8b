"""The Segment paper.

python -m flows.segment                              the paper's headline rows
python -m flows.segment --full                       every row of the paper, three seeds
python -m flows.segment --rows segment --seeds 0     one row and what it needs
"""

from __future__ import annotations

import sys

from flows.paper import command_line, paper_flow

segment = paper_flow("segment", "Segmenting Text and Learning Their Rewards")

if __name__ == "__main__":
    sys.exit(command_line(segment, "segment"))
