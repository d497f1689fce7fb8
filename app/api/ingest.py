"""The endpoint for frames: reads a body, decompresses it, and checks it within limits, then adds it to its run."""

from __future__ import annotations

import asyncio
import hmac
import threading
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

import msgspec
import zstandard
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from hookcore.errors import HookcoreError, WireError
from hookcore.records import wire

from ..runs import AwayError, Run, Runs, limits
from ..runs.disk import WrongKeyError
from ..serving.guard.security import ONLY_KNOWN
from .health import Metric
from .routing import REFUSALS

RETRY_S: Final = 5
MAX_WAITING: Final = 4  # bodies of the maximum size at once
ENCODINGS: Final = ("identity", "zstd", "gzip")
SMALL_BYTES: Final = 2**20
BUSY: Final = 2  # threads that decode or store at once: more of them only compete for the interpreter with live pages
_PIECE: Final = 2**20
_MAX_WINDOW: Final = 2**23  # memory for decompression; every zstd decoder must support this window


class _Short(APIRoute):
    """A route whose function reads the request itself: FastAPI works out its parameters only if an address has some."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handle(request: Request) -> Response:
            answer: Response = await (usual if request.scope["query_string"] else self.endpoint)(request)
            return answer

        return handle


router = APIRouter(dependencies=[ONLY_KNOWN], responses=REFUSALS, route_class=_Short)


@dataclass(slots=True)
class Intake:
    """Counters of received batches, for all runs of a server, including removed ones."""

    batches: int = 0
    items: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    waiting_bytes: int = 0  # of bodies being received or stored; only the event loop changes it
    refused: dict[int, int] = field(default_factory=dict)  # by status; replaced, never changed
    one_large: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while a large batch is decompressed and stored
    lock: threading.Lock = field(default_factory=threading.Lock)
    busy: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(BUSY))

    def took(self, batch: wire.Batch, nbytes: int, seconds: float) -> None:
        """Count a stored batch."""
        with self.lock:
            self.batches += 1
            self.items += len(batch.items)
            self.nbytes += nbytes
            self.seconds += seconds

    def refuse(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> HTTPException:
        """Count a rejected batch and return the error to raise."""
        with self.lock:
            self.refused = {**self.refused, status: self.refused.get(status, 0) + 1}
        return HTTPException(status, sentence, headers)

    def metrics(self) -> Iterator[Metric]:
        """Yield the counters for Prometheus."""
        refused = [({"status": str(status)}, count) for status, count in sorted(self.refused.items())]
        yield Metric("batches_total", "counter", "Batches taken.", [({}, self.batches)])
        yield Metric("items_total", "counter", "Frames and snapshots accepted.", [({}, self.items)])
        yield Metric("ingest_bytes_total", "counter", "Bytes of accepted batches, as sent.", [({}, self.nbytes)])
        yield Metric("ingest_seconds_total", "counter", "Seconds spent storing batches.", [({}, self.seconds)])
        yield Metric("batches_refused_total", "counter", "Batches rejected, by status.", refused)


@router.post(
    "/api/v1/ingest",
    openapi_extra={"requestBody": {"required": True, "content": {wire.CONTENT_TYPE: {"schema": {"type": "string"}}}}},
    responses={200: {"content": {wire.CONTENT_TYPE: {}}, "description": "what the server has received"}},
    response_class=Response,
)
async def ingest(request: Request) -> Response:
    """Take a batch from a trainer, in the format of hookcore.records.wire."""
    state = request.app.state
    intake: Intake = state.intake
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != wire.CONTENT_TYPE:
        raise intake.refuse(415, f"a batch must be of type {wire.CONTENT_TYPE}, not {kind[:100] or 'without a type'}")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ENCODINGS:
        raise intake.refuse(415, f"unsupported content-encoding {encoding[:100]!r}: use one of {', '.join(ENCODINGS)}")
    body, nbytes = bytearray(), 0
    try:
        async for piece in request.stream():  # the guard limits it
            body += piece
            nbytes += len(piece)
            intake.waiting_bytes += len(piece)
            if intake.waiting_bytes > MAX_WAITING * state.settings.max_body:
                sentence = "too many large batches at once: retry this one"
                raise intake.refuse(429, sentence, {"Retry-After": "1", "Connection": "close"})
        # A small batch needs little memory. Large ones, and those of unknown size, are handled one at a time.
        is_small = encoding == "identity" and nbytes <= SMALL_BYTES
        async with nullcontext() if is_small else intake.one_large:
            # In a thread, so that the streams continue while a large batch is stored.
            return await asyncio.to_thread(_file, request, body, encoding)
    finally:
        intake.waiting_bytes -= nbytes


def _file(request: Request, body: bytearray, encoding: str) -> Response:
    state = request.app.state
    intake: Intake = state.intake
    began = time.perf_counter()
    try:
        with intake.busy:
            data = unpack(body, encoding, state.settings.max_body)
            most = min(wire.MAX_DECODED_BYTES, 2 * state.settings.max_body + state.settings.memory // 8)
            batch = wire.decode_batch(data, most)
            known = state.runs.get(batch.run.id) if hasattr(state, "runs") else None  # a collector has none
            is_new = known is None or msgspec.structs.replace(batch.run, settings=known.info.settings) != known.info
            if is_new:
                batch = msgspec.structs.replace(batch, run=limits.shortened(batch.run))
            limits.check(batch, is_new)
    except OverflowError as error:
        raise intake.refuse(413, str(error)) from None
    except WireError as error:
        raise intake.refuse(422, str(error)) from None
    visitor = request.scope["hookcore"]
    own = state.settings.dashboard and visitor.how == "token"
    answer = state.take(batch, data, own)
    intake.took(batch, len(body), time.perf_counter() - began)
    return Response(wire.encode(answer), media_type=wire.CONTENT_TYPE)


def take_into_runs(state: Any, batch: wire.Batch, _data: bytearray, own: bool) -> wire.Receipt:
    """Add a batch to its run, which begins with the first one."""
    over = _ended(state.runs, batch)
    return _add(state, batch, own) if over is None else over.take(batch)


def _add(state: Any, batch: wire.Batch, own: bool) -> wire.Receipt:
    runs: Runs = state.runs
    intake: Intake = state.intake
    is_new = runs.get(batch.run.id) is None
    run = runs.open(batch.run)
    if run is None:
        count = len(runs.all())
        sentence = (
            f"this server already has {count} runs and no room for another: remove a run, or start the server with "
            f"more memory or max_runs"
        )
        raise intake.refuse(429, sentence, {"Retry-After": str(RETRY_S)})
    try:
        if is_new:
            state.keeper.opened(run, own)
        elif run.saved.from_disk:
            state.keeper.resume(run, batch.run)
    except WrongKeyError as error:
        if is_new:
            runs.drop(run)
        raise intake.refuse(403, str(error)) from None
    if run.is_derived or not hmac.compare_digest(run.info.key.encode(), batch.run.key.encode()):
        raise intake.refuse(403, f"another trainer opened the run {run.id}: each trainer needs its own run")
    runs.place(run, batch.run.place)
    try:
        with intake.busy:
            answer = run.take(batch)
    except AwayError as error:
        raise intake.refuse(429, str(error), {"Retry-After": str(RETRY_S)}) from None
    except HookcoreError as error:
        if is_new and is_empty(run):
            runs.drop(run)  # a damaged first batch leaves no trace
        raise intake.refuse(422, str(error)) from None
    runs.balance(at_once=False)
    return answer


def _ended(runs: Runs, batch: wire.Batch) -> Run | None:
    """Return a run that was removed after its end, if its trainer only asks whether it is saved."""
    run = None if batch.items or runs.get(batch.run.id) is not None else runs.removed_run(batch.run.id)
    if run is None or not run.end.is_known:
        return None
    return run if hmac.compare_digest(run.info.key.encode(), batch.run.key.encode()) else None


def refuse_runs(state: Any, _batch: wire.Batch, _data: bytearray, _own: bool) -> wire.Receipt:
    """Refuse a batch, because collectors bring the runs of this server."""
    from ..clickhouse.client import without_password  # only a server with a store needs it

    to = without_password(state.settings.store)
    raise state.intake.refuse(
        403,
        f"this server only shows the runs in {to}: send to a collector, `hookcore collect --to`",
    )


def is_empty(run: Run) -> bool:
    """Return whether nothing was received for a run yet."""
    return run.received.acknowledged < 0 and run.received.described < 0 and not run.store.taps_announced


def unpack(body: bytearray, encoding: str, limit: int) -> bytearray:
    """Return the decompressed body; raise OverflowError if it exceeds `limit` bytes."""
    data = body
    if encoding == "gzip":
        data = _unpack_gzip(body, limit)
    elif encoding == "zstd":
        data = _unpack_zstd(body, limit)
    if len(data) > limit:
        raise OverflowError(f"the batch exceeds {limit} bytes when unpacked: split it")
    return data


def _unpack_gzip(body: bytearray, limit: int) -> bytearray:
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        data = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise WireError(f"the body is not gzip: {error}") from None
    if len(data) <= limit and (not unpacker.eof or unpacker.unused_data):
        raise WireError("the body is not one complete gzip stream: it is cut off, or has extra data at the end")
    return bytearray(data)


def _unpack_zstd(body: bytearray, limit: int) -> bytearray:
    data = bytearray()
    try:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
        with unpacker.stream_reader(BytesIO(body), read_across_frames=False) as reader:
            while len(data) <= limit and (piece := reader.read(min(_PIECE, limit + 1 - len(data)))):
                data += piece
    except zstandard.ZstdError as error:
        raise WireError(f"the body is not zstd: {error}") from None
    return data
