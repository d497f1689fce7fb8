"""ClickHouse 26 as a process of the tests: the engine from a Python package, behind ClickHouse's HTTP interface.

It implements the parts of the interface that hookcore uses, and checks no passwords. An engine needs its own process.
"""

from __future__ import annotations

import re
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session

_NO_SETTINGS: Final = frozenset({"query", "database", "query_id", "wait_end_of_query"})
_INSERT: Final = re.compile(r"(INSERT INTO \w+) FORMAT (\w+)")


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    engine: str  # the folder with its tables
    folder: Path

    def do_GET(self) -> None:
        self._answer(200, b"Ok.\n")

    def do_POST(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with Session(self.engine) as session:
            try:
                session.query(f"USE `{asked.get('database', 'default')}`")
                for name in asked.keys() - _NO_SETTINGS:
                    session.query(f"SET {name} = {asked[name]}")
                found = self._insert(session, asked["query"], body) if "query" in asked else _run(session, body)
            except RuntimeError as error:
                self._answer(500, str(error).encode())
            else:
                self._answer(200, found)

    def _insert(self, session: Session, sql: str, data: bytes) -> bytes:
        """Insert data by way of a file, because the engine reads only files."""
        found = _INSERT.fullmatch(sql)
        assert found is not None, sql
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            file.write(data)
            file.flush()
            return _run(session, f"{found[1]} FROM INFILE '{file.name}' FORMAT {found[2]}".encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_about: object) -> None:
        """Log nothing."""


def _run(session: Session, sql: bytes) -> bytes:
    return bytes(session.query(sql.decode(), "TabSeparated").bytes())


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def main(folder: str, port: str) -> None:
    """Serve until a signal arrives, with the tables in the given folder."""
    _Handler.folder = Path(folder)
    _Handler.engine = f"{folder}/data"
    with Session(_Handler.engine), _Server(("127.0.0.1", int(port)), _Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
