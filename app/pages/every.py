"""All pages: the routes to them, and what is prepared for their first readers."""

from __future__ import annotations

from .. import assets
from .board import BoardPage
from .compare import ComparePage
from .differences import DifferencesPage
from .drawer import DrawerPage
from .events import EventsPage
from .flow import FlowPage
from .frame import compile_templates
from .help import HelpPage
from .histograms import HistogramsPage
from .hooks import HooksPage
from .incident import IncidentPage
from .layer import LayerPage
from .media import MediaPage
from .model import ModelPage
from .overview import OverviewPage
from .page import router_of
from .ranks import RanksPage
from .runs import RunsPage
from .settings import SettingsPage
from .system import SystemPage
from .tensors import TensorsPage
from .timeline import TimelinePage

router = router_of(
    (
        RunsPage,
        OverviewPage,
        ModelPage,
        FlowPage,
        LayerPage,
        HistogramsPage,
        DifferencesPage,
        RanksPage,
        TensorsPage,
        MediaPage,
        BoardPage,
        SystemPage,
        HooksPage,
        EventsPage,
        IncidentPage,
        TimelinePage,
        DrawerPage,
        ComparePage,
        SettingsPage,
        HelpPage,
    )
)


def prepare() -> None:
    """Compile the templates and compress the files of all pages, so that the first readers don't wait for it."""
    compile_templates()
    assets.read_all()
