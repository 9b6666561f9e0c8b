"""Made-up files of real data, which golden runs prepare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: Rows of real data by the file's name; one of them is bad, and goes into quarantine.
FILES: dict[str, list[dict[str, Any]]] = {
    **{
        f"talks.{split}": [
            {"id": f"{split}-{n}", "prompt": f"Where is house number {n}?", "source": "made up"}
            | {"chosen": f"It is in street {n}, near the river." if n != 7 else "", "rejected": "I do not know."}
            for n in range(count)
        ]
        for split, count in (("train", 20), ("test", 5))
    },
    **{
        f"sums.{split}": [
            {"id": f"{split}-{n}", "question": f"What is {n} + 1?", "answer": str(n + 1), "source": "made up"}
            | {"solution": f"It is {n} + 1 = {n + 1}." if n % 3 else None}
            for n in range(count)
        ]
        for split, count in (("train", 20), ("test", 5))
    },
}
#: Folder that FILES are written to.
FILES_FOLDER = "files"


def write_files(root: Path) -> None:
    """Writes the files into their folder."""
    (root / FILES_FOLDER).mkdir(parents=True, exist_ok=True)
    for name, rows in FILES.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (root / FILES_FOLDER / f"{name}.jsonl").write_text(text, encoding="utf-8")
