"""A watcher at the end of a notebook cell: the live page in a frame, and a picture where frames aren't possible."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image
from torch import nn

import hookcore
from hookcore.delivery.delivery import Delivery
from hookcore.delivery.http import Address
from hookcore.delivery.sinks import StoreSink
from hookcore.records.wire import RunInfo
from hookcore.store import Store
from hookcore_app.serving import server_thread
from tests.harness import watch
from tests.inside import class_of
from tests.serving import PATIENCE_S, TOKEN, served
from tests.zoo.case import mean_square, mlp


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HOOKCORE_PORT", "0")
    monkeypatch.setattr("hookcore.delivery.delivery.PORT", 0)
    yield
    server_thread.start(port=0).stop()


def trained(watcher: hookcore.Watcher, model: nn.Module, steps: int = 3) -> hookcore.Watcher:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        mean_square(model(torch.randn(4, 6))).backward()
        watcher.log(loss=0.5 + step)
        optimizer.step()
        optimizer.zero_grad()
    return watcher


class _Tags(HTMLParser):
    """Collects the elements of a page. Raises if a tag isn't closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "img":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def image_in(address: str | None) -> Image.Image:
    found = re.fullmatch(r"data:image/png;base64,(.+)", address or "")
    assert found
    return Image.open(io.BytesIO(base64.b64decode(found[1])))


def test_without_a_server_a_cell_shows_the_figures_and_a_picture_of_every_layer_and_step(seed: int) -> None:
    model = mlp()
    with watch(model, name="<b>digits") as watcher:
        page = _Tags(trained(watcher, model)._repr_html_())
    assert "<b>digits · step 2 · loss 2.5" in page.text  # the name is escaped
    assert page.named("iframe") == page.named("a") == []
    assert "open" in page.named("details")[0]
    activations, gradients = page.named("img")
    assert image_in(activations["src"]).size == (3, 4 + 1)  # steps, and layers including the root
    assert str(gradients["alt"]).startswith("Gradients: root mean square of each layer, from")


def test_the_picture_shows_non_finite_values_and_uncaptured_steps(seed: int) -> None:
    model = mlp()
    with watch(model) as watcher:
        trained(watcher, model, steps=1)
        with torch.no_grad():
            model[0].weight.fill_(float("nan"))
        trained(watcher, model, steps=1)
        page = _Tags(watcher._repr_html_())
    assert "modules with NaN or infinities" in page.text
    picture = image_in(page.named("img")[0]["src"]).convert("RGB")
    assert picture.getpixel((1, 0)) == (196, 0, 154)
    assert picture.getpixel((0, 0)) != (196, 0, 154)


@pytest.mark.usefixtures("threaded")
def test_a_cell_has_the_live_page_and_the_picture_stays_in_the_saved_notebook(seed: int) -> None:
    model = mlp()
    with watch(model, server="thread") as watcher:
        bundle = trained(watcher, model)._repr_mimebundle_()
        page = _Tags(bundle["text/html"])
        assert [frame["src"] for frame in page.named("iframe")] == [watcher.url]
    assert "open" not in page.named("details")[0]
    assert len(page.named("img")) == 2
    assert sorted(bundle) == ["image/png", "text/html", "text/plain"]
    assert image_in("data:image/png;base64," + bundle["image/png"]).size == (3, 5)


@pytest.mark.usefixtures("threaded")
def test_framing_needs_permission(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("HOOKCORE_FRAME_ANCESTORS", "none")
    model = mlp()
    with watch(model, server="thread") as watcher:
        page = _Tags(trained(watcher, model)._repr_html_())
        assert [link["href"] for link in page.named("a")] == [watcher.url]
    assert page.named("iframe") == []
    assert "open" in page.named("details")[0]


def test_the_picture_of_a_run_on_a_server_comes_from_that_server(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("HOOKCORE_TOKEN", TOKEN)
    model = mlp()
    with served() as server:
        with watch(model, server=server.url) as watcher:
            trained(watcher, model)
            assert watcher.flush(PATIENCE_S)
            page = _Tags(watcher._repr_html_())
            assert page.named("iframe") == []  # it is unknown whether that server allows frames
            assert [link["href"] for link in page.named("a")] == [watcher.url]
        assert "step 2 · loss 2.5" in page.text
        assert image_in(page.named("img")[0]["src"]).size == (3, 5)


def test_only_the_link_is_shown_if_the_server_does_not_respond() -> None:
    info = RunInfo(id="one", key="key", name="gone", started_s=0.0)
    gone = Delivery(info, StoreSink(Store(16_000_000)), None, "http://127.0.0.1:9", "http://127.0.0.1:9/runs/one")
    gone.address = Address("http://127.0.0.1:9")
    page = _Tags(class_of("card_of", "watcher")(gone).html())
    assert page.text == "gone · open page"
    assert page.named("img") == []


def test_a_run_without_a_step_says_so() -> None:
    with watch(mlp(), name="fresh") as watcher:
        bundle = watcher._repr_mimebundle_()
    assert _Tags(bundle["text/html"]).text == "fresh · no steps yet"
    assert sorted(bundle) == ["text/html", "text/plain"]
