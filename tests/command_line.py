"""`rewardsmith` in the test's own process: a process of its own takes seconds to start."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from tasks import command_line
from tests.small_repository import PROJECT


def rewardsmith(*arguments: str, root: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a folder; returns its exit code and what it printed."""
    words, out, err = ["rewardsmith", *arguments], io.StringIO(), io.StringIO()
    with (
        chdir(root),
        redirect_stdout(out),
        redirect_stderr(err),
        patch.dict(os.environ, COLUMNS="200"),
        patch.object(sys, "argv", words),
        pytest.raises(SystemExit) as ended,
    ):
        command_line.app()
    code = ended.value.code or 0
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
