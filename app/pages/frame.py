"""The frame of all pages, its numbers and labels, and how a page is rendered."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request
from jinja2 import Environment
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from hookcore.reading.answers import Module
from hookcore.records import KINDS, ROOT, TENSOR_KINDS, Severity, Tap
from hookcore.records.vocabulary import KIND_TITLES, KIND_WORDS, SEVERITY_WORDS, counted, titled
from hookcore.store import STAT_NAMES

from .. import assets
from ..analysis.modules import finder_of
from ..analysis.numerals import pace, percent, shown, size, thousands
from ..formats import words_of
from ..runs import Run, Runs, joint_in, why_gone
from ..runs.joint import local_kinds
from ..serving.guard.security import is_framed, may_change
from .views.events import Line, problem_lines
from .views.span import SHARED, Shared, ending_of, stop_of, usual_steps
from .views.words import SEARCHED

# How templates write times, paths, texts, and numbers.

LONG_AGO_S: Final = 30 * 86400.0  # from then on, a date says more
_TAIL_LETTERS: Final = 12  # of a name that is shortened in the middle
_NAME_LETTERS: Final = 5  # of what is shortened in a path: fewer say nothing


def moment(time_s: float) -> str:
    """Return a time in ISO format, to the second; "" if no calendar has it."""
    try:
        return datetime.fromtimestamp(time_s, timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def since(time_s: float, now_s: float) -> str:
    """Write when something was: just now, 12 s ago, 3 h ago; the date if it was more than a month ago."""
    passed_s = now_s - time_s
    if not passed_s <= LONG_AGO_S:
        return moment(time_s).partition("T")[0]
    for size_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if passed_s >= size_s:
            return f"{int(passed_s // size_s)} {unit} ago"
    return "just now" if passed_s < 2 else f"{int(passed_s)} s ago"


def basename(path: str) -> str:
    """Return the last part of a path of any operating system."""
    return path.replace("\\", "/").rpartition("/")[2]


def ends(text: str) -> Markup:
    """Return a text whose middle shrinks if space is short, because names often differ at their ends."""
    if len(text) <= _TAIL_LETTERS:
        return escape(text)
    parts = Markup('<span class="ends"><span>{}</span><span>{}</span></span>')
    return parts.format(text[:-_TAIL_LETTERS], text[-_TAIL_LETTERS:])


def code(text: str) -> Markup:
    """Render text between backticks as code, also in a text that is escaped already; a backtick alone stays."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts[-2:] = [parts[-2] + "`" + parts[-1]]
    # split yields text and code in turn; Markup.format escapes its arguments
    parts = [Markup("<code>{}</code>" if place % 2 else "{}").format(part) for place, part in enumerate(parts)]
    return Markup("").join(parts)


def breakable(text: str) -> Markup:
    """Return a text whose paths wrap after dots, slashes, and underscores, and so never inside a word or a number."""
    return Markup("<wbr>").join(re.split(r"(?<=[/_=:\\])(?=\w)|(?<=\w\.)(?=[^\W\d])|(?<=[^\W\d]\.)(?=\d)", text))


def middle(text: str, most: int) -> str:
    """Shorten a text in its middle to `most` characters, because names often differ at both ends."""
    if len(text) <= most:
        return text
    end = (most - 1) * 3 // 5
    return f"{text[: most - 1 - end]}\u2026{text[-end:]}"


def short_path(text: str, most: int) -> str:
    """Shorten what stands between the numbers of a module's path, because these tell layers apart."""
    if len(text) <= most:
        return text

    def cut(longest: int) -> str:
        return re.sub(r"[^. \d]+", lambda run: middle(run[0], longest), text)

    lengths = range(_NAME_LETTERS + 1, most + 1)
    fit = bisect_right(lengths, most, key=lambda longest: len(cut(longest)))
    return cut(lengths[fit - 1]) if fit else middle(text, most)


def camels(name: str) -> Markup:
    """Return the name of a class that wraps before its words."""
    return Markup("<wbr>").join(re.findall(r"[A-Z]?[^A-Z]+|[A-Z]+(?![a-z])", name) or [name])


# How modules are named where there is little room.

_MAX_SPELLED: Final = 500  # names that get a class
_REVERSED: Final = re.compile(r"Linear|Conv\dd$")  # classes whose weight has the outputs first


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """The names of a run's modules in tables, axes, and labels; scripts get the same as data.

    `shared` is what the paths of all modules begin with, except for those that contain all others: it is left out.
    `spelled` has the names of modules that would be a number, with their class and shape. `root` is the model's class.
    """

    shared: str = ""
    spelled: Mapping[str, str] = field(default_factory=dict)
    root: str = ""

    def of(self, path: str) -> str:
        """Return the name of a module."""
        return self.spelled.get(path) or self._short(path) or self.root or ROOT

    def said(self, tap: Tap, words: str = "") -> str:
        """Return words about a tap that begin with its module's path, such as its name, with the module's name."""
        return self.of(tap.module) + (words or tap.name).removeprefix(tap.module or ROOT)

    def _short(self, path: str) -> str:
        return path[len(self.shared) :] if self.shared and path.startswith(self.shared) else path

    @property
    def json(self) -> str:
        """The names as data for scripts; "" if all are paths."""
        return json.dumps(asdict(self), separators=(",", ":")) if self.shared or self.spelled or self.root else ""


def names_of(modules: Sequence[Module]) -> ModuleNames:
    """Return the names of modules, which are given in the model's order."""
    outer = _outer(modules)
    inner = {module.path: "" if f"{module.path}/" == outer else module.path.removeprefix(outer) for module in modules}
    below: dict[str, set[str]] = {}
    for path in inner.values():
        parts = path.split(".") if path else []
        for depth, part in enumerate(parts):
            below.setdefault(".".join(parts[:depth]), set()).add(part)
    at = ""
    while len(children := below.get(at, set())) == 1:
        (child,) = children
        deeper = f"{at}.{child}" if at else child
        if deeper not in below:
            break
        at = deeper
    names = ModuleNames(outer + (f"{at}." if at else ""))
    types = {inner[module.path]: module.type for module in modules}
    spelled: dict[str, str] = {}
    for module in modules:
        short, path = names._short(module.path), inner[module.path]
        inside, _, last = path.rpartition(".")
        is_one_of_many = last.isdigit() and types.get(inside) == "Sequential" and path not in below
        if len(spelled) < _MAX_SPELLED and (short.replace(".", "").isdigit() or is_one_of_many):
            spelled[module.path] = f"{short} {module.type}{_shape_of(module)}"
    return ModuleNames(names.shared, spelled, "" if outer else types.get("", ""))


def _outer(modules: Sequence[Module]) -> str:
    """Return the name of the only model that `watch()` has found, which begins the paths of all modules inside it."""
    root = f"{modules[0].path}/" if modules else ""
    return root if len(modules) > 1 and all(each.path.startswith(root) for each in modules[1:]) else ""


def naming(run: Run | None) -> dict[str, Any]:
    """Return what templates need to name modules of a run, which are read once, if any is named."""
    names = cache(lambda: names_of(run.reader.modules(taps=False)) if run is not None else ModuleNames())
    return {
        "module_names": names,
        "name_of": lambda path: names().of(path),
        "name_of_tap": lambda tap, words="": names().said(tap, words),
    }


def _shape_of(module: Module) -> str:
    """Return what a layer's weight maps from and to, as in the call that made the layer; "" without a weight."""
    shape = module.shapes.get("weight", ())
    if _REVERSED.search(module.type) and "Transpose" not in module.type:
        shape = shape[:2][::-1]
    return f"({', '.join(map(str, shape[:2]))})" if shape else ""


FILTERS: Final[tuple[Callable[..., Any], ...]] = (
    ends,
    middle,
    short_path,
    titled,
    breakable,
    camels,
    shown,
    percent,
    thousands,
    counted,
    pace,
    moment,
    since,
    size,
    basename,
    code,
)


THEMES: Final = ("system", "light", "dark")
THEME_COOKIE: Final = "hookcore-theme"
FIND_WORDS: Final = "Part of the path, or layers.*.attn, re:.*(q|k), type:Linear, is:nan, depth:2; ! negates"
LOCAL_WORDS: Final = "Gradients of each rank's own loss, before the all-reduce: see docs/ranks.md"
UNSURE_WORDS: Final = (
    "It is unknown whether the ranks have parts or copies of this tensor. Equal values count once, and different ones "
    "are added up, so copies that differ slightly count several times: see docs/ranks.md"
)
MAX_PICKED: Final = 256  # ranks in the picker


@dataclass(frozen=True, slots=True)
class Tab:
    """A page of a run. Without a key, it has no place in the navigation of its entry."""

    page: str
    title: str
    path: str  # below the run
    key: str = ""  # after `g`
    was: str = ""  # an older path, which leads here
    finds: bool = True  # whether the find box filters this page; otherwise it leads to the flow page
    has_drawer: bool = False  # whether the names of layers open the drawer
    if_any: str = ""  # shown if the run has any: "ranks" or "media"


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """An entry of the menu of a run, with its pages. Without a title, they belong to no entry."""

    title: str
    tabs: tuple[Tab, ...]
    keeps: tuple[str, ...] = ()  # what of the address goes along from tab to tab, besides the steps

    @property
    def names(self) -> list[tuple[Tab, str]]:
        """The tabs with a key, each with its name outside of the entry: `Flow: histograms`."""
        return [
            (tab, self.title if tab.title == self.title else f"{self.title}: {tab.title[0].lower()}{tab.title[1:]}")
            for tab in self.tabs
            if tab.key
        ]


# The menu, the tabs, the titles, the shortcuts, the Help page, the addresses, and the redirects are made of this table.
ENTRIES: Final = (
    MenuEntry("Summary", (Tab("overview", "Summary", "", "s", has_drawer=True),)),
    MenuEntry(
        "Problems",
        (
            Tab("events", "Problems", "/problems", "p", "/events", has_drawer=True),
            Tab("incident", "Problem", "/problems/incident", "", "/incident", finds=False, has_drawer=True),
        ),
    ),
    MenuEntry(
        "Model",
        (
            Tab("model", "Picture", "/model", "m", has_drawer=True),
            Tab("layer", "Layers", "/model/layers", "l", "/layer", finds=False),
            Tab("tensors", "Tensors and attention", "/model/tensors", "t", "/tensors"),
        ),
        keeps=("module",),
    ),
    MenuEntry(
        "Flow",
        (
            Tab("flow", "Gradient flow", "/flow", "f", has_drawer=True),
            Tab("histograms", "Histograms", "/flow/histograms", "h", "/histograms", has_drawer=True),
            Tab("differences", "What changed", "/flow/changes", "d", "/differences", has_drawer=True),
            Tab("precision", "Precision", "/flow/precision", "q"),
        ),
        keeps=("f", "kind"),
    ),
    MenuEntry(
        "Metrics",
        (
            Tab("metrics", "Scalars", "/metrics", "e", finds=False),
            Tab("board", "Pinned", "/metrics/pinned", "b", "/board", finds=False),
            Tab("media", "Media", "/metrics/media", "i", "/media", finds=False, if_any="media"),
        ),
    ),
    MenuEntry(
        "Performance",
        (
            Tab("system", "Time and machine", "/performance", "o", "/system", finds=False),
            Tab("ranks", "Ranks", "/performance/ranks", "n", "/ranks", has_drawer=True, if_any="ranks"),
        ),
    ),
    MenuEntry(
        "Capture",
        (
            Tab("capture", "Coverage and settings", "/capture", "c", "/hooks"),
            Tab("rules", "Rules", "/capture/rules", "u", finds=False),
            Tab("hooks", "Hooks", "/capture/hooks", "k", finds=False),
        ),
    ),
    MenuEntry(
        "", (Tab("timeline", "Timeline", "/timeline", finds=False), Tab("drawer", "Drawer", "/drawer", finds=False))
    ),
)
TABS: Final = {tab.page: tab for entry in ENTRIES for tab in entry.tabs}


@dataclass(frozen=True, slots=True)
class TabLink:
    """A tab, and its address with what it keeps of the page's address."""

    tab: Tab
    address: str
    is_shown: bool


def entry_of(page: str) -> MenuEntry | None:
    """Return the entry of a page of a run."""
    return next((entry for entry in ENTRIES if any(tab.page == page for tab in entry.tabs)), None)


def tabs_of(request: Request, run: Run, page: str) -> list[TabLink]:
    """Return the tabs of the page's entry that have something to show; nothing if it is only one."""
    entry = entry_of(page)
    if entry is None:
        return []
    kept = {name: request.query_params[name] for name in entry.keeps if name in request.query_params}
    here = [tab for tab in entry.tabs if tab.key and (tab.page == page or _has_any(run, tab))]
    links = [TabLink(tab, address_of(run, tab.page, **kept), tab.page == page) for tab in here]
    return links if len(links) > 1 else []


def _has_any(run: Run, tab: Tab) -> bool:
    if tab.if_any == "ranks":
        return joint_in(run) is not None
    return tab.if_any != "media" or bool(run.reader.media())


@dataclass(frozen=True, slots=True)
class Find:
    """The find box: its content, the page that shows the results, and the rest of the address."""

    text: str
    action: str
    here: bool
    kept: list[tuple[str, str]]
    problem: str  # what is wrong with the text


@dataclass(frozen=True, slots=True)
class Alerts:
    """A run's warnings and errors, neither acknowledged nor muted, from findings and events. The worst is first."""

    severities: tuple[Severity, ...] = ()
    title: str = ""  # of the worst
    where: str = ""  # its module
    message: str = ""
    hedge: str = ""  # follows the title if the layer isn't known
    unread: str = ""  # why there may be others, or some at all, that are only known once the run is read

    @property
    def count(self) -> int:
        return len(self.severities)

    @property
    def worst(self) -> str:
        """The severity of the worst alert, or ""."""
        return self.severities[0] if self.severities else ""


def alerts_of(run: Run) -> Alerts:
    """Return the alerts of a run that its store still has."""
    lines = [line for line in problem_lines(run) if line.is_alert]
    if not lines:
        return Alerts()
    worst = lines[0]
    return Alerts(tuple(line.severity for line in lines), worst.title, worst.module, worst.message, hedge_of(worst))


def hedge_of(line: Line) -> str:
    """Return the words after the title of a finding whose layer isn't known."""
    return "" if line.is_placed else "; the layer isn't known"


def status_of(run: Run) -> str:
    """Return the run's status in the header, until the page's script updates it."""
    newest = run.reader.steps().newest
    if newest is None and run.state == "live":
        return "waiting for the first step"
    state = "capture paused" if run.state == "live" and run.is_paused else run.state
    # What ended it early happened in the step after the newest one, which the banner says.
    return state if newest is None or run.end.failure is not None else f"{state} \u00b7 step {newest:,}"


def no_change_words(run: Run) -> str:
    """Return why the settings of a run can't be changed, or nothing if its trainer is there."""
    words = {
        "ended": "This run has ended, so its settings can't be changed.",
        "crashed": "This run has crashed, so its settings can't be changed.",
        "stopped": "This run was stopped, so its settings can't be changed.",
        "lost": "This run's trainer isn't responding, so its settings can't be changed.",
        "waiting": "This run's trainer hasn't reconnected to this server yet, so its settings can't be changed.",
    }
    return words.get(run.state, "")


def _rest_of(request: Request) -> str:
    """Return the query of the address without the step and without parts, to which a step can be added."""
    rest = [(name, value) for name, value in request.query_params.multi_items() if name not in ("step", "part")]
    return f"{urlencode(rest)}&" if rest else ""


def _find_of(request: Request, page: str, run: Run) -> Find:
    here = page in TABS and TABS[page].finds
    query = request.query_params
    kept = [(name, value) for name, value in query.multi_items() if name != "f" and (here or name in SHARED)]
    text = query.get("f", "")
    return Find(
        text, address_of(run, page if here else "flow"), here, kept, finder_of(run, text).problem if here else ""
    )


def _make_templates() -> Environment:
    templates = assets.open_templates()
    templates.filters |= {each.__name__: each for each in FILTERS}
    templates.globals |= {
        "ROOT": ROOT,
        "words_of": words_of,
        "entries": tuple(entry for entry in ENTRIES if entry.title),
        "has_any": _has_any,
        "paths": {tab.page: tab.path for tab in TABS.values()},
        "searched": SEARCHED,
        "with_drawer": frozenset(tab.page for tab in TABS.values() if tab.has_drawer),
        "kinds": KINDS,
        "kind_names": KIND_WORDS,  # of one tensor
        "kind_titles": KIND_TITLES,  # of several
        "tensor_kinds": TENSOR_KINDS,
        "stat_names": STAT_NAMES,
        "find_words": FIND_WORDS,
        "local_words": LOCAL_WORDS,
        "unsure_words": UNSURE_WORDS,
        "severity_words": SEVERITY_WORDS,
    }
    return templates


_TEMPLATES: Final = _make_templates()


def compile_templates() -> None:
    """Compile all page templates in advance. The report compiles its own."""
    for name in _TEMPLATES.list_templates(filter_func=lambda name: not name.startswith("report/")):
        _TEMPLATES.get_template(name)


def run_of(request: Request, run_id: str) -> Run:
    """Return the run of an address; `newest` is the one that was started last."""
    runs: Runs = request.app.state.runs
    run = runs.find(run_id)
    if run is None and run_id == "newest" and (known := runs.all()):
        run = runs.read(known[0])
    if run is None:
        raise HTTPException(
            404,
            why_gone(runs.gone(), run_id)
            or runs.partial
            or "This server doesn't have this run: it hasn't arrived yet, or was removed before the server restarted",
        )
    return run


@dataclass(frozen=True, slots=True)
class RankLink:
    """A rank, or all of them, and the page of its run."""

    title: str
    run: str
    address: str
    is_shown: bool


@dataclass(frozen=True, slots=True)
class RanksToPick:
    """The ranks of a training, of which the page shows one or all."""

    title: str
    links: tuple[RankLink, ...]
    more: int  # that have no link


def ranks_to_pick(run: Run, page: str) -> RanksToPick | None:
    """Return the ranks that the reader can choose; None for a single process."""
    joint = joint_in(run)
    if joint is None:
        return None
    page = page if path_of(page) else "overview"
    current = joint.rounds.current()
    shown = next((member for member in joint.rounds.members.values() if member.run is run), None)
    title = f"all {joint.rounds.world:,} ranks" if shown is None else f"rank {shown.place.rank:,}"
    ranks = [
        RankLink(f"{each.place.rank:,}", each.run.id, address_of(each.run, page), each.run is run)
        for each in current[:MAX_PICKED]
    ]
    links = (RankLink("All ranks", joint.run.id, address_of(joint.run, page), shown is None), *ranks)
    return RanksToPick(title, links, max(0, len(current) - MAX_PICKED))


def path_of(page: str) -> str:
    """Return the path of a page below its run."""
    return TABS[page].path if page in TABS else ""


def address_of(run: Run, page: str = "overview", **query: Any) -> str:
    """Return the address of a page of a run, relative to the server's root.

    The query leaves out None and empty texts, but an empty `module` is the root.
    """
    given = {name: value for name, value in query.items() if value is not None and (value != "" or name == "module")}
    asked = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in given.items())
    return f"runs/{quote(run.id, safe='')}{path_of(page)}{'?' + asked if asked else ''}"


def render(
    request: Request, page: str, *, run: Run | None = None, shared: Shared | None = None, **values: Any
) -> HTMLResponse:
    """Render a page in its frame. Its addresses are relative to `<base>`, so that it works below any prefix.

    `shared` is the part of the address that links to the run's other pages keep.
    """
    root = request.scope.get("root_path", "")
    theme = request.cookies.get(THEME_COOKIE, "system")
    steps = run.reader.steps() if run is not None else None
    path = request.url.path.removeprefix(root)
    query = f"?{request.url.query}" if request.url.query else ""
    query_kept = shared.query if shared is not None else ""
    missing = [request.app.state.runs.partial, run.partial if run is not None else ""]
    common = {
        "root": root,
        "partial": " ".join(filter(None, missing)),
        "static": f"static/{assets.version()}",
        "here": f"{root}{path}{query}",
        "url": str(request.base_url).rstrip("/"),
        "here_step": f"{path.lstrip('/')}?{_rest_of(request)}step=",
        "page": page,
        "timeline": None,
        "shared": shared,
        "theme": theme if theme in THEMES else "system",
        "run": run,
        "run_path": address_of(run) if run is not None else "",
        "steps": steps,
        "status": status_of(run) if run is not None else "",
        "stop": stop_of(run) if run is not None else None,
        "ending": ending_of(run) if run is not None else None,
        "entry": entry_of(page) if run is not None else None,
        "tabs": tabs_of(request, run, page) if run is not None else [],
        "title": TABS[page].title if page in TABS else "",
        "ranks_to_pick": ranks_to_pick(run, page) if run is not None else None,
        "alerts": alerts_of(run) if run is not None else Alerts(),
        "usual_steps": usual_steps(run) if run is not None else "",
        "held_steps": f"?{query_kept}" if query_kept else "",  # of a link without a query
        "and_steps": f"&{query_kept}" if query_kept else "",  # of one with a query
        "local_kinds": local_kinds(run) if run is not None else frozenset(),
        "find": _find_of(request, page, run) if run is not None else None,
        "may_change": may_change(request.scope, request.app.state.access),
        "is_framed": is_framed(request.scope),
        "tour": request.query_params.get("tour", ""),
    }
    common |= naming(run)
    html = _TEMPLATES.get_template(f"{page}.html").render(common | values)
    return HTMLResponse(html)
