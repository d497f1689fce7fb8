"""The pages: complete HTML without scripts, rendered by Jinja; scripts make them live. No JSON here."""

from __future__ import annotations

from .. import assets
from .compare import ComparePage, DifferencesPage
from .frame import compile_templates
from .home import BoardPage, GroupPage, MetricsPage, RunsPage
from .model import DrawerPage, FlowPage, LayerPage, ModelPage, PrecisionPage
from .overview import CapturePage, HooksPage, OverviewPage, SystemPage, TimelinePage
from .page import router_of
from .problems import EventsPage, IncidentPage, RulesPage
from .ranks import RanksPage
from .settings import HelpPage, SettingsPage
from .tensors import HistogramsPage, MediaPage, TensorsPage

router = router_of(
    (
        RunsPage,
        GroupPage,
        OverviewPage,
        ModelPage,
        FlowPage,
        LayerPage,
        HistogramsPage,
        DifferencesPage,
        PrecisionPage,
        RanksPage,
        TensorsPage,
        MetricsPage,
        MediaPage,
        BoardPage,
        SystemPage,
        CapturePage,
        RulesPage,
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
