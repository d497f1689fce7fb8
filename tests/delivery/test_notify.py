"""Notifications: each incident once, in few messages, with all losses counted, and without exposing addresses."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookcore
from hookcore.config import Settings
from hookcore.delivery.failures import event_of
from hookcore.delivery.notify import Note, Notifier, targets_of
from hookcore.errors import ArgumentError
from hookcore.records import Event, Failure
from hookcore.records.wire import RunInfo
from hookcore_app import cli
from hookcore_app.runs.alerts import Notifications
from hookcore_app.runs.undelivered import LostMarks
from hookcore_app.settings import ServerSettings
from tests.build import frame, make_info, stats_of
from tests.harness import random_state
from tests.inside import module_of
from tests.serving import BEARER, READ_TOKEN, TOKEN, Served, World, make_batch, make_world, served
from tests.waiting import PATIENCE_S, wait_for
from tests.webhook import PASSWORD, PATH_SECRET, Webhook, webhook

Ask = Callable[..., list[Any]]
NOTIFIER: Any = module_of("Notifier", "delivery.notify")
ASK, CHILD = NOTIFIER.ask, Path(NOTIFIER.__file__).with_name("child.py")
MAX_WAITING, MAX_SHOWN = NOTIFIER.MAX_WAITING, NOTIFIER.MAX_SHOWN
# Answers all requests like `child`, but in one process, because importing apprise takes most of a request's time.
ANSWERS = """
import io, runpy, sys
import apprise
main = runpy.run_path(sys.argv[1])["main"]
requests, answers = sys.stdin, sys.stdout
for request in requests:
    sys.stdin, sys.stdout = io.StringIO(request), io.StringIO()
    main()
    print(sys.stdout.getvalue(), file=answers, flush=True)
"""


@pytest.fixture(scope="module")
def shared_process() -> Iterator[Ask]:
    command = [sys.executable, "-W", "ignore", "-c", ANSWERS, CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        asking = threading.Lock()

        def ask(addresses: Sequence[str], message: dict[str, str] | None = None) -> list[Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            with asking:
                process.stdin.write(json.dumps({"addresses": list(addresses), "message": message}) + "\n")
                process.stdin.flush()
                found: list[Any] = json.loads(process.stdout.readline())
                return found

        yield ask


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as found:
        yield found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, shared_process: Ask) -> None:
    """Look and retry without pauses, and use the shared process."""
    monkeypatch.setattr(NOTIFIER, "POLL_S", 0.01)
    monkeypatch.setattr(NOTIFIER, "RETRY_S", 0.001)
    monkeypatch.setattr(NOTIFIER, "ask", shared_process)


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch, soon: None) -> None:
    """Start a process for each request, as outside of tests."""
    monkeypatch.setattr(NOTIFIER, "ask", ASK)


def note(number: int, run: str = "run-1", **others: Any) -> Note:
    return Note(
        **{"key": (run, f"nonfinite-{number}"), "run": run, "severity": "error", "sentence": f"number {number}."}
        | others
    )


def notifier_of(hook: Webhook, failed: Callable[[str], None] = pytest.fail, pause_s: float = 0.0) -> Notifier:
    return Notifier(targets_of([hook.url]), failed, pause_s=pause_s)


# -- the notifier --


@pytest.mark.usefixtures("own_process")
def test_an_incident_is_sent_once_with_its_sentence_and_its_link(hook: Webhook) -> None:
    told = notifier_of(hook)
    told.start()
    for _ in range(3):
        told.put(note(7, link="http://box/runs/run-1/problems"))
    wait_for(lambda: hook.messages)
    told.put(note(7))
    told.close(PATIENCE_S)
    (message,) = hook.messages
    assert message["title"] == "hookcore: error in run-1"
    assert message["message"] == "error: number 7.\nhttp://box/runs/run-1/problems"
    assert message["type"] == "failure"
    (target,) = told.targets
    assert (target.name, target.sent, target.failed, target.works) == ("JSON", 1, 0, True)


def test_later_incidents_wait_and_are_sent_together(hook: Webhook) -> None:
    told = notifier_of(hook, pause_s=3600.0)
    told.start()
    told.put(note(0, severity="warning"))
    wait_for(lambda: hook.messages)
    for number in range(1, 4):
        told.put(note(number, severity="warning"))
    told.put(note(0, run="run-2"))
    assert told.counters.waiting == 4
    assert len(hook.messages) == 1
    told.close(PATIENCE_S)  # sends what is waiting
    first, second = hook.messages
    assert first["type"] == "warning"
    assert second["title"] == "hookcore: 4 incidents in 2 runs"
    assert second["message"].splitlines()[0] == "warning: run-1: number 1."
    assert second["message"].splitlines()[-1] == "error: run-2: number 0."
    assert second["type"] == "failure"


def test_items_without_room_are_counted_and_mentioned(hook: Webhook) -> None:
    told = notifier_of(hook)
    for number in range(MAX_WAITING + 5):
        told.put(note(number))
    assert (told.counters.waiting, told.counters.dropped) == (MAX_WAITING, 5)
    told.start()
    told.close(PATIENCE_S)
    (message,) = hook.messages
    assert message["title"] == f"hookcore: {MAX_WAITING + 5} incidents in run-1"
    assert message["message"].splitlines()[-1] == f"and {MAX_WAITING + 5 - MAX_SHOWN} more"
    assert len(message["message"].splitlines()) == MAX_SHOWN + 1
    assert told.counters.dropped == 5


def test_a_failing_target_is_tried_three_times_counted_and_reported_once(hook: Webhook) -> None:
    hook.status = 500
    failures: list[str] = []
    told = notifier_of(hook, failures.append)
    told.start()
    told.put(note(1))
    wait_for(lambda: told.targets[0].failed == 1)
    assert hook.refused == NOTIFIER.ATTEMPTS
    told.put(note(2))
    wait_for(lambda: told.targets[0].failed == 2)
    hook.status = 200
    told.put(note(3))
    wait_for(lambda: told.targets[0].works)
    told.close(PATIENCE_S)
    assert [each["message"] for each in hook.messages] == ["error: number 3."]
    (failure,) = failures
    assert "notification to JSON failed" in failure


def test_a_broken_target_does_not_block_the_others(hook: Webhook) -> None:
    told = Notifier(targets_of(["json://127.0.0.1:1/", hook.url]), lambda why: None, pause_s=0.0)
    told.start()
    told.put(note(1))
    wait_for(lambda: hook.messages)
    told.close(PATIENCE_S)
    assert [(each.name, each.sent, each.failed) for each in told.targets] == [("JSON 1", 0, 1), ("JSON 2", 1, 0)]


@pytest.mark.usefixtures("own_process")
def test_targets_that_hang_do_not_delay_the_others(hook: Webhook) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # accepts connections and never answers
        slow = f"json://127.0.0.1:{hanging.getsockname()[1]}/"
        told = Notifier(targets_of([*[slow] * 9, hook.url]), lambda why: None)
        assert told.test()
    assert [each.works for each in told.targets] == [False] * 9 + [True]
    assert len(hook.messages) == 1


def test_a_check_that_raises_is_reported_once_and_the_next_one_runs(hook: Webhook) -> None:
    looks, failures = [], []

    def look() -> None:
        looks.append(1)
        raise ValueError("no incidents")

    told = Notifier(targets_of([hook.url]), failures.append, look, 0.0)
    told.start()
    wait_for(lambda: len(looks) > 3)
    told.close(PATIENCE_S)
    assert failures == ["incidents could not be read for notifications: ValueError: no incidents"]


def test_a_long_sentence_of_several_lines_becomes_one_short_line() -> None:
    _, body, _ = NOTIFIER.message_of([note(1, sentence="a\n" * 1000)], 0)
    assert body.count("\n") == 0
    assert len(body) == len("error: ") + NOTIFIER.MAX_SENTENCE


def test_without_a_target_there_is_no_thread() -> None:
    before = threading.active_count()
    told = Notifier((), pytest.fail)
    told.start()
    assert threading.active_count() == before
    told.close(PATIENCE_S)


# -- addresses --


@pytest.mark.parametrize(
    "address", [f"nosuch://user:{PASSWORD}@host/", PASSWORD, f"://{PASSWORD}", f"slack://{PASSWORD}"]
)
def test_a_wrong_address_is_refused_without_showing_it(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ArgumentError) as raised:
        targets_of(["json://127.0.0.1/", address])
    assert "address 2 of notify" in str(raised.value)
    assert PASSWORD not in f"{raised.value}{caplog.text}"


@pytest.mark.usefixtures("own_process")
def test_nothing_that_is_logged_or_shown_contains_an_address(
    hook: Webhook, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    hook.status = 403
    failures: list[str] = []
    with caplog.at_level(logging.DEBUG):
        told = notifier_of(hook, failures.append)
        told.put(note(1))
        told.start()
        wait_for(lambda: told.targets[0].failed)
        told.close(PATIENCE_S)
    out, err = capfd.readouterr()
    for secret in (PASSWORD, PATH_SECRET):
        assert secret not in f"{caplog.text}{out}{err}{failures}{told.targets}{told.counters}"


@pytest.mark.usefixtures("own_process")
def test_sending_a_message_leaves_the_process_unchanged(hook: Webhook) -> None:
    told = notifier_of(hook)
    before = random_state(), threading.active_count()
    assert told.test()
    assert (random_state(), threading.active_count()) == before
    assert "apprise" not in sys.modules
    told.close(PATIENCE_S)


@pytest.mark.usefixtures("own_process")
def test_a_process_that_does_not_answer_is_a_failure(hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []
    told = notifier_of(hook, failures.append)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert told.test()
    assert (told.targets[0].failed, told.targets[0].works, len(failures)) == (1, False, 1)
    with pytest.raises(ArgumentError, match=r"can't be checked \(JSONDecodeError\)"):
        targets_of([hook.url])


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NOTIFIER, "find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match="pip install apprise"):
        targets_of(["json://127.0.0.1/"])
    assert targets_of([]) == ()


def test_addresses_are_read_from_repeated_flags_and_from_one_variable() -> None:
    addresses = ("json://a/?x=1,2", "slack://A/B/C")
    given = ServerSettings.of({"notify": list(addresses)}, {})
    assert given.notify == addresses
    for text in (" ".join(addresses), ", ".join(addresses), "\n".join(addresses)):
        assert ServerSettings.of({}, {"HOOKCORE_NOTIFY": text}).notify == addresses
    assert ServerSettings.of({"allowed_hosts": ["a,b", "c"]}, {}).allowed_hosts == ("a", "b", "c")


# -- a server --


def bad_batch(info: RunInfo, steps: range, bad: int) -> Any:
    """Return a batch in which a tap has NaN in one step."""
    from hookcore.records import wire

    items = []
    for step in steps:
        stats = stats_of(2, 1.0, nan=float(step == bad), inf=0.0)
        items.append(wire.frame_item(step, frame(step, stats)))
    return make_batch(info, steps, items=tuple(items))


@pytest.mark.usefixtures("own_process")
def test_a_server_sends_the_incidents_of_its_live_runs(hook: Webhook) -> None:
    with served(notify=(hook.url,)) as server:
        run = server.runs.open(make_info("one"))
        assert run is not None
        run.take(bad_batch(make_info("one"), range(5), bad=3))
        wait_for(lambda: hook.messages)
        url = f"{server.url}/runs/one/problems/incident?id=nonfinite-3"
        assert url in hook.bodies
        assert server.get("/runs/one/problems/incident?id=nonfinite-3").startswith(b"HTTP/1.1 200")
    assert re.search(r"NaN first appeared in the activation of \S+, at step 3", hook.bodies)
    assert len(hook.messages) == 1


def test_a_run_from_disk_sends_nothing_and_a_continued_run_only_new_incidents(hook: Webhook) -> None:
    world = make_world(notify=(hook.url,))
    notifications: Notifications = world.app.state.notifications
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.take(bad_batch(make_info("one"), range(5), bad=3))
    run.saved.from_disk = True
    assert notifications.lookout.news() == []
    run.saved.from_disk, run.saved.known_until = False, 4  # as after a restart
    assert notifications.lookout.news() == []
    run.take(bad_batch(make_info("one"), range(5, 9), bad=7))
    (told,) = notifications.lookout.news()
    assert told.key == ("one", "nonfinite-7")
    assert notifications.lookout.news() == []


def test_an_incident_of_step_0_that_was_read_from_disk_is_not_sent(hook: Webhook) -> None:
    world = make_world(notify=(hook.url,))
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.take(bad_batch(make_info("one"), range(1), bad=0))
    run.saved.remember(run.store)
    assert world.app.state.notifications.lookout.news() == []


def test_a_server_sends_a_crash_and_a_lost_run_once(hook: Webhook) -> None:
    world = make_world(notify=(hook.url,))
    lookout = world.app.state.notifications.lookout
    run = world.runs.open(make_info("one", name="mine"))
    assert run is not None
    run.take(bad_batch(make_info("one"), range(5), bad=9))
    assert lookout.news() == []
    run.store.add_event(Event(5, 1.0, "skipped-step", "the scaler skipped", "warning"))
    run.store.add_event(Event(5, 2.0, "stopped", "The training was stopped by SIGINT in step 5", "info"))
    assert lookout.news() == []
    run.signs.seen_at = run.signs.clock() - 10 * run.signs.lost_after_s
    LostMarks(world.runs).mark()
    (lost,) = lookout.news()
    assert lost.severity in ("error", "warning")
    assert "stopped sending data after step 4" in lost.sentence
    run.store.add_event(event_of(Failure("crashed", 6, "RuntimeError: out of memory")))
    (crashed,) = lookout.news()
    assert (crashed.run, crashed.severity) == ("mine", "error")
    assert crashed.sentence == "The training crashed in step 6: RuntimeError: out of memory"
    assert lookout.news() == []


def test_a_run_that_was_lost_before_a_restart_is_not_sent(hook: Webhook) -> None:
    world = make_world(notify=(hook.url,))
    run = world.runs.open(make_info("one"))
    assert run is not None
    run.take(bad_batch(make_info("one"), range(5), bad=9))
    run.store.add_event(Event(4, 1.0, "lost", "The trainer stopped sending data after step 4.", "error"))
    run.saved.known_until, run.saved.seen_events = 4, run.store.events_after(0)[0]
    lookout = world.app.state.notifications.lookout
    assert lookout.news() == []
    run.store.add_event(Event(4, 2.0, "lost", "The trainer came back, and stopped sending data again.", "error"))
    (told,) = lookout.news()
    assert "came back" in told.sentence
    assert lookout.news() == []


def test_no_page_answer_or_metric_shows_an_address(hook: Webhook) -> None:
    world = make_world(token=TOKEN, notify=(hook.url,))
    for path in ("/settings", "/api/v1/notifications", "/metrics", "/api/v1/openapi.json", "/help"):
        answer = world.client.get(path, headers=BEARER)
        assert answer.status_code == 200
        for secret in (PASSWORD, PATH_SECRET, "json://"):
            assert secret not in answer.text.replace("json://HOST", ""), path
    assert "JSON" in world.client.get("/settings", headers=BEARER).text
    assert 'hookcore_notifications_total{result="sent",target="JSON"} 0.0' in world.client.get("/metrics").text


def test_only_owners_can_send_a_test_message_and_it_says_whether_it_arrived(hook: Webhook) -> None:
    world = make_world(token=TOKEN, read_token=READ_TOKEN, notify=(hook.url,))
    path = "/api/v1/notifications/test"
    reader = {"Authorization": f"Bearer {READ_TOKEN}"}
    assert world.client.post(path, headers=reader).status_code == 403
    assert hook.messages == []
    assert world.client.post(path, headers=BEARER).json()["targets"][0]["works"] is True
    assert hook.messages[0]["title"] == "hookcore: test"
    hook.status = 500
    answer = world.client.post(path, headers=BEARER).json()
    assert answer == {
        "targets": [{"name": "JSON", "sent": 1, "failed": 1, "works": False}], "waiting": 0, "dropped": 0
    }  # fmt: skip
    assert world.client.get("/api/v1/notifications", headers=BEARER).json() == answer
    page = world.client.get("/settings", headers=BEARER).text
    assert "Send test message" in page
    assert "Send test message" not in world.client.get("/settings", headers=reader).text


def test_concurrent_test_messages_and_those_without_targets_are_refused(hook: Webhook) -> None:
    world: World = make_world(notify=(hook.url,))
    told: Notifier = world.app.state.notifications.notifier
    with told.testing:
        refused = world.client.post("/api/v1/notifications/test", json={"targets": ["x"]})
        assert (refused.status_code, "reads no body" in refused.text) == (422, True)
        answer = world.client.post("/api/v1/notifications/test", headers={"origin": "http://127.0.0.1:8642"})
    assert (answer.status_code, hook.messages) == (409, [])
    world = make_world()
    answer = world.client.post("/api/v1/notifications/test", headers={"origin": "http://127.0.0.1:8642"})
    assert answer.status_code == 409
    assert "hookcore serve --notify URL" in answer.json()["error"]


@pytest.fixture
def server(hook: Webhook) -> Iterator[Served]:
    with served(notify=(hook.url,)) as found:
        yield found


def test_the_command_tests_the_targets_of_a_server(
    server: Served, hook: Webhook, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    assert cli.main(["notify-test", server.url]) == 0
    assert capsys.readouterr().out == "the test message reached JSON\n"
    assert len(hook.messages) == 1
    hook.status = 500
    assert cli.main(["notify-test", server.url]) == 2
    assert "the test message did not reach JSON" in capsys.readouterr().err


def test_the_client_reads_and_tests_notifications(server: Served, hook: Webhook) -> None:
    client = hookcore.Client(server.url, TOKEN)
    assert client.notifications().targets[0].works is None
    assert client.test_notifications().targets[0].sent == 1
    client.close()


def test_a_wrong_address_stops_the_command_before_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--port", "0", "--keep", "none", "--notify", f"nosuch://{PASSWORD}"]) == 2
    told = capsys.readouterr()
    assert "address 1 of notify, which begins with 'nosuch', is not an apprise address" in told.err
    assert PASSWORD not in told.err + told.out


# -- a training --


class Fragile(nn.Module):
    """A model that makes NaN in one step."""

    def __init__(self, bad: int = 3) -> None:
        super().__init__()
        self.layer, self.bad, self.calls = nn.Linear(4, 1), bad, -1

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        output: torch.Tensor = self.layer(batch)
        return output * float("nan") if self.calls == self.bad else output


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()


@pytest.mark.usefixtures("own_process")
def test_a_training_without_a_server_sends_a_message_itself(hook: Webhook) -> None:
    model = Fragile()
    with hookcore.watch(model, server=None, budget=None, notify=hook.url, name="mine") as watcher:
        train(model, 5)
    wait_for(lambda: hook.messages)  # on a busy machine, closing doesn't wait that long
    # What is found soon after the first one is in the same message.
    assert re.fullmatch(r"hookcore: (error|\d incidents) in mine", hook.messages[0]["title"])
    assert re.search(r"NaN first appeared in the activation of \S+, at step 3", hook.bodies)
    assert "http" not in hook.bodies
    assert watcher.errors == []


def test_a_crashed_training_sends_a_message_and_a_stopped_one_does_not(hook: Webhook) -> None:
    def broken(error: BaseException) -> None:
        model = nn.Linear(4, 1)
        with hookcore.watch(model, server=None, notify=[hook.url]):
            train(model, 2)
            raise error

    with pytest.raises(RuntimeError):
        broken(RuntimeError("out of memory"))
    wait_for(lambda: hook.messages)
    assert [message["title"].partition(" in ")[0] for message in hook.messages] == ["hookcore: error"]
    assert re.search(r"The training crashed in step 2 at test_notify.py:\d+: RuntimeError: out of memory", hook.bodies)
    with pytest.raises(KeyboardInterrupt):
        broken(KeyboardInterrupt())
    assert len(hook.messages) == 1


def test_a_training_with_a_server_sends_the_link_to_its_page(hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    model = Fragile()
    with served() as server, hookcore.watch(model, server=server.url, budget=None, notify=[hook.url]) as watcher:
        train(model, 5)
        wait_for(lambda: hook.messages)
        assert f"{watcher.url}/problems/incident?id=nonfinite-" in hook.bodies
        (run,) = server.runs.all()
        assert run.info.settings["notify"] == ["(hidden)"]
        for path in (f"/runs/{run.id}", f"/runs/{run.id}/capture", f"/api/v1/runs/{run.id}", "/api/v1/settings"):
            assert PASSWORD.encode() not in server.get(path)


def test_a_failed_notification_is_an_error_of_the_watcher_and_an_event(hook: Webhook) -> None:
    hook.status = 500
    model = Fragile()
    with hookcore.watch(model, server=None, budget=None, notify=hook.url) as watcher:
        train(model, 5)
        wait_for(lambda: watcher.errors)
        train(model, 1)
    (error,) = watcher.errors
    assert "notification to JSON failed" in error.message
    assert [event.name for event in watcher.store.events() if event.name == "notify-failed"] == ["notify-failed"]
    assert PASSWORD not in f"{watcher.errors}{watcher.store.events()}{watcher.settings}{watcher.settings.as_dict()}"


def test_only_rank_0_of_a_distributed_training_sends(hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    model = Fragile()
    with hookcore.watch(model, server=None, budget=None, notify=hook.url) as watcher:
        train(model, 5)
        watcher.flush()
        assert watcher.incidents()
    assert hook.messages == []


@pytest.mark.parametrize("given", [3, ["json://127.0.0.1/", 3], [""], f"nosuch://{PASSWORD}", PASSWORD])
def test_a_wrong_setting_raises_before_the_training_and_is_not_shown(given: Any) -> None:
    with pytest.raises(ArgumentError) as raised:
        hookcore.watch(nn.Linear(1, 1), server=None, notify=given)
    assert "notify" in str(raised.value)
    assert PASSWORD not in str(raised.value)


def test_a_variable_has_several_addresses_or_none() -> None:
    assert Settings.of({"HOOKCORE_NOTIFY": "json://a/?x=1,2 slack://A/B/C"}).notify == (
        "json://a/?x=1,2", "slack://A/B/C"
    )  # fmt: skip
    assert Settings.of({"HOOKCORE_NOTIFY": "none"}).notify == ()
