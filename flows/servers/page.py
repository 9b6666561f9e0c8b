"""One page that links the platform's servers and the report, whose files it serves.

    python -m flows.servers.page ROOT

It asks for the platform's user and password, and binds where the servers do.
"""

from __future__ import annotations

import base64
import hmac
import html
import http.server
import sys
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flows.servers.processes import read_state
from flows.servers.settings import USER, Settings, load
from tasks.running.platform_state import FOLDER

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; script-src 'unsafe-inline'"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Rewardsmith</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 46rem; padding: 0 1rem; color: #222 }}
</style></head><body><h1>Rewardsmith</h1><p>The working tree {tree}</p><ul>
<li><a href="{prefect}">Prefect</a>: flows, schedules, logs, slots; log in with {user}:password in one field</li>
<li><a href="{mlflow}">MLflow</a>: runs to compare, models with aliases</li>
<li><a href="/report/index.html">Report</a>: published and measured side by side; <code>rewardsmith report</code></li>
</ul><p>User and password: {credentials} in the repository.</p></body></html>"""


def render(settings: Settings) -> str:
    """Returns the page."""
    shown = {"tree": settings.root.name, "prefect": settings.url("prefect"), "mlflow": settings.url("mlflow")}
    shown |= {"user": USER, "credentials": str(FOLDER / "credentials.json")}
    return PAGE.format(**{name: html.escape(text) for name, text in shown.items()})


class Handler(http.server.SimpleHTTPRequestHandler):
    """The page, its health, and the files of report/."""

    settings: Settings

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        login = b"Basic " + base64.b64encode(f"{USER}:{self.settings.password}".encode())
        if path == "/health":
            self.answer(200, "text/plain", b"ok")
        elif not hmac.compare_digest(self.headers.get("Authorization", "").encode(), login):
            self.answer(401, "text/plain", b"user and password, please")
        elif path == "/":
            self.answer(200, "text/html; charset=utf-8", render(self.settings).encode())
        elif self.is_in_report(path):
            super().do_GET()
        else:
            self.answer(404, "text/plain", b"not found")

    def is_in_report(self, path: str) -> bool:
        """Returns whether a path is that of a file in report/, where links may not lead out of it."""
        try:
            file = (self.settings.root / path.lstrip("/")).resolve(strict=True)
        except (OSError, ValueError):  # nothing there, a link to itself, a name that can be no file's
            return False
        return file.is_relative_to((self.settings.root / "report").resolve()) and file.is_file()

    def answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="Rewardsmith"')
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing: every look at the page would be a line."""


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    settings = load(root, read_state(root / FOLDER)["ports"])
    handler = partial(type("PageHandler", (Handler,), {"settings": settings}), directory=str(root))
    http.server.ThreadingHTTPServer((settings.host, settings.ports["page"]), handler).serve_forever()


if __name__ == "__main__":
    main()
