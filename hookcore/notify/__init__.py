"""Messages about incidents to chats, mailboxes, and webhooks, through the library apprise. Imports no torch."""

from hookcore.notify.notifier import PAUSE_S, Counters, Note, Notifier, note_about
from hookcore.notify.targets import Target, targets_of

__all__ = ["PAUSE_S", "Counters", "Note", "Notifier", "Target", "note_about", "targets_of"]
