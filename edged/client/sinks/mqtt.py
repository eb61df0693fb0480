"""Results by MQTT, and entities for Home Assistant."""

from __future__ import annotations

import contextlib
import importlib
import logging
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from edged import packages
from edged.client.sinks.answered import Answered
from edged.client.sinks.mqtt_address import Broker
from edged.client.sinks.mqtt_messages import Message, Topics, counts_of
from edged.client.sinks.sink import Sink
from edged.client.sources.rate import RateLimit
from edged.errors import InvalidInput, Unsupported

_IN_FLIGHT = 16  # messages that the broker has not taken
_CLASSES = 100  # entities of one camera
_LAST_WORDS_S = 2.0
_AT_LEAST_ONCE = 1

_log = logging.getLogger("edged.client")


class Mqtt(Sink):
    """Tells a broker what one camera sees: each result as JSON at `PREFIX/CAMERA/result`, how many of each class at
    `.../counts`, ON or OFF at `.../detected`, and online or offline at `.../availability`, which the broker sets when
    this program is gone.

    Not more often than `broker.rate`, and never in the stream's time: a broker that is not there is tried again by a
    thread of its own, and what it does not take is left out, counted in `dropped`. Unsupported where paho-mqtt is not
    installed, InvalidInput where the certificates cannot be used.
    """

    def __init__(
        self,
        broker: Broker,
        camera: str,
        node: str | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        paho = _require_paho()
        self.name = f"mqtt://{broker.host}:{broker.port}"
        self.dropped = 0
        self._topics = Topics(broker.prefix, broker.discovery, node or socket.gethostname(), camera)
        self._limit = RateLimit(broker.rate)
        self._clock = clock
        self._known: dict[str, None] = {}  # classes that have an entity, in the order they came
        self._counts: Counter[str] | None = None
        self._told: Counter[str] | None = None
        self._sent: deque[Any] = deque()
        self._telling = threading.Lock()
        self._client: Any = paho.Client(paho.CallbackAPIVersion.VERSION2, clean_session=True)
        if broker.user is not None:
            self._client.username_pw_set(broker.user, broker.password)
        if broker.tls:
            _secure(self._client, broker.ca)
        will = self._topics.available(False)
        self._client.will_set(will.topic, will.payload, qos=_AT_LEAST_ONCE, retain=True)
        self._client.max_queued_messages_set(_IN_FLIGHT + _CLASSES)
        self._client.reconnect_delay_set(1, 60)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_connect_fail = lambda *_: _log.warning("%s does not answer; trying again", self.name)
        self._client.connect_async(broker.host, broker.port)
        self._client.loop_start()

    def on_answer(self, answered: Answered) -> None:
        result = answered.result
        if result.error is not None:
            return
        with self._telling:
            self._counts = counts_of(result)
            if not self._limit.admits(self._clock()) or not self._client.is_connected():
                return
            if not self._has_room():
                self.dropped += 1
                return
            self._tell_counts()
            self._tell(self._topics.whole(result), qos=0)

    def close(self) -> None:
        """Tells what was seen last and that the camera is offline, and waits a moment for that to leave."""
        if self._client.is_connected():
            with self._telling:
                self._tell_counts()
                info = self._tell(self._topics.available(False))
            with contextlib.suppress(RuntimeError, ValueError):  # the broker went away meanwhile; it has our will
                info.wait_for_publish(_LAST_WORDS_S)
        self._client.disconnect()
        self._client.loop_stop()

    def _tell_counts(self) -> None:
        """What has changed since it was told last."""
        if self._counts is None or self._counts == self._told:
            return
        for label in self._counts:
            if label not in self._known and len(self._known) < _CLASSES:
                self._known[label] = None
                for message in self._topics.class_entity(label):
                    self._tell(message)
        for message in self._topics.state(self._counts):
            self._tell(message)
        self._told = self._counts

    def _tell(self, message: Message, qos: int = _AT_LEAST_ONCE) -> Any:
        info = self._client.publish(message.topic, message.payload, qos=qos, retain=message.retain)
        self._sent.append(info)
        return info

    def _has_room(self) -> bool:
        """Whether the broker keeps up; the client library itself would queue without a limit."""
        while self._sent and _is_over(self._sent[0]):
            self._sent.popleft()
        return len(self._sent) < _IN_FLIGHT

    def _on_connect(self, _client: Any, _data: object, _flags: object, reason: Any, _properties: object) -> None:
        """In the library's thread, each time it is connected: the broker may have forgotten everything."""
        if reason.is_failure:
            _log.warning("%s refuses the connection: %s", self.name, reason)
            return
        with self._telling:
            self._sent.clear()
            entities = [*self._topics.camera_entities()]
            for label in self._known:
                entities += self._topics.class_entity(label)
            for message in [*entities, self._topics.available(True)]:
                self._client.publish(message.topic, message.payload, qos=_AT_LEAST_ONCE, retain=message.retain)
            self._told = None

    def _on_disconnect(self, _client: Any, _data: object, _flags: object, reason: Any, _properties: object) -> None:
        if reason.is_failure:
            _log.warning("%s: the connection is lost (%s); trying again", self.name, reason)


def _is_over(info: Any) -> bool:
    try:
        return bool(info.is_published())
    except (RuntimeError, ValueError):  # never sent, and never will be
        return True


def _secure(client: Any, ca: str) -> None:
    try:
        client.tls_set(ca_certs=ca or None)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the certificates in {ca!r} cannot be used: {error}") from None


def _require_paho() -> Any:
    try:
        return importlib.import_module("paho.mqtt.client")
    except ImportError:
        raise Unsupported(f"MQTT needs paho-mqtt; install it: {packages.install_extra('mqtt')}") from None
