"""Recipes that no paper has: ideas of several papers in one row.

python -m flows.mixed                                    every row, three seeds
python -m flows.mixed --rows segment-par --seeds 0       one row and what it needs
"""

from __future__ import annotations

import sys

from flows.paper import command_line, paper_flow

mixed = paper_flow("mixed", "Ideas of several papers in one recipe")

if __name__ == "__main__":
    sys.exit(command_line(mixed, "mixed"))
