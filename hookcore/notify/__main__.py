"""The process that sends one notification: `python -m hookcore.notify`."""

from hookcore.notify.child import main

main()
