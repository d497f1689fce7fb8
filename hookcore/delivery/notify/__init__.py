"""Messages about incidents and crashes, through the library apprise. Imports no torch."""

from hookcore.delivery.notify.notifier import Note, Notifier, note_about, note_about_event
from hookcore.delivery.notify.targets import Target, targets_of
