"""The hacking laboratory: mitigations under rewards with a known flaw.

python -m flows.hackability --rows length-vanilla length-par --seeds 0    two rows and what they need

`rewardsmith hackability` writes the rows, runs this and makes the page.
"""

from __future__ import annotations

import sys

from flows.paper import command_line, paper_flow

hackability = paper_flow("hackability", "Hacking laboratory")

if __name__ == "__main__":
    sys.exit(command_line(hackability, "hackability"))
