"""The known state of one training process: its description, its data, and whether it is live."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hookcore.findings import Choices, Finding, FindingsCache
from hookcore.reading import StoreReader
from hookcore.reading.answers.runs import State
from hookcore.records.vocabulary import OWN_RULE_LABEL, TRAINED
from hookcore.records.wire import RunInfo
from hookcore.store import Store

from .changes import Changes
from .commands import Commands
from .parts import Edits, End, Received, Saved, Signs

# most urgent first
STATES: Final[tuple[State, ...]] = ("live", "waiting", "crashed", "lost", "stopped", "ended")
GONE_AFTER_S: Final = 2.0  # of silence: the last batch of a process that has ended may still be read


@dataclass(slots=True)
class RunState:
    """The readable side of a run."""

    info: RunInfo
    store: Store
    commands: Commands
    changes: Changes
    signs: Signs = field(default_factory=Signs)
    name: str = ""
    loaded: bool = True  # False: it is on disk, and its store has only the range of steps
    edits: Edits = field(default_factory=Edits)
    saved: Saved = field(default_factory=Saved)
    received: Received = field(default_factory=Received)
    end: End = field(default_factory=End)
    findings: FindingsCache = field(init=False)

    def __post_init__(self) -> None:
        self.judge()

    def judge(self) -> None:
        """Look for findings in the store, which is another one now."""
        self.findings = FindingsCache(self.store)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def reader(self) -> StoreReader:
        """A reader of its values."""
        return StoreReader(self.store, self.id, self.edits.quiet)

    @property
    def labels(self) -> dict[str, str]:
        """Facts about the training that its trainer reported, without the counters of rules."""
        return {name: text for name, text in self.store.labels().items() if not name.startswith(OWN_RULE_LABEL)}

    @property
    def partial(self) -> str:
        """Why answers about the run may lack something; empty if they don't."""
        return " ".join(filter(None, (self.received.beginning, self.away)))

    @property
    def away(self) -> str:
        """Why steps aren't here yet, or left memory and can't be read now; empty if all can."""
        past = self.store.past
        old = "" if past is None or not past.trouble else f"Steps that left memory can't be read now: {past.trouble}"
        return " ".join(filter(None, (self.received.behind, old)))

    @property
    def is_paused(self) -> bool:
        """Whether its trainer has paused capture."""
        return self.info.settings.get("paused") is True

    @property
    def state(self) -> State:
        """Whether its trainer is live, and if not, how the run ended."""
        if self.end.is_known:
            return "ended" if self.end.failure is None else self.end.failure.outcome
        if self.saved.from_disk:
            return "waiting" if self.saved.is_awaited and not self.is_silent(self.signs.lost_after_s) else "lost"
        return "lost" if self.is_silent(GONE_AFTER_S if self.signs.is_gone else self.signs.lost_after_s) else "live"

    @property
    def trained(self) -> int | None:
        """The number of steps that it trained, captured or not, if its trainer reported it at the end."""
        said = self.info.facts.get(TRAINED)
        return said if isinstance(said, int) else None

    @property
    def steps(self) -> int:
        """The number of steps that it trained, captured or not; of a running one, up to the newest that is known."""
        trained, newest = self.trained, self.store.steps().newest
        if trained is not None and self.finished:
            return trained
        return 0 if newest is None else newest + 1

    def is_silent(self, seconds: float) -> bool:
        """Return whether its trainer, in another process, has sent nothing for longer than this."""
        return self.commands.local is None and self.signs.silent_s > seconds

    @property
    def finished(self) -> bool:
        """Whether no more data can arrive, unless its trainer comes back."""
        return self.state != "live"

    @property
    def rules(self) -> Choices:
        """The thresholds that were chosen, by rule."""
        return self.edits.rule_changes[-1][1] if self.edits.rule_changes else {}

    def has_seen(self, finding: Finding) -> bool:
        """Return whether a finding was acknowledged since it began; a recurring one is new."""
        return self.edits.quiet.has_seen(finding.key, finding.since_step)
