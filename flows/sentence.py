"""The Sentence paper.

python -m flows.sentence --full                        every row of the paper, three seeds
python -m flows.sentence --rows sentence --seeds 0     one row and what it needs
"""

from __future__ import annotations

import sys

from flows.paper import command_line, paper_flow

sentence = paper_flow("sentence", "Sentence-level Reward Model")

if __name__ == "__main__":
    sys.exit(command_line(sentence, "sentence"))
