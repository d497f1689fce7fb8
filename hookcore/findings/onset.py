"""When a problem began, as far as steps before it were captured."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from hookcore.findings.finding import Finding
from hookcore.store import Store
from hookcore.store.incidents import since_words

OLDER: Final = " or earlier"  # follows the step if the steps before it weren't looked at
_FAR: Final = 4096  # steps before and after an onset in which captured ones are searched


def with_unseen(store: Store, finding: Finding) -> Finding:
    """Return a finding of a tensor that says in which steps it may have begun, if not all of them were captured."""
    since, first = finding.since_step, store.steps().first or 0
    words = since_words(since)
    if finding.is_of_loss or since <= first or words not in finding.message or f"{words}{OLDER}" in finding.message:
        return finding
    rows = store.rows(np.array([finding.number], np.int64), finding.stat, max(first, since - _FAR), since + _FAR)
    seen = rows.present[:, 0] > 0
    if (seen & (rows.first < since) & (rows.last >= since)).any():
        return finding  # the steps around it have been merged
    before, after = rows.last[seen & (rows.last < since)], rows.first[seen & (rows.first >= since)]
    onset = max(since, int(after[0])) if len(after) else since
    unseen = onset - 1 - int(before[-1]) if len(before) else 0
    if (onset, unseen) == (since, 0):
        return finding
    message = finding.message.replace(words, since_words(onset, unseen), 1)
    return replace(finding, since_step=onset, unseen=unseen, message=message)
