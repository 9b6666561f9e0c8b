"""The ALARM paper.

python -m flows.alarm --full                          every row of the paper, three seeds
python -m flows.alarm --rows qa-alarm --seeds 0       one row and what it needs
"""

from __future__ import annotations

import sys

from flows.paper import command_line, paper_flow

alarm = paper_flow("alarm", "ALARM")

if __name__ == "__main__":
    sys.exit(command_line(alarm, "alarm"))
