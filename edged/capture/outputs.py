"""Passes a camera's results to its zones and lines, sinks, files of events, and viewers."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

from edged.backoff import Backoff
from edged.capture.events import EventRecorder
from edged.capture.scene import SceneMonitor
from edged.capture.sinks import Viewer, ZmqPublisher
from edged.capture.webhook import Webhook
from edged.capture.zones import Presence, Watch
from edged.client.frames import Captured, Picture
from edged.client.result import Result
from edged.client.sinks import JsonLines, Mqtt, Preview
from edged.client.sinks.mqtt import Crossings, Place, broker
from edged.client.sinks.preview import parse_address
from edged.client.sinks.sink import Answered, PendingFrames, Sink
from edged.client.sources import Source
from edged.errors import InvalidInput, redact
from edged.ipc.capture_messages import Begin, FromCapture, Happened, LineState, ZoneState

_log = logging.getLogger("edged.camera")
_ANYTHING = "any"  # the place of events if the camera has no zones
_ON_SECONDS, _OFF_SECONDS = 0.5, 3.0  # for _ANYTHING; zones have settings for this: see Presence
_UNANSWERED_S = 60.0  # after this time without an answer, zones become free as if the camera did not stream


class Outputs:
    """All outputs of one camera. The streaming thread calls `tap` and `on_result`; other threads call the rest."""

    def __init__(self, begin: Begin, send: Callable[[FromCapture], None]) -> None:
        camera = begin.camera
        self._send, self._events_wanted = send, camera.events.snapshots or camera.events.clips
        self._watch = Watch(camera.zones, camera.lines, camera.rotation)
        self._answered = time.monotonic()
        self._longest_gap = max(_UNANSWERED_S, 2 / camera.max_fps if camera.max_fps else 0.0)
        self._anything = None if camera.zones or not self._events_wanted else Presence(_ON_SECONDS, _OFF_SECONDS)
        self._busy = threading.Lock()
        self._pending: PendingFrames | None = None
        self.scene = SceneMonitor()
        self.viewer = Viewer(send)
        self._recorder = EventRecorder(camera.events, Path(begin.folder)) if self._events_wanted else None
        self._managed = {
            name: _Managed(f"camera {begin.name}, {name}", open_one) for name, open_one in _wanted(begin).items()
        }
        self._webhook: Webhook | None = None
        self._webhook_problem = ""
        if camera.sinks.webhook:
            try:
                self._webhook = Webhook(camera.sinks.webhook, begin.name, camera.model)
            except InvalidInput as error:
                self._webhook_problem = str(error)

    def tap(self, source: Source) -> Iterator[Picture | Captured]:
        """Return an iterator over the pictures of the source. The caller must stream this iterator instead of the
        source. The iterator keeps the newest pictures until their results arrive."""
        self._pending = PendingFrames(cast("Iterator[Picture | Captured]", source))
        return self._pending

    def on_result(self, result: Result) -> None:
        """Pass a result to all outputs. If an output fails, its error is stored as its problem."""
        now, unix_s = time.monotonic(), time.time()
        picture = None if self._pending is None else self._pending.take(result.sequence)
        answered = Answered(result, picture)
        if picture is not None:
            self.scene.look(picture, now)
        if self._recorder is not None:
            self._recorder.on_answer(answered, now)
        if result.error is None:
            self._answered = now
            with self._busy:
                happened = self._watch.update(result, now, unix_s)
                self._report(happened, answered, now, unix_s)
                self._note_anything(bool(result.detections), answered, now, unix_s)
        for each in self._managed.values():
            each.on_answer(answered, now)
        self.viewer.on_answer(answered)

    def pass_time(self, now: float, *, is_streaming: bool) -> None:
        """Publish the state of zones and lines; called about once a second. While the camera does not stream or gets no
        answers, also advance the clock of its zones, so that objects time out and the zones become free. After some
        seconds without an answer, publish that nothing is seen."""
        if not is_streaming or now - self._answered > self._longest_gap:
            with self._busy:
                self._report(self._watch.pass_time(now, time.time()), None, now, time.time())
                self._note_anything(False, None, now, time.time())
        zones = {name: Place(each.occupied, each.counts) for name, each in self.zones().items()}
        lines = {
            name: Crossings(sum(each.entered.values()), sum(each.left.values())) for name, each in self.lines().items()
        }
        mqtt = self._managed.get("mqtt")
        if mqtt is not None and isinstance(mqtt.sink, Mqtt):
            mqtt.sink.publish_places(zones, lines)
            if now - self._answered > (self._longest_gap if is_streaming else _OFF_SECONDS):
                mqtt.sink.publish_absence()

    def publish_description(self, rule: str, text: str, unix_s: float) -> None:
        """Publish a language model's description of the camera's picture, if the MQTT sink is open."""
        mqtt = self._managed.get("mqtt")
        if mqtt is not None and isinstance(mqtt.sink, Mqtt):
            mqtt.sink.publish_description(rule, text, unix_s)

    def forget(self) -> None:
        """Let `close` remove the camera's entities from Home Assistant, if the MQTT sink is open."""
        mqtt = self._managed.get("mqtt")
        if mqtt is not None and isinstance(mqtt.sink, Mqtt):
            mqtt.sink.forget()

    def zones(self) -> dict[str, ZoneState]:
        return self._watch.zones()

    def lines(self) -> dict[str, LineState]:
        return self._watch.lines()

    def problems(self) -> dict[str, str]:
        """Return the problems of the outputs that fail. The keys are the names of these outputs."""
        found = {name: each.problem for name, each in self._managed.items()}
        found["webhook"] = self._webhook_problem or (self._webhook.problem if self._webhook is not None else "")
        found["events"] = self._recorder.problem if self._recorder is not None else ""
        return {name: redact(problem) for name, problem in found.items() if problem}

    def close(self) -> None:
        """Finish and close all outputs; wait a few seconds at most."""
        if self._recorder is not None:
            self._recorder.close()
        for each in self._managed.values():
            each.close()
        if self._webhook is not None:
            self._webhook.close()

    def _note_anything(self, is_there: bool, answered: Answered | None, now: float, unix_s: float) -> None:
        if self._anything is not None and self._anything.update(is_there, now):
            kind = "occupied" if self._anything.is_on else "free"
            self._report((Happened(kind, _ANYTHING, "", unix_s),), answered, now, unix_s)

    def _report(self, happened: Iterable[Happened], answered: Answered | None, now: float, unix_s: float) -> None:
        for each in happened:
            file = ""
            if self._recorder is not None and each.kind == "occupied":
                file = self._recorder.begin(each.place, answered, now, unix_s)
            elif self._recorder is not None and each.kind == "free":
                self._recorder.end(each.place, now)
            told = Happened(each.kind, each.place, each.label, each.unix_s, file)
            if self._webhook is not None:
                self._webhook.put(told)
            with contextlib.suppress(BrokenPipeError):  # the daemon has ended, and this process ends too
                self._send(told)


class _Managed:
    """A sink that is opened for the first result, and opened again some time after a failure."""

    def __init__(self, name: str, open_one: Callable[[], Sink]) -> None:
        self.sink: Sink | None = None
        self._name, self._open = name, open_one
        self._problem = ""
        self._backoff, self._due = Backoff(), 0.0

    @property
    def problem(self) -> str:
        if isinstance(self.sink, Mqtt) and not self.sink.is_connected:
            return f"{self.sink.name} is not connected"
        return self._problem

    def on_answer(self, answered: Answered, now: float) -> None:
        if self.sink is None and now < self._due:
            return
        try:
            if self.sink is None:
                self.sink = self._open()
            self.sink.on_answer(answered)
            self._problem = ""
        except Exception as error:  # a sink's library may raise any class, and the camera must continue
            problem = redact(str(getattr(error, "strerror", None) or error) or type(error).__name__)
            if problem != self._problem:
                _log.warning("%s: the output fails: %s; trying again", self._name, problem)
            self._problem = problem
            self._due = now + self._backoff.after(0.0)
            self.close()

    def close(self) -> None:
        sink, self.sink = self.sink, None
        if sink is not None:
            with contextlib.suppress(Exception):  # it has already failed
                sink.close()


def _wanted(begin: Begin) -> dict[str, Callable[[], Sink]]:
    """Return a mapping from the name of each configured sink to a function that opens the sink."""
    sinks, name = begin.camera.sinks, begin.name
    found: dict[str, Callable[[], Sink]] = {}
    if sinks.mqtt:
        environment = {"EDGED_MQTT_PASSWORD_FILE": sinks.mqtt_password_file} if sinks.mqtt_password_file else {}
        found["mqtt"] = lambda: Mqtt(broker(sinks.mqtt, environment), name)
    if sinks.zmq:
        found["zmq"] = lambda: ZmqPublisher(sinks.zmq, name)
    if sinks.preview:
        found["preview"] = lambda: Preview(*parse_address(sinks.preview), name)
    if sinks.lines:
        found["lines"] = lambda: JsonLines(sinks.lines)
    return found
