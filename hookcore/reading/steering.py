"""Changes to a run on a server, and requests to its trainer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from hookcore.errors import ServerError
from hookcore.reading import answers
from hookcore.reading.answers.base import TapName
from hookcore.reading.remote import RemoteReader, name_of
from hookcore.records import Kind, Names, Phase, Snapshot

POLL_S: Final = 0.05


class RemoteRun(RemoteReader):
    """A reader that can also change the run, and send commands to its trainer."""

    def rename(self, run: str, name: str | None = None, notes: str | None = None) -> answers.Run:
        """Change the name or the notes of a run."""
        changes = {key: value for key, value in (("name", name), ("notes", notes)) if value is not None}
        return self._ask(answers.Run, "PATCH", f"/api/v1/runs/{run}", body=changes)

    def look_for_hooks(self, run: str | None = None) -> answers.Accepted:
        """Ask the trainer to search for hooks at its next step."""
        return self._ask(answers.Accepted, "POST", "/api/v1/hooks", {"run": run})

    def save_step(self, run: str | None = None) -> answers.Accepted:
        """Ask the trainer to save its next step to a capsule."""
        return self._ask(answers.Accepted, "POST", "/api/v1/capsules", {"run": run})

    def acknowledge(self, key: str, acknowledged: bool = True, run: str | None = None) -> None:
        """Acknowledge a finding or an event by its `key`, or undo that."""
        body = self._about(run, key=key, acknowledged=acknowledged)
        self._exchange.send("POST", "/api/v1/acknowledgements", body=body)

    def annotations(self, run: str | None = None) -> list[answers.Annotation]:
        """Return the annotations of a run, by step."""
        return list(self._get(answers.Annotations, "/api/v1/annotations", {"run": run}).annotations)

    def annotate(self, step: int, text: str, run: str | None = None) -> list[answers.Annotation]:
        """Annotate a step; an earlier annotation of the step is replaced. Returns the annotations of the run."""
        body = self._about(run, step=step, text=text)
        return list(self._ask(answers.Annotations, "POST", "/api/v1/annotations", body=body).annotations)

    def remove_annotation(self, step: int, run: str | None = None) -> list[answers.Annotation]:
        """Remove the annotation of a step. Returns the remaining annotations."""
        asked = {"step": step, "run": run}
        return list(self._ask(answers.Annotations, "DELETE", "/api/v1/annotations", asked).annotations)

    def rules(self, run: str | None = None) -> answers.RunRules:
        """Return the rules of a run, each with its thresholds."""
        return self._get(answers.RunRules, "/api/v1/rules", {"run": run})

    def change_rules(
        self, rules: Mapping[str, Mapping[str, float] | bool | None], run: str | None = None
    ) -> answers.RunRules:
        """Change thresholds, as in `{"spike": {"factor": 20}}`; False switches a rule off, True restores its defaults.

        A change applies to future steps. Returns the rules of the run.
        """
        return self._ask(answers.RunRules, "POST", "/api/v1/rules", body=self._about(run, rules=dict(rules)))

    def mutes(self, run: str | None = None) -> list[answers.Mute]:
        """Return the mutes of a run, each with the number of findings, incidents, and events that it covers."""
        return list(self._get(answers.Mutes, "/api/v1/mutes", {"run": run}).mutes)

    def mute(self, rule: str, match: str = "", run: str | None = None) -> list[answers.Mute]:
        """Mute a rule, or events with a name, in the modules that match a pattern. Returns the mutes of the run.

        Muted findings are still found and listed, but raise no alert.
        """
        body = self._about(run, rule=rule, match=match)
        return list(self._ask(answers.Mutes, "POST", "/api/v1/mutes", body=body).mutes)

    def unmute(self, rule: str, match: str = "", run: str | None = None) -> list[answers.Mute]:
        """Remove a mute, given as it was made. Returns the remaining mutes."""
        asked = {"rule": rule, "match": match, "run": run}
        return list(self._ask(answers.Mutes, "DELETE", "/api/v1/mutes", asked).mutes)

    def request_snapshot(
        self,
        tap: TapName | None = None,
        *,
        module: str | None = None,
        kind: Kind = "output",
        index: str = "",
        call: int = 0,
        phase: Phase = "train",
        run: str | None = None,
    ) -> answers.Accepted:
        """Ask the trainer to capture a tensor of a tap or of a module."""
        if tap is not None:
            body: dict[str, Any] = {"tap": name_of(tap)}
        else:
            body = {"module": module, "kind": kind, "index": index, "call": call, "phase": phase}
        return self._ask(answers.Accepted, "POST", "/api/v1/snapshots", {"run": run}, body)

    def request_attention_maps(self, match: str | None = None, run: str | None = None) -> tuple[int, ...]:
        """Request every output that may be attention, with its gradient, in one step. Returns their future numbers."""
        asked = {"match": match, "run": run}
        said = self._ask(answers.RequestedMaps, "POST", "/api/v1/attention-rollout", asked)
        return tuple(each.number for each in said.asked)

    def snapshot(self, tap: TapName | None = None, timeout_s: float = 30.0, **wanted: Any) -> Snapshot:
        """Request a tensor (like `request_snapshot`) and wait for it. Its values are at `.values`."""
        asked = self.request_snapshot(tap, **wanted)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                values = self.tensor(asked.number, run=asked.run)
                break
            except ServerError as error:
                if error.status != 404:
                    raise
            if time.monotonic() > deadline:
                raise ServerError(
                    f"snapshot {asked.number} of the run {asked.run} did not arrive within {timeout_s:g} s: is the "
                    "training running, and does it call this module? It may still arrive: see snapshots()"
                )
            time.sleep(POLL_S)
        entry = next(each for each in self.snapshots(run=asked.run) if each.number == asked.number)
        about = entry.tap.record, entry.step, entry.time_s, entry.dtype, entry.shape
        names = None
        if entry.named:
            said = self.snapshot_names(entry.number, run=asked.run)
            names = Names(said.tokens, said.shared, said.labels)
        return Snapshot(*about, values, entry.truncated, entry.number, names)

    def settings(self, run: str | None = None) -> answers.Settings:
        """Return the current settings of the trainer, and the commands that are waiting for it."""
        return self._get(answers.Settings, "/api/v1/settings", {"run": run})

    def change_settings(self, run: str | None = None, **changes: Any) -> answers.Accepted:
        """Change live settings of the trainer (docs/settings.md), or `paused`, at its next step."""
        given = {
            name: sorted(value) if isinstance(value, set | frozenset) else value for name, value in changes.items()
        }
        return self._ask(answers.Accepted, "PATCH", "/api/v1/settings", {"run": run}, given)

    def pause(self, run: str | None = None) -> answers.Accepted:
        """Stop capturing until `resume`."""
        return self.change_settings(run, paused=True)

    def resume(self, run: str | None = None) -> answers.Accepted:
        """Resume capturing."""
        return self.change_settings(run, paused=False)

    def _about(self, run: str | None, **body: Any) -> dict[str, Any]:
        """Return a request body about the given run, else the reader's run, else the newest one."""
        run = run or self._run
        return body if run is None else {**body, "run": run}
