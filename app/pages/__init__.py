"""The pages: complete HTML without scripts, rendered by Jinja; scripts make them live. No JSON here."""

from __future__ import annotations

from .. import assets
from .compare import ComparePage
from .events import EventsPage
from .flow import FlowPage
from .frame import compile_templates
from .help import HelpPage
from .histograms import HistogramsPage
from .hooks import HooksPage
from .incident import IncidentPage
from .layer import LayerPage
from .overview import OverviewPage
from .page import router_of
from .runs import RunsPage, summary_of
from .settings import SettingsPage
from .tensors import TensorsPage

__all__ = ["prepare", "router", "summary_of"]

router = router_of(
    (
        RunsPage,
        OverviewPage,
        FlowPage,
        LayerPage,
        HistogramsPage,
        TensorsPage,
        HooksPage,
        EventsPage,
        IncidentPage,
        ComparePage,
        SettingsPage,
        HelpPage,
    )
)


def prepare() -> None:
    """Compile the templates and compress the files of all pages, so that the first readers don't wait for it."""
    compile_templates()
    assets.read_all()
