"""A webhook on this machine, and its address in the form of apprise."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PASSWORD = "hunter2hunter2"
PATH_SECRET = "path-with-a-secret"


@dataclass
class Webhook:
    """Records what arrives. The answer to every request is `status`."""

    url: str = ""
    status: int = 200
    messages: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0

    @property
    def bodies(self) -> str:
        return "\n".join(each["message"] for each in self.messages)


@contextmanager
def webhook() -> Iterator[Webhook]:
    """Serve a webhook."""
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if hook.status == 200:
                hook.messages.append(body)
            else:
                hook.refused += 1
            self.send_response(hook.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True)
    thread.start()
    hook.url = f"json://user:{PASSWORD}@127.0.0.1:{server.server_address[1]}/{PATH_SECRET}"
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
