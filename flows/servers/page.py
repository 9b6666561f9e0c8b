"""One page that links the platform's servers and the report, and says which of them answer.

    python -m flows.servers.page ROOT

It asks for the platform's user and password, binds where the servers do, and serves the folder report/ of the tree.
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

from flows.servers.processes import answers, read_state
from flows.servers.settings import USER, Settings, load
from tasks.running.platform_state import FOLDER, is_up

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; script-src 'unsafe-inline'"
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Rewardsmith</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,"><style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 46rem; padding: 0 1rem; color: #222 }}
td {{ padding: .7rem .5rem; border-top: 1px solid #ddd }} .up {{ color: #1a7f37 }} .down {{ color: #b42318 }}
</style></head><body><h1>Rewardsmith</h1><p>The working tree {tree}</p><table>{rows}</table>
<p>User and password: {credentials} in the repository.</p></body></html>"""


def render(settings: Settings) -> str:
    """Returns the page."""
    written, login = (settings.root / "report" / "index.html").exists(), f"log in with {USER}:password in one field"
    down, prefect, mlflow = "down: rewardsmith up", settings.url("prefect"), settings.url("mlflow")
    parts = [
        ("Prefect", prefect, f"flows, schedules, logs, slots; {login}", answers(settings, "prefect"), down),
        ("MLflow", mlflow, "runs to compare, models with aliases", answers(settings, "mlflow"), down),
        ("Report", "/report/index.html", "published and measured side by side", written, "not yet: rewardsmith report"),
        ("Worker", "", "runs what the deployments schedule, on this machine", is_up(settings.folder, "worker"), down),
    ]
    rows = []
    for name, address, what, up, remedy in parts:
        link = f'<a href="{html.escape(address)}">{name}</a>' if address and (up or remedy == down) else name
        kind, word = ("up", "up") if up else ("down", remedy)
        rows.append(f'<tr><td>{link}</td><td>{html.escape(what)}</td><td class="{kind}">{word}</td></tr>')
    credentials = html.escape(str(FOLDER / "credentials.json"))
    return PAGE.format(tree=html.escape(settings.root.name), rows="".join(rows), credentials=credentials)


class Handler(http.server.SimpleHTTPRequestHandler):
    """The page, its health, and the files of report/."""

    settings: Settings

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        login = base64.b64encode(f"{USER}:{self.settings.password}".encode())
        if path == "/health":
            self.answer(200, "text/plain", b"ok")
        elif not hmac.compare_digest(self.headers.get("Authorization", "").encode(), b"Basic " + login):
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
