"""Pages in a real browser: Chromium without a window."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.commands.doctor import CHROMIUM

BROWSER = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(CHROMIUM)} on PATH")
#: Widths in pixels: a desk, a telephone.
WIDTHS = (1400, 420)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """A page as the browser has it: its elements after its script ran, its picture's colours, what it complained of."""

    dom: str
    colours: int
    complaints: list[str]


def look(url: str, folder: Path, width: int) -> Look:
    """Opens a page; what it writes lies in `folder`."""
    assert BROWSER
    picture = folder / f"page-{width}.png"
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},2400"]
    shown = subprocess.run([*command, f"--screenshot={picture}", url], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr[-2000:]
    from PIL import Image

    with Image.open(picture) as image:
        colours = image.convert("RGB").getcolors(maxcolors=10**7)
    dumped = subprocess.run([*command, "--dump-dom", url], capture_output=True, text=True, timeout=120)
    return Look(dumped.stdout, len(colours or ()), [line for line in shown.stderr.splitlines() if "CONSOLE" in line])
