"""`serve`, `open`, `collect`, and requests to a running dashboard."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hookcore.config import token_of
from hookcore.delivery.dashboard import process as dashboard
from hookcore.delivery.dashboard.process import FILE, undelivered_folder
from hookcore.errors import ArgumentError, ServerError
from hookcore.reading.exchange import Exchange

from ..serving import garbage_collector_paused
from ..settings import COLLECTOR, SERVER, CollectorSettings
from .flags import (
    Commands,
    add_command,
    add_flags,
    add_server_flags,
    add_server_or_runs,
    client_of,
    server_settings_of,
)

if TYPE_CHECKING:
    from ..runs import Runs

SERVE_EXAMPLES: Final = """
  hookcore serve                                   for this machine only, at http://127.0.0.1:8642/
  hookcore serve --host 0.0.0.0 --certfile box.pem --keyfile box.key
                                                   for other machines, too; prints a token and a login link
  hookcore serve --store clickhouse://hookcore@box:8123/hookcore --retain 30d
                                                   shows the runs that collectors insert into ClickHouse
  hookcore serve --keep runs --keep-limit 50GB     saves each run in this folder; `--keep none` saves none
  HOOKCORE_URL=http://127.0.0.1:8642 python train.py
                                                   sends a training to it
"""
OPEN_EXAMPLES: Final = """
  hookcore open runs                               all runs in a folder
  hookcore open runs/2026-05-01.hookcore           one run
  hookcore open runs/*.hookcore --port 0           several runs, on any free port
"""
MCP_EXAMPLES: Final = """
  hookcore mcp                                     asks your own dashboard
  hookcore mcp http://box:8642                     a server (token: HOOKCORE_TOKEN)
  hookcore mcp runs                                a folder of saved runs
  hookcore mcp --allow-commands                    agents may also change what is captured
"""
SKILLS_EXAMPLES: Final = """
  hookcore skills install --for claude             for Claude Code, in this project (.claude/skills)
  hookcore skills install --for agents --home      for Codex and others, in all your projects (~/.agents/skills)
  hookcore skills install --to path/to/skills      in any folder
"""
SKILLS: Final = Path(__file__).parents[1] / "skills"
SKILL_FOLDERS: Final = {"agents": ".agents/skills", "claude": ".claude/skills", "cursor": ".cursor/skills"}
OF_TRAINERS: Final = frozenset(  # settings for receiving runs
    ("lost_after_s", "keep", "keep_limit", "store", "retain", "notify", "rules_file", "allow_commands", "dashboard")
)
COLLECT_EXAMPLES: Final = """
  hookcore collect --to http://box:8642            for the trainings on this machine
  hookcore collect --to https://box:8642 --host 0.0.0.0 --spool /var/spool/hookcore --spool-limit 50GB
                                                   for those on other machines, too
  HOOKCORE_URL=http://127.0.0.1:8643 HOOKCORE_TOKEN=... python train.py
                                                   sends a training to it
"""
COLLECTOR_FLAGS: Final = frozenset(
    ("host", "port", "token", "allowed_hosts", "certfile", "keyfile", "max_body", "receive_s", "max_connections")
)
COLLECTOR_PORT: Final = "8643"  # so that it fits next to a server on the same machine


def add_servers(commands: Commands) -> None:
    serve = add_command(commands, "serve", "Receive runs from trainers and serve them, until Ctrl+C.", SERVE_EXAMPLES)
    serve.usage = "hookcore serve [flags]"
    add_server_flags(serve)
    serve.set_defaults(run=_serve)
    show = add_command(commands, "open", "Serve saved runs, until Ctrl+C.", OPEN_EXAMPLES)
    show.usage = "hookcore open [flags] RUN ..."
    show.add_argument("file", nargs="+", type=Path, metavar="RUN", help="saved run, or folder with runs")
    add_server_flags(show, {setting.name for setting in SERVER} - OF_TRAINERS)
    show.set_defaults(run=_open)
    collect = add_command(
        commands,
        "collect",
        "Receive data from trainers, keep it on disk, and send it to a server, until Ctrl+C.",
        COLLECT_EXAMPLES,
    )
    add_flags(collect, COLLECTOR)
    collect.usage = "hookcore collect --to ADDRESS [flags]"
    add_server_flags(collect, COLLECTOR_FLAGS, {"port": COLLECTOR_PORT})
    collect.set_defaults(run=_collect)


def add_skills(commands: Commands) -> None:
    about = "Install the skill that tells a coding agent how to use hookcore."
    skills = add_command(commands, "skills", about, SKILLS_EXAMPLES)
    skills.add_argument("action", choices=("install",), help="what to do")
    where = skills.add_mutually_exclusive_group(required=True)
    where.add_argument("--for", dest="agent", choices=tuple(SKILL_FOLDERS), help="agent whose folder to install it in")
    where.add_argument("--to", type=Path, metavar="FOLDER", help="folder to install it in")
    skills.add_argument("--home", action="store_true", help="with --for: for all projects, in your home folder")
    skills.add_argument("--force", action="store_true", help="overwrite a skill that was changed")
    skills.set_defaults(run=_install_skills)


def _install_skills(given: argparse.Namespace, _environment: Mapping[str, str]) -> str:
    folder: Path = given.to or (Path.home() if given.home else Path()) / SKILL_FOLDERS[given.agent]
    told = []
    for source in sorted(SKILLS.glob("*/SKILL.md")):
        path, text = folder / source.parent.name / source.name, source.read_text("utf-8")
        try:
            if path.exists() and path.read_text("utf-8") != text and not given.force:
                raise ArgumentError(f"{str(path)!r} differs from this version's: use --force to overwrite it")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"can't write {str(path)!r}: {error}; choose another folder with --to") from None
        told.append(f"installed {path}")
    return "\n".join(told)


def add_mcp(commands: Commands) -> None:
    mcp = add_command(
        commands, "mcp", "Answer the questions of a coding agent: MCP over standard input and output.", MCP_EXAMPLES
    )
    add_server_or_runs(mcp)
    mcp.add_argument("--allow-commands", action="store_true", help="let agents change what is captured")
    mcp.set_defaults(run=_mcp)


def _mcp(given: argparse.Namespace, _environment: Mapping[str, str]) -> str:
    try:
        from .. import agents  # only agents need it
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ArgumentError("mcp is not installed: run `pip install 'hookcore[mcp]'`") from None
    with client_of(given) as client:
        agents.serve_stdio(client, given.allow_commands)
    return ""


def _serve(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    with garbage_collector_paused():
        from ..serving.server import run  # only a server needs it

        run(server_settings_of(given, environment), environment)
    return ""


def _open(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    for path in given.file:
        if not path.exists():
            raise ArgumentError(f"{str(path)!r} is not a file or folder: give the path of a saved run")
    from ..runs.keep import Growing
    from ..runs.saved import show_all
    from ..serving.server import run

    stopping = threading.Event()

    def fill(runs: Runs) -> None:
        for path in given.file:
            show_all(runs, path)
        Growing(runs).start(stopping)

    try:
        run(replace(server_settings_of(given, environment), dashboard=False, keep="", store=""), environment, fill)
    finally:
        stopping.set()
    return ""


def _collect(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    from ..collector.service import run  # only a collector needs it

    if given.port is None and not environment.get("HOOKCORE_PORT"):
        given.port = COLLECTOR_PORT
    run(server_settings_of(given, environment), CollectorSettings.of(vars(given), environment))
    return ""


ASK_S: Final = 60.0  # a test waits for every target
LINK_EXAMPLES: Final = """
  hookcore link                                    for your own dashboard
  HOOKCORE_TOKEN=... hookcore link https://box:8642 --read-only
                                                   for a server; the browser can't change anything
"""
TEST_EXAMPLES: Final = """
  hookcore notify-test                             to the targets of your own dashboard
  HOOKCORE_TOKEN=... hookcore notify-test https://box:8642
                                                   to those of a server
"""
LOGOUT_EXAMPLES: Final = """
  hookcore logout                                  log out of your own dashboard
  HOOKCORE_TOKEN=... hookcore logout https://box:8642
                                                   log out of a server
"""


def add_dashboards(commands: Commands) -> None:
    status = add_command(commands, "status", "Show where your dashboard is.", "\n  hookcore status\n")
    status.set_defaults(run=_status)
    stop = add_command(commands, "stop", "Stop your dashboard.", "\n  hookcore stop\n")
    stop.set_defaults(run=_stop)
    link = add_command(commands, "link", "Create a one-time link that logs in one browser.", LINK_EXAMPLES)
    logout = add_command(commands, "logout", "Log all browsers out of a server.", LOGOUT_EXAMPLES)
    test = add_command(commands, "notify-test", "Send a test message to all notification targets.", TEST_EXAMPLES)
    test.set_defaults(run=_test)
    for command in (link, logout, test):
        command.add_argument("url", nargs="?", default="", help="address of the server (default: your own dashboard)")
        command.add_argument("--token", default="", help="token of the server (default: HOOKCORE_TOKEN)")
    logout.set_defaults(run=_logout)
    link.add_argument("--read-only", action="store_true", help="let the browser read everything, but change nothing")
    link.set_defaults(run=_link)


def _stop(_given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    return dashboard.stop_dashboard(environment)


def _status(_given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    return "\n".join([_dashboard_line(environment), *_spool_line(environment)])


def _dashboard_line(environment: Mapping[str, str]) -> str:
    found = dashboard.status(environment)
    if not found.running:
        return "no dashboard is running"
    if not found.url:
        return f"a dashboard is starting, or {found.folder / FILE} is damaged; log file: {found.log}"
    return f"the dashboard is at {found.url}/ (process {found.pid}); log file: {found.log}"


def _spool_line(environment: Mapping[str, str]) -> list[str]:
    """Return what trainers couldn't deliver, if there is anything."""
    folder = undelivered_folder(environment)
    if not folder.is_dir():
        return []
    from hookcore.delivery.archive.spool import LIMIT_BYTES, bytes_of_spool, spools_in  # needs what dashboards need

    spools = spools_in(folder)
    if not spools:
        return []
    size, limit = (f"{nbytes / 1e6:,.1f} MB" for nbytes in (sum(map(bytes_of_spool, spools)), LIMIT_BYTES))
    waits = "1 run waits" if len(spools) == 1 else f"{len(spools):,} runs wait"
    return [f"{waits} for a dashboard, or for its server, in {folder} ({size} of at most {limit})"]


def _link(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    role = "reader" if given.read_only else "owner"
    return str(_post(given, environment, "/api/v1/login-link", {"role": role})["url"])


def _logout(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    ended = _post(given, environment, "/api/v1/logout", {"everyone": True})["sessions"]
    browsers = "1 browser was" if ended == 1 else f"{ended} browsers were"
    return f"{browsers} logged out, and unopened login links no longer work"


def _test(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    targets = _post(given, environment, "/api/v1/notifications/test", {})["targets"]
    failed = [target["name"] for target in targets if not target["works"]]
    if failed:
        raise ServerError(
            f"the test message did not reach {', '.join(failed)}: check the address with `apprise -vv -b test ADDRESS`"
        )
    return f"the test message reached {', '.join(target['name'] for target in targets)}"


def _post(given: argparse.Namespace, environment: Mapping[str, str], path: str, asked: dict[str, Any]) -> Any:
    url, token = given.url, given.token or token_of(environment)
    if not url:
        found = dashboard.find(environment)
        if found is None:
            raise ArgumentError("no dashboard is running: give the address of a server")
        url, token = found.url, found.token
    exchange = Exchange(url, token or None, ASK_S)
    try:
        return exchange.ask(dict[str, Any], "POST", path, asked)
    finally:
        exchange.close()
