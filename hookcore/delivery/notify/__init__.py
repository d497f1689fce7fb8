"""Messages about incidents and crashes, through the library apprise. Imports no torch."""

from hookcore.delivery.notify.notifier import (
    PAUSE_S,
    Counters,
    Note,
    Notifier,
    Target,
    note_about,
    note_about_event,
    targets_of,
)

__all__ = ["PAUSE_S", "Counters", "Note", "Notifier", "Target", "note_about", "note_about_event", "targets_of"]
