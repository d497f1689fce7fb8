"""The speed of a run, as all pages and answers show it."""

from __future__ import annotations

from hookcore.findings.rates import Rates, rates_of, recent

from ..runs import Run


def run_rates(run: Run, first: int | None = None, last: int | None = None) -> Rates:
    """Return the rates of some steps of a run; without any, of the newest ones if it is live, else of all."""
    is_whole = (first, last) == (None, None)
    return rates_of(run.store, recent(run.store) if is_whole and run.state == "live" else first, last)
