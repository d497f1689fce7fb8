"""`hookcore serve` behind nginx, with the configuration that docs/docker.md shows: a path prefix, and TLS."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tests.manual import blocks_of
from tests.ports import free_port
from tests.serving import PATIENCE_S, TOKEN
from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]
PREFIX = "/hookcore"
NAME = "box.example.org"  # the name in the docs; the certificate covers it and localhost
# A single process that belongs to the user who runs the tests, and writes only into its own folder.
NGINX = """daemon off; master_process off; pid FOLDER/nginx.pid; error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/fastcgi;
    uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
    DOCS
}
"""
CERTIFICATE = """openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost
 -addext subjectAltName=DNS:localhost,DNS:box.example.org,IP:127.0.0.1 -keyout key.pem -out cert.pem"""


@dataclass(frozen=True, slots=True)
class Proxied:
    """A server, and the proxy in front of it."""

    port: int
    direct: str  # the address of the server itself
    certificate: Path
    folder: Path

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    @property
    def url(self) -> str:
        """Return the public URL, without a trailing slash."""
        return f"https://{self.host}{PREFIX}"

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a remote client that sends data, reads it, or creates a link."""
        ours = {"HOOKCORE_URL": self.url, "HOOKCORE_TOKEN": TOKEN, "HOOKCORE_CA_FILE": str(self.certificate)}
        return {name: value for name, value in os.environ.items() if name != "HOOKCORE_SERVER"} | ours


@contextmanager
def proxied(folder: Path) -> Iterator[Proxied]:
    """Start both processes, and stop them at the end."""
    subprocess.run(CERTIFICATE.split(), cwd=folder, check=True, capture_output=True)
    with ExitStack() as stack:
        served = stack.enter_context(_serving(folder))
        port = free_port()
        stack.enter_context(_nginx(folder, port, int(served.rpartition(":")[2])))
        yield Proxied(port, served, folder / "cert.pem", folder)


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "hookcore_app.cli", "serve", "--port", "0"]
    ours = {"HOOKCORE_ROOT_PATH": PREFIX, "HOOKCORE_ALLOWED_HOSTS": NAME, "HOOKCORE_TOKEN": TOKEN}
    log = folder / "server.log"
    with log.open("wb") as out, _process(command, os.environ | ours, out) as server:
        wait_for(lambda: "hookcore is at" in log.read_text() or server.poll() is not None)
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        assert found, log.read_text()
        yield found[0]


def find_nginx() -> str:
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert nginx is not None, "these tests need nginx: `make test` installs it"
    return nginx


@contextmanager
def _nginx(folder: Path, port: int, behind: int) -> Iterator[None]:
    nginx = find_nginx()
    (shown,) = blocks_of(ROOT / "docs" / "docker.md", "nginx")
    text = shown.text
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("127.0.0.1:8642", f"127.0.0.1:{behind}"),
        (f"/etc/ssl/{NAME}.pem", str(folder / "cert.pem")),
        (f"/etc/ssl/{NAME}.key", str(folder / "key.pem")),
    ):
        assert text.count(old) == 1, f"docs/docker.md has no {old!r}"
        text = text.replace(old, new)
    (folder / "nginx.conf").write_text(NGINX.replace("DOCS", text).replace("FOLDER", str(folder)))
    log = folder / "nginx.log"
    command = [nginx, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    with log.open("wb") as out, _process(command, os.environ, out) as server:
        wait_for(lambda: _is_open(port) or server.poll() is not None)
        assert server.poll() is None, log.read_text()
        yield


@contextmanager
def _process(command: list[str], environment: object, out: BinaryIO) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, cwd=ROOT, env=dict(environment), stdout=out, stderr=out)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()


def _is_open(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0
