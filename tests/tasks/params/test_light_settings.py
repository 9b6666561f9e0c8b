"""Settings are typed without torch: reading, checking and refusing them takes no seconds of imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
MODULES = sorted(f"tasks.params.{path.stem}" for path in (ROOT / "tasks" / "params").glob("[a-z]*.py"))
HEAVY = ("torch", "transformers", "scipy", "sklearn", "pandas", "pandera", "datasets")


def test_the_room_of_settings_imports_nothing_heavy() -> None:
    code = f"import sys\nimport {', '.join(MODULES)}\nprint([name for name in {HEAVY} if name in sys.modules])"
    call = [sys.executable, "-c", code]
    found = subprocess.run(call, capture_output=True, text=True, check=True, timeout=120, cwd=ROOT)
    assert (found.stdout, found.stderr) == ("[]\n", "")
