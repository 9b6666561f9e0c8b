"""Pages in a real browser: Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tasks.commands.doctor import CHROMIUM

BROWSER = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(CHROMIUM)} on PATH")
#: Widths in pixels: a desk, a telephone.
WIDTHS = (1400, 400)
HEIGHT = 900
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
#: Seconds until an answer of the browser is given up.
PATIENCE = 60


@dataclass
class Tab:
    """A page of the browser.

    Attributes:
        complaints: errors and warnings of its console so far, refused loads and uncaught errors among them.
    """

    connection: ClientConnection
    complaints: list[str] = field(default_factory=list)
    sent: int = 0
    loads: int = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the browser's answer to a command of its protocol."""
        self.sent += 1
        self.connection.send(json.dumps({"id": self.sent, "method": method, "params": parameters}))
        while (said := self._next()).get("id") != self.sent:
            pass
        assert "error" not in said, said
        return dict(said["result"])

    def open(self, url: str) -> None:
        """Opens an address and waits until it is loaded."""
        before = self.loads
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        while "loaderId" in answer and self.loads == before:  # without it, another place of the same document
            self._next()
        self.settle()

    def settle(self) -> None:
        """Waits until the page is drawn, and its scrolling done."""
        self.picture()

    def evaluate(self, script: str) -> Any:
        """Returns the value of a script on the page."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def middle(self, selector: str) -> tuple[float, float]:
        """Returns the middle of the first element of a selector, which is scrolled into sight."""
        script = f"""(() => {{ const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{ block: "center", inline: "center", behavior: "instant" }});
            const box = found.getBoundingClientRect();
            return [box.left + box.width / 2, box.top + box.height / 2]; }})()"""
        x, y = self.evaluate(script)
        self.settle()
        return x, y

    def click(self, selector: str) -> None:
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def keeps_names(self, selector: str, columns: int) -> None:
        """Checks a table in a box that scrolls: its first columns are whole, and its names stay when it scrolls."""
        box = f"document.querySelector({json.dumps(selector)})"
        head = f"{box}.querySelectorAll('thead th')"
        assert self.evaluate("document.documentElement.scrollWidth <= innerWidth")
        edges = self.evaluate(f"[{box}, {head}[{columns - 1}]].map((one) => one.getBoundingClientRect().right)")
        assert edges[1] <= edges[0]
        assert self.evaluate(f"{box}.scrollLeft = 1e4, {box}.scrollLeft") > 0
        names = f"[{box}, ...{box}.querySelectorAll('th:first-child')].map((one) => one.getBoundingClientRect().left)"
        lefts = self.evaluate(names)
        assert max(lefts) - min(lefts) < 1

    def texts(self, selector: str) -> list[str]:
        """Returns the texts of all visible elements of a selector."""
        script = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return list(
            self.evaluate(f"{script}.filter((one) => one.checkVisibility()).map((one) => one.innerText.trim())")
        )

    def unfold(self) -> None:
        """Opens everything that is folded."""
        self.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")

    def picture(self, path: Path | None = None, *, whole: bool = False) -> bytes:
        """Returns a PNG of what is in sight, or of the whole page, and writes it to a path where one is given."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        area = {"captureBeyondViewport": True, "clip": size | {"scale": 1}} if whole else {}
        image = base64.b64decode(self.call("Page.captureScreenshot", **area)["data"])
        if path:
            path.write_bytes(image)
        return image

    def _next(self) -> dict[str, Any]:
        said = json.loads(self.connection.recv(timeout=PATIENCE))
        match said.get("method"):
            case "Page.loadEventFired":
                self.loads += 1
            case "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if said["params"]["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(said["params"]["args"]))
            case "Log.entryAdded" if said["params"]["entry"]["level"] in ("error", "warning"):
                self.complaints.append(str(said["params"]["entry"]))
        return dict(said)


@contextmanager
def browsing(folder: Path, width: int, *, dark: bool = False) -> Iterator[Tab]:
    """Yields an empty tab of a browser.

    Args:
        folder: for the browser's profile.
        width: of the window, in pixels.
        dark: whether the reader prefers dark pages.
    """
    assert BROWSER
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as browser:
        try:
            assert browser.stderr
            listening = (re.search(r"listening on ws://([^/]+)/", line) for line in browser.stderr)
            address = next(found[1] for found in listening if found)
            tabs = httpx.get(f"http://{address}/json", timeout=PATIENCE).json()
            socket = next(each["webSocketDebuggerUrl"] for each in tabs if each["type"] == "page")
            with connect(socket, max_size=None) as connection:
                tab = Tab(connection)
                for part in ("Page", "Runtime", "Log"):
                    tab.call(f"{part}.enable")
                size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
                tab.call("Emulation.setDeviceMetricsOverride", **size)
                scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
                tab.call("Emulation.setEmulatedMedia", features=[scheme])
                yield tab
        finally:
            browser.terminate()


@dataclass(frozen=True)
class Look:
    """A page as the browser has it: its picture's colours, what it complained of, and its width with everything
    unfolded."""

    colours: int
    complaints: list[str]
    width: int


def look(url: str, folder: Path, width: int) -> Look:
    """Opens a page once and unfolds it; the browser's profile lies in `folder`."""
    from PIL import Image

    with browsing(folder, width) as tab:
        tab.open(url)
        with Image.open(BytesIO(tab.picture(whole=True))) as image:
            colours = image.convert("RGB").getcolors(maxcolors=10**7)
        tab.unfold()
        return Look(len(colours or ()), tab.complaints, tab.evaluate("document.documentElement.scrollWidth"))
