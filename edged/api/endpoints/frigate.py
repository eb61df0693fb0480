"""The endpoint for Frigate's ZMQ detector. Frigate's unchanged plugin connects to this endpoint.

Two properties of the plugin determine the answers. The plugin asks for its model only once, and never detects anything
if the model is missing. So edged reports every model of the daemon as loaded, and answers without objects until an
engine is ready. After a late answer the plugin pauses for a second. So edged sends an answer without objects at the
deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Coroutine

import zmq

from edged.api.endpoints import frigate_wire as wire
from edged.api.endpoints.frigate_wire import Reader
from edged.api.endpoints.publisher import Publisher, answered
from edged.api.endpoints.zmq_socket import BoundSocket, CountedWarnings
from edged.api.grpc.upload import add_model_bytes
from edged.config import Frigate
from edged.engines.controller import Controller
from edged.engines.plan import PlannedModel
from edged.errors import DeadlineExceeded, EdgedError, InvalidInput, NotFound, NotReady, Overloaded
from edged.models.model import Model

_LOG = logging.getLogger("edged.frigate")

_LARGEST_PICTURE = 64 << 20  # bytes of the largest picture: float32, 2300 x 2300
_LARGEST_MODEL = 1 << 30
_MOST_AT_ONCE = 64  # limit of running requests; each of Frigate's detectors has at most one
_CAMERA = "frigate"  # the camera in published results: Frigate does not send the camera of a picture
_MOST_PEERS = 1024  # limit of the peers whose models are remembered
_PATIENCE = 20.0  # seconds until the answer to an upload; Frigate gives up after 30 and does not retry


class FrigateEndpoint:
    """Answers Frigate from `start` until `stop`."""

    def __init__(self, controller: Controller, settings: Frigate, publisher: Publisher) -> None:
        self._controller, self._settings, self._publisher = controller, settings, publisher
        self._tasks: set[asyncio.Task[None]] = set()
        self._models: OrderedDict[bytes, str] = OrderedDict()  # each peer's model, in the order of the last choice
        self._readers: dict[str, tuple[Model, str, Reader]] = {}
        self._missing: set[str] = set()
        self._uploading = asyncio.Lock()
        self.warnings = CountedWarnings(_LOG, "Frigate got no detections")
        self.answered = 0
        self._socket: BoundSocket | None = None

    def start(self) -> str:
        """Listen, and return the address. Raises ConfigError."""
        self._socket = BoundSocket(
            zmq.ROUTER,
            self._settings.endpoint,
            "[frigate] endpoint",
            self._received,
            hwm=8,
            max_message=_LARGEST_MODEL if self._settings.uploads else _LARGEST_PICTURE,
            allow_remote=self._settings.allow_remote,
        )
        return self._socket.address

    async def stop(self, grace: float) -> None:
        """Cancel running requests at once, whatever `grace` is: Frigate waits at most 200 ms for an answer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()

    def _received(self, frames: list[zmq.Frame]) -> None:
        """Answer a message, or start a task that answers it. The message's frames are the peer's identity, an empty
        frame, and the content."""
        received = time.monotonic()
        if len(frames) < 3 or len(frames[1]):
            self.warnings.warn("garbage", "a message lacks the empty frame of a REQ socket; is the sender Frigate?")
            return
        peer = frames[0].bytes
        try:
            message = wire.parse([frame.buffer for frame in frames[2:]])
        except InvalidInput as error:
            self._give_nothing(peer, "garbage", error)
            return
        if isinstance(message, wire.ModelAsked):
            self._reply(peer, wire.model_answer(self._choose(peer, message.name)))
        elif isinstance(message, wire.ModelSent):
            self._begin(self._save(peer, message))
        elif len(self._tasks) >= _MOST_AT_ONCE:
            most = f"{_MOST_AT_ONCE} requests of Frigate are running, the maximum; configure fewer detectors in Frigate"
            self._give_nothing(peer, "busy", Overloaded(most))
        else:
            self._begin(self._detect(peer, message, received + self._settings.timeout_ms / 1e3))

    def _choose(self, peer: bytes, file: str) -> bool:
        """Choose the model for a peer that asks for the model `file`. Return whether the daemon has such a model."""
        try:
            name = self._which(file)
        except EdgedError as error:
            if file not in self._missing and len(self._missing) < _MOST_PEERS:
                self._missing.add(file)
                _LOG.error(
                    "Frigate asked for model %.80r and gets no detections: %s. Add the model (edged models add NAME "
                    "FILE) or name one as [frigate] model, then restart Frigate",
                    file,
                    error,
                )
            return False
        self._remember(peer, name)
        return True

    def _remember(self, peer: bytes, name: str) -> None:
        self._models[peer] = name
        self._models.move_to_end(peer)
        if len(self._models) > _MOST_PEERS:
            self._models.popitem(last=False)

    def _which(self, file: str) -> str:
        """Return the name of the model for a file that Frigate names: the configured model. Without a configured model,
        it is the model with the file's name, otherwise the daemon's only model. Raises NotFound."""
        if self._settings.model:
            return self._controller.find(self._settings.model).entry.name
        try:
            return self._controller.find(wire.model_name(file)).entry.name
        except (NotFound, InvalidInput):
            return self._controller.slot("").model

    async def _detect(self, peer: bytes, tensor: wire.Tensor, deadline: float) -> None:
        try:
            planned = self._planned(peer)
            if planned is None:
                # Without an answer, Frigate requests its model again, by name.
                why = "a picture gets no answer, because Frigate has not named its model since edged started"
                self.warnings.warn("unknown", f"{why}; wait until Frigate names it, or set [frigate] model")
                return
            answer = await asyncio.wait_for(self._answer(planned, tensor, deadline), deadline - time.monotonic())
        except asyncio.TimeoutError:
            late = f"the model did not answer within [frigate] timeout_ms = {self._settings.timeout_ms}"
            self._give_nothing(peer, "late", DeadlineExceeded(late))
        except EdgedError as error:
            self._give_nothing(peer, "late" if isinstance(error, DeadlineExceeded) else "failed", error)
        except Exception as error:
            _LOG.exception("a request of Frigate failed with an unexpected error")
            why = f"edged failed unexpectedly ({type(error).__name__}); see the traceback in its log"
            self._give_nothing(peer, "failed", NotReady(why))
        else:
            self.answered += 1
            self._reply(peer, answer)

    def _planned(self, peer: bytes) -> PlannedModel | None:
        """Return a peer's model: the model that the peer named since the daemon's start, otherwise the configured
        model, otherwise the daemon's only model. None if neither the peer nor the configuration names a model, and the
        daemon does not have exactly one. Raises NotFound if the model was removed."""
        name = self._models.get(peer) or self._settings.model
        if name:
            return self._controller.find(name)
        models = self._controller.models
        return next(iter(models.values())) if len(models) == 1 else None

    async def _answer(self, planned: PlannedModel, tensor: wire.Tensor, deadline: float) -> bytes:
        if planned.model is None:
            raise NotReady(f"model {planned.entry.name} cannot answer yet: {planned.problem or 'it is being read'}")
        reader = self._reader(planned.model, tensor.model_type)
        # A packed picture is not copied; other layouts are converted in a thread.
        form = reader.form(tensor) if tensor.is_packed else await asyncio.to_thread(reader.form, tensor)
        work = form.work(reader.thresholds, deadline)
        planned.slot.push(work)
        try:
            answer = await work.future
        finally:
            work.future.cancel()
        if answer.detections is not None:
            name = planned.entry.name
            self._publisher.result(name, _CAMERA, lambda: {"camera": _CAMERA, "model": name, **answered(answer)})
            return reader.read(answer, form)
        return await asyncio.to_thread(reader.read, answer, form)

    def _reader(self, model: Model, model_type: str) -> Reader:
        known = self._readers.get(model.name)
        if known is not None and known[0] is model and known[1] == model_type:
            return known[2]
        settings = self._settings
        reader = Reader(model, model_type, settings.pixel_format, settings.score, settings.labels)
        self._readers[model.name] = (model, model_type, reader)
        return reader

    async def _save(self, peer: bytes, message: wire.ModelSent) -> None:
        """Add a model if uploads are on. If this takes longer than `_PATIENCE`, report the model as saved all the same:
        after a refusal Frigate would never detect anything, even when the model is ready."""
        if not self._settings.uploads:
            _LOG.warning(
                "refused the file of model %.80r from Frigate; add the model, or set [frigate] uploads = true",
                message.name,
            )
            self._reply(peer, wire.saved_answer(False))
            return
        saving, is_answered = asyncio.ensure_future(self._add(message)), False
        try:
            await asyncio.wait([saving], timeout=_PATIENCE)
            if not saving.done() or saving.exception() is None:
                self._remember(peer, wire.model_name(message.name))
                self._reply(peer, wire.saved_answer(True))
                is_answered = True
            await saving
        except EdgedError as error:
            _LOG.error("Frigate's model %.80r was refused: %s", message.name, error)
            if not is_answered:  # Frigate would take a second answer for the answer to its next picture
                self._reply(peer, wire.saved_answer(False))
        finally:
            saving.cancel()

    async def _add(self, message: wire.ModelSent) -> None:
        name = wire.model_name(message.name)
        async with self._uploading:
            if name not in self._controller.models:
                await add_model_bytes(self._controller, name, message.data)
        self._missing.discard(message.name)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _give_nothing(self, peer: bytes, reason: str, error: EdgedError) -> None:
        self.warnings.warn(reason, str(error))
        self._reply(peer, wire.NOTHING)

    def _reply(self, peer: bytes, answer: bytes) -> None:
        assert self._socket is not None
        if not self._socket.send((peer, b"", answer)):
            self.warnings.counts["gone"] += 1
