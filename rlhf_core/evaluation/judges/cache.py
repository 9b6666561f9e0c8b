"""A disk cache of judge answers: JSON lines, appended whole, tolerant of a cut or broken line."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError


def digest(parts: Mapping[str, Any]) -> str:
    """Returns sha256 of the canonical JSON of a request: equal parts, in any order, give equal keys."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def storable(text: str) -> str:
    """Returns a text that UTF-8 can hold: half of a surrogate pair becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


#: Field of a line: the digest of its other fields. A line without it, as version 0.1.0 wrote them, counts as broken.
CHECK = "sha256"


class AnswerCache:
    """Answers by key, in a file that grows by one line per answer.

    Each line is written with one append, so writers of several threads or processes do not mix, and a
    process killed while writing leaves at most one broken line, which the next start skips and counts,
    as it does a line that was changed since. The last line of a key wins.

    Attributes:
        n_broken: lines that could not be read when the file was opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.n_broken = 0
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Any]] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            raise DataError(f"judge cache cannot be read ({error.strerror})", file=str(self.path)) from error
        self._needs_newline = bool(content) and not content.endswith(b"\n")
        for line in content.split(b"\n"):
            if line.strip():
                self._load(line)

    def _load(self, line: bytes) -> None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            self.n_broken += 1
            return
        whole = isinstance(row, dict) and isinstance(row.get("key"), str) and isinstance(row.get("text"), str)
        if whole and row.pop(CHECK, None) == digest(row):
            self._rows[row["key"]] = row | {"text": storable(row["text"])}
        else:
            self.n_broken += 1

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: str) -> dict[str, Any] | None:
        """Returns the stored row (with its `text`), or None."""
        return self._rows.get(key)

    def put(self, key: str, text: str, **facts: str | int | float) -> None:
        """Stores an answer with a few facts about it (never credentials)."""
        row = {"key": key, "text": text, **facts}
        line = json.dumps({**row, CHECK: digest(row)}, ensure_ascii=True).encode("ascii") + b"\n"
        with self._lock:
            if self._needs_newline:
                line = b"\n" + line
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(descriptor, view) :]
            finally:
                os.close(descriptor)
            self._needs_newline = False
            self._rows[key] = row
