"""Results by MQTT, and entities for Home Assistant.

Format of discovery: home-assistant.io/integrations/mqtt, "MQTT discovery"; a retained message at
`homeassistant/COMPONENT/NODE/OBJECT/config` describes an entity, an empty one removes it.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import socket
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from edged import packages
from edged.client.result import Result
from edged.client.sinks.sink import Answered, Sink, encode
from edged.client.sources.address import query_settings
from edged.client.sources.source import RateLimit
from edged.errors import InvalidInput, NotFound, Unsupported, redact
from edged.version import __version__

_IN_FLIGHT = 16  # messages that the broker has not taken
_CLASSES = 100  # entities of one camera
_LAST_WORDS_S = 2.0
_AT_LEAST_ONCE = 1

_log = logging.getLogger("edged.client")


class Mqtt(Sink):
    """Publishes what one camera sees: each result as JSON at `PREFIX/CAMERA/result`, how many of each class at
    `.../counts`, ON or OFF at `.../detected`, and online or offline at `.../availability`, which the broker sets to
    offline when this program is gone.

    At most `broker.settings.rate` times a second. A thread connects and reconnects, so that the stream never waits;
    results that the broker does not take are left out and count in `dropped`. Unsupported if paho-mqtt is not
    installed, InvalidInput if the certificates cannot be used.
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
        self._topics = Topics(broker.prefix, broker.settings.discovery, node or socket.gethostname(), camera)
        self._limit = RateLimit(broker.settings.rate)
        self._clock = clock
        self._known: dict[str, None] = {}  # classes that have an entity, in the order they came
        self._counts: Counter[str] | None = None
        self._published: Counter[str] | None = None
        self._places: dict[tuple[str, str], Place | Crossings] = {}
        self._published_places: dict[tuple[str, str], Place | Crossings] = {}
        self._sent: deque[Any] = deque()
        self._publishing = threading.Lock()
        self._client: Any = paho.Client(paho.CallbackAPIVersion.VERSION2, clean_session=True)
        if broker.user is not None:
            self._client.username_pw_set(broker.user, broker.password)
        if broker.tls:
            _secure(self._client, broker.settings.ca)
        will = self._topics.available(False)
        self._client.will_set(will.topic, will.payload, qos=_AT_LEAST_ONCE, retain=True)
        self._client.max_queued_messages_set(_IN_FLIGHT + _CLASSES)
        self._client.reconnect_delay_set(1, 60)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_connect_fail = lambda *_: _log.warning("%s does not answer; trying again", self.name)
        self._client.connect_async(broker.host, broker.port)
        self._client.loop_start()

    @property
    def is_connected(self) -> bool:
        """Whether the broker takes messages now."""
        return bool(self._client.is_connected())

    def publish_places(self, zones: Mapping[str, Place], lines: Mapping[str, Crossings]) -> None:
        """Publish the state of zones and lines if it changed; each has entities of its own."""
        with self._publishing:
            self._places = {
                **{("zone", name): zone for name, zone in zones.items()},
                **{("line", name): line for name, line in lines.items()},
            }
            if self._client.is_connected():
                self._publish_places()

    def on_answer(self, answered: Answered) -> None:
        result = answered.result
        if result.error is not None:
            return
        with self._publishing:
            self._counts = Counter(found.label for found in result.detections)
            if not self._limit.admits(self._clock()) or not self._client.is_connected():
                return
            if not self._has_room():
                self.dropped += 1
                return
            self._publish_counts()
            self._publish(self._topics.whole(result), qos=0)

    def close(self) -> None:
        """Publish the last counts and that the camera is offline; wait a moment until they are sent."""
        if self._client.is_connected():
            with self._publishing:
                self._publish_counts()
                self._publish(self._topics.available(False))
            with contextlib.suppress(RuntimeError, ValueError):  # the broker went away meanwhile; it has our will
                self._sent[-1].wait_for_publish(_LAST_WORDS_S)
        self._client.disconnect()
        self._client.loop_stop()

    def _publish_counts(self) -> None:
        """Publish what changed since the last time."""
        if self._counts is None or self._counts == self._published:
            return
        for label in self._counts:
            if label not in self._known and len(self._known) < _CLASSES:
                self._known[label] = None
                self._publish(*self._topics.class_entity(label))
        self._publish(*self._topics.state(self._counts))
        self._published = self._counts

    def _publish_places(self) -> None:
        for key, state in self._places.items():
            if self._published_places.get(key) == state:
                continue
            if key not in self._published_places:
                self._publish(*self._topics.place_entities(*key))
            self._publish(self._topics.place(*key, state))
            self._published_places[key] = state

    def _publish(self, *messages: Message, qos: int = _AT_LEAST_ONCE) -> None:
        for each in messages:
            self._sent.append(self._client.publish(each.topic, each.payload, qos=qos, retain=each.retain))

    def _has_room(self) -> bool:
        """Whether the broker keeps up; paho would queue without a limit."""
        while self._sent and _is_over(self._sent[0]):
            self._sent.popleft()
        return len(self._sent) < _IN_FLIGHT

    def _on_connect(self, _client: Any, _data: object, _flags: object, reason: Any, _properties: object) -> None:
        """In paho's thread, on every connection: the broker may have forgotten everything."""
        if reason.is_failure:
            _log.warning("%s refuses the connection: %s", self.name, reason)
            return
        with self._publishing:
            self._publish(*self._topics.camera_entities())
            for label in self._known:
                self._publish(*self._topics.class_entity(label))
            self._publish(self._topics.available(True))
            self._published_places = {}
            self._publish_places()
            self._sent.clear()
            self._published = None

    def _on_disconnect(self, _client: Any, _data: object, _flags: object, reason: Any, _properties: object) -> None:
        if reason.is_failure:
            _log.warning("%s: the connection is lost (%s); trying again", self.name, reason)


def _is_over(info: Any) -> bool:
    try:
        return bool(info.is_published())
    except (RuntimeError, ValueError):  # it was never sent, and never will be
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


PASSWORD, PASSWORD_FILE = "EDGED_MQTT_PASSWORD", "EDGED_MQTT_PASSWORD_FILE"
_FORM = "write mqtt://user@host:1883/prefix, or mqtts:// for TLS"
_PORTS = {"mqtt": 1883, "mqtts": 8883}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a broker's address: `rate` is messages of results a second; `discovery` the prefix that Home
    Assistant listens to, empty for none; `ca` a file of certificates, by default the system's."""

    rate: float = 2.0
    discovery: str = "homeassistant"
    ca: str = ""


class Broker(msgspec.Struct, frozen=True):
    """The address of a broker, and how to log in."""

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None
    prefix: str
    settings: Settings


def broker(url: str, environment: Mapping[str, str] = os.environ) -> Broker:
    """Parse `mqtt://user@host:1883/prefix?rate=2&discovery=homeassistant`, or `mqtts://` for TLS.

    The password comes from the environment, or a file that it names, since every user of the machine sees addresses.
    InvalidInput for another address, NotFound if the file cannot be read.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"invalid address of a broker {redact(url)!r}: {error}; {_FORM}") from None
    settings = query_settings(url, parts.query, Settings)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidInput(f"invalid address of a broker {redact(url)!r}; {_FORM}")
    if parts.password is not None:
        raise InvalidInput(f"the password in the address is visible to every user; use {PASSWORD} or {PASSWORD_FILE}")
    if settings.rate <= 0:
        raise InvalidInput(f"invalid rate={settings.rate:g}; give messages a second")
    prefix = unquote(parts.path.strip("/")) or "edged"
    if "#" in url or any(sign in prefix + settings.discovery for sign in "+#\0"):
        raise InvalidInput(f"{redact(url)!r} has an invalid topic prefix; leave out + and #")
    user = unquote(parts.username) if parts.username else None
    is_tls = parts.scheme == "mqtts"
    return Broker(parts.hostname, port or _PORTS[parts.scheme], is_tls, user, _password(environment), prefix, settings)


def _password(environment: Mapping[str, str]) -> str | None:
    path = environment.get(PASSWORD_FILE)
    if not path:
        return environment.get(PASSWORD)
    try:
        return Path(path).read_text().rstrip("\r\n")
    except OSError as error:
        raise NotFound(f"the password file {path!r} of {PASSWORD_FILE} cannot be read: {error.strerror}") from None


_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class Message(msgspec.Struct, frozen=True):
    topic: str
    payload: bytes
    retain: bool = False


class Place(msgspec.Struct, frozen=True):
    """A zone: whether something is in it, and how many objects of each class."""

    occupied: bool
    counts: dict[str, int]


class Crossings(msgspec.Struct, frozen=True):
    """A line: how many objects crossed it so far, in each direction."""

    entered: int
    left: int


class Topics:
    """The topics and messages of one camera; `node` distinguishes the cameras of several machines. No IO."""

    def __init__(self, prefix: str, discovery: str, node: str, camera: str) -> None:
        self.camera = camera
        self._discovery = discovery.strip("/")
        self._node = f"edged_{slug(node)}_{slug(camera)}"
        self._device = {
            "identifiers": [self._node],
            "name": f"{camera} ({node})",
            "manufacturer": "edged",
            "sw_version": __version__,
        }
        base = self._base = f"{prefix}/{slug(camera)}"
        self.availability, self.result = f"{base}/availability", f"{base}/result"
        self.detected, self.counts = f"{base}/detected", f"{base}/counts"

    def available(self, online: bool) -> Message:
        return Message(self.availability, b"online" if online else b"offline", retain=True)

    def whole(self, result: Result) -> Message:
        return Message(self.result, encode(result))

    def state(self, counts: Counter[str]) -> tuple[Message, Message]:
        """Whether anything is seen, and how many of each class."""
        seen = b"ON" if counts else b"OFF"
        return Message(self.detected, seen, retain=True), Message(self.counts, _json(dict(counts)), retain=True)

    def camera_entities(self) -> tuple[Message, ...]:
        """The entities that a camera always has; none if discovery is off."""
        occupancy = {"state_topic": self.detected, "device_class": "occupancy", "name": "Detected"}
        return (
            *self._entity("binary_sensor", "detected", occupancy),
            *self._count("objects", "Objects", "{{ value_json.values() | sum }}", self.counts),
        )

    def class_entity(self, label: str) -> tuple[Message, ...]:
        """The number of objects of a class that was seen; no entity if discovery is off."""
        name = msgspec.json.encode(label).decode()
        return self._count(f"count_{slug(label)}", label, f"{{{{ value_json.get({name}, 0) }}}}", self.counts)

    def place(self, kind: str, name: str, state: Place | Crossings) -> Message:
        """The state of a zone or line."""
        plain = msgspec.to_builtins(state)
        if isinstance(state, Place):
            plain["occupied"] = "ON" if state.occupied else "OFF"
        return Message(self._place_topic(kind, name), _json(plain), retain=True)

    def place_entities(self, kind: str, name: str) -> tuple[Message, ...]:
        """The entities of a zone (occupancy, number of objects) or a line (totals); none if discovery is off."""
        topic, what = self._place_topic(kind, name), f"{kind}_{slug(name)}"
        if kind == "line":
            total, entered, left = "total_increasing", "{{ value_json.entered }}", "{{ value_json.left }}"
            return (
                *self._count(f"{what}_in", f"{name} in", entered, topic, total),
                *self._count(f"{what}_out", f"{name} out", left, topic, total),
            )
        occupancy = {"name": name, "state_topic": topic, "device_class": "occupancy"}
        return (
            *self._entity("binary_sensor", what, {**occupancy, "value_template": "{{ value_json.occupied }}"}),
            *self._count(f"{what}_objects", f"{name} objects", "{{ value_json.counts.values() | sum }}", topic),
        )

    def _place_topic(self, kind: str, name: str) -> str:
        return f"{self._base}/{kind}/{slug(name)}"

    def _count(self, what: str, name: str, template: str, topic: str, kind: str = "measurement") -> tuple[Message, ...]:
        """An entity for a number of objects; `kind` is Home Assistant's state class."""
        config = {"name": name, "state_topic": topic, "value_template": template, "state_class": kind}
        return self._entity("sensor", what, config | {"unit_of_measurement": "objects"})

    def _entity(self, component: str, what: str, config: dict[str, str]) -> tuple[Message, ...]:
        if not self._discovery:
            return ()
        identity = f"{self._node}_{what}"
        whole = {**config, "unique_id": identity, "availability_topic": self.availability, "device": self._device}
        return (Message(f"{self._discovery}/{component}/{self._node}/{what}/config", _json(whole), retain=True),)


def slug(text: str) -> str:
    """Make a text usable as a topic level and identifier; different texts stay different."""
    plain = _UNSAFE.sub("_", text).strip("_")
    return plain if plain == text and plain else f"{plain}_{zlib.crc32(text.encode()):08x}".lstrip("_")


def _json(plain: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(plain, order="sorted")
