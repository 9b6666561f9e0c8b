"""One page that links the platform's servers and the report, and says which of them answer.

    python -m flows.servers.page ROOT

It asks for the platform's user and password, binds where the servers do, and serves the folder report/ of the tree.
"""

from __future__ import annotations

import hmac
import html
import http.server
import sys
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flows.servers.processes import answers, authorization, read_state
from flows.servers.settings import USER, Settings, load
from tasks.running.platform_state import FOLDER, is_up

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; script-src 'unsafe-inline'"
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 46rem; padding: 0 1rem; color: #222 }
h1 { font-weight: 600 } table { border-collapse: collapse; width: 100% } td { padding: .7rem .5rem; vertical-align: top;
border-top: 1px solid #ddd } a { color: #0b5cad } .up { color: #1a7f37 } .down { color: #b42318 } small { color: #666 }
@media (max-width: 34rem) { body { margin: 1rem auto } td { display: block; border: 0; padding: .2rem .5rem } }
"""


def states(settings: Settings) -> list[tuple[str, str, str, bool]]:
    """Returns (name, address, what it is, whether it answers) of everything that the page links."""
    report = (settings.root / "report" / "index.html").exists()
    login = f"the login asks for {USER}:password in one field"
    runs = "runs to compare, models with aliases; choose Model training at the top left"
    return [
        ("Prefect", settings.url("prefect"), f"flows, schedules, logs, slots; {login}", answers(settings, "prefect")),
        ("MLflow", settings.url("mlflow"), runs, answers(settings, "mlflow")),
        ("Report", "/report/index.html" if report else "", "published and measured side by side", report),
        ("Worker", "", "runs what the deployments schedule, on this machine", is_up(settings.folder, "worker")),
    ]


def render(settings: Settings) -> str:
    """Returns the page."""
    rows = []
    for name, address, what, up in states(settings):
        link = f'<a href="{html.escape(address)}">{html.escape(name)}</a>' if address else html.escape(name)
        absent = "not written yet: rewardsmith report" if name == "Report" else "down: rewardsmith up"
        word = (
            f'<span class="{"up" if up else "down"}">{("there" if name == "Report" else "up") if up else absent}</span>'
        )
        rows.append(f"<tr><td>{link}</td><td>{html.escape(what)}</td><td>{word}</td></tr>")
    credentials = html.escape(str(FOLDER / "credentials.json"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Rewardsmith</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<style>{STYLE}</style></head><body>"
        f"<h1>Rewardsmith</h1><p>The working tree {html.escape(settings.root.name)}</p><table>{''.join(rows)}</table>"
        f"<p><small>User and password: {credentials} in the repository.</small></p></body></html>"
    )


class Handler(http.server.SimpleHTTPRequestHandler):
    """The page, its health, and the files of report/."""

    settings: Settings

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        expected = authorization(self.settings)["Authorization"]
        if path == "/health":
            self.answer(200, "text/plain", b"ok")
        elif not hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected.encode()):
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
