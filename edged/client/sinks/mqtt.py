"""A sink that publishes results by MQTT, with entities for Home Assistant.

Format of discovery: home-assistant.io/integrations/mqtt, "MQTT discovery". A retained message at
`homeassistant/COMPONENT/NODE/OBJECT/config` describes an entity; an empty message removes the entity.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from edged import packages
from edged.client.result import Result
from edged.client.sinks.readings import Reading, readings
from edged.client.sinks.sink import Answered, Sink, encode
from edged.client.sources.address import query_settings
from edged.client.sources.source import RateLimit
from edged.errors import InvalidInput, NotFound, Unsupported, redact
from edged.version import __version__
from edged.vision.content import Anomaly, Embedding, Text

_IN_FLIGHT = 16  # most messages that the broker has not acknowledged
_CLASSES = 100  # most classes of one camera that get an entity; also the most readings that get one
_ANOMALY = "anomaly"
_LONGEST_STATE = 255  # characters of a state in Home Assistant
_LAST_WORDS_S = 2.0
_ROOM_SECONDS = 0.005  # seconds between two checks whether the broker has acknowledged messages
_AT_LEAST_ONCE = 1

_log = logging.getLogger("edged.client")


class Mqtt(Sink):
    """Publishes the results of one camera below `PREFIX/CAMERA/`: each result as JSON at `result`, the number of
    objects of each class at `counts`, and ON or OFF at `detected`. The topic `readings` has the share of each class
    in a class map, or the lowest and highest depth. The topic `text` has the text that a recogniser reads. The topic
    `availability` has online or offline; the broker publishes offline if the connection is lost.

    At most `broker.settings.rate` results are published per second. A thread connects and reconnects, so the stream
    never waits. If the broker does not keep up, results are left out and count in `dropped`. Raises Unsupported if
    paho-mqtt is not installed, InvalidInput if the certificates cannot be used.
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
        self._limit, self._maps = RateLimit(broker.settings.rate), broker.settings.maps
        self._clock = clock
        self._known: dict[str, None] = {}  # classes that have an entity, in order of appearance
        self._counts: Counter[str] | None = None
        self._published: Counter[str] | None = None
        self._readings: dict[str, Reading] = {}  # the first reading of each name, in order of appearance
        self._published_readings: tuple[Reading, ...] = ()
        self._text: Text | None = None
        self._published_text: Text | None = None
        self._has_text_entity = False
        self._places: dict[tuple[str, str], Place | Crossings] = {}
        self._published_places: dict[tuple[str, str], Place | Crossings] = {}
        self._entities: set[str] = set()  # topics of the entities that the broker has, also of earlier processes
        self._is_removed = False
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
        self._client.on_message = self._on_entity
        self._client.on_disconnect = self._on_disconnect
        self._client.on_connect_fail = lambda *_: _log.warning("broker %s does not answer; trying again", self.name)
        self._client.connect_async(broker.host, broker.port)
        self._client.loop_start()

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected to the broker."""
        return bool(self._client.is_connected())

    def publish_places(self, zones: Mapping[str, Place], lines: Mapping[str, Crossings]) -> None:
        """Publish the changed states of all zones and lines. Each zone and line has its own entities. Remove the
        entities of zones and lines that an earlier process published and that do not exist any more; several calls may
        be necessary."""
        with self._publishing:
            self._places = {
                **{("zone", name): zone for name, zone in zones.items()},
                **{("line", name): line for name, line in lines.items()},
            }
            if self._client.is_connected():
                self._publish_places()
                self._remove_entities(self._topics.former_places(self._entities, self._places))

    def publish_absence(self) -> None:
        """Publish that the camera sees nothing, because it gives no frames or gets no answers."""
        with self._publishing:
            self._counts = Counter()
            if self._client.is_connected():
                self._publish_counts()

    def publish_description(self, rule: str, text: str, unix_s: float) -> None:
        """Publish a language model's description of the picture, retained at `description`, if connected."""
        with self._publishing:
            if self._client.is_connected():
                self._publish(*self._topics.description_entity(), self._topics.described(rule, text, unix_s))

    def on_answer(self, answered: Answered) -> None:
        result = answered.result
        if result.error is not None:
            return
        with self._publishing:
            self._counts = Counter(_labels(result))
            self._text = result.content if isinstance(result.content, Text) else None
            if not self._limit.admits(self._clock()) or not self._client.is_connected():
                return
            if not self._has_room():
                self.dropped += 1
                return
            self._publish_counts()
            self._publish_readings(readings(result))
            self._publish_text()
            self._publish(self._topics.whole(result, self._maps), qos=0)

    def forget(self) -> None:
        """Let `close` remove all entities of the camera, because the camera was removed."""
        self._is_removed = True

    def close(self) -> None:
        """Publish the last counts, text and `offline`, wait up to 2 seconds until they are sent, and disconnect."""
        if self._client.is_connected():
            ends = time.monotonic() + _LAST_WORDS_S
            while self._is_removed and time.monotonic() < ends and self._has_entities_after_removal():
                time.sleep(_ROOM_SECONDS)  # without the lock, which paho's thread needs
            with self._publishing:
                if not self._is_removed:
                    self._publish_counts()
                    self._publish_text()
                self._publish(self._topics.available(False))
            with contextlib.suppress(RuntimeError, ValueError):  # without a connection the will message reports offline
                self._sent[-1].wait_for_publish(max(0.0, ends - time.monotonic()))
        self._client.disconnect()
        self._client.loop_stop()

    def _publish_counts(self) -> None:
        """Publish the counts if they changed, and entities for new classes."""
        if self._counts is None or self._counts == self._published:
            return
        for label in self._counts:
            if label not in self._known and len(self._known) < _CLASSES:
                self._known[label] = None
                self._publish(*self._topics.class_entity(label))
        self._publish(*self._topics.state(self._counts))
        self._published = self._counts

    def _publish_readings(self, found: tuple[Reading, ...]) -> None:
        """Publish the readings if they changed, and entities for new names."""
        if found == self._published_readings:
            return
        for each in found:
            if each.name not in self._readings and len(self._readings) < _CLASSES:
                self._publish(*self._topics.reading_entity(each))
                self._readings[each.name] = each
        self._publish(self._topics.read(found))
        self._published_readings = found

    def _publish_text(self) -> None:
        """Publish the text if it changed. Before the first text, publish the Home Assistant entity that shows it."""
        if self._text is None or (self._published_text is not None and self._text.text == self._published_text.text):
            return
        if not self._has_text_entity:
            self._publish(*self._topics.text_entity())
            self._has_text_entity = True
        self._publish(self._topics.text_state(self._text))
        self._published_text = self._text

    def _publish_places(self) -> None:
        for key, state in self._places.items():
            if self._published_places.get(key) == state:
                continue
            if key not in self._published_places:
                self._publish(*self._topics.place_entities(*key))
            self._publish(self._topics.place(*key, state))
            self._published_places[key] = state

    def _has_entities_after_removal(self) -> bool:
        """Remove some entities of the camera; return whether others are left."""
        with self._publishing:
            self._remove_entities(self._entities)
            return bool(self._entities)

    def _remove_entities(self, topics: Set[str]) -> None:
        """Remove entities, as many as there is room for. Call this again to remove the rest."""
        if self._has_room():
            removed = sorted(topics)[:_IN_FLIGHT]
            self._publish(*(Message(topic, b"", retain=True) for topic in removed))
            self._entities.difference_update(removed)

    def _publish(self, *messages: Message, qos: int = _AT_LEAST_ONCE) -> None:
        for each in messages:
            if isinstance(each, Entity):
                self._entities.add(each.topic)
            self._sent.append(self._client.publish(each.topic, each.payload, qos=qos, retain=each.retain))

    def _has_room(self) -> bool:
        """Whether fewer than 16 messages are unacknowledged. Without this check paho's queue would grow."""
        while self._sent and _is_over(self._sent[0]):
            self._sent.popleft()
        return len(self._sent) < _IN_FLIGHT

    def _on_connect(self, _client: Any, _data: object, _flags: object, reason: Any, _properties: object) -> None:
        """Publish entities and the states of zones and lines after each connection, and other states with the next
        result, since the broker may have lost them. Runs in paho's thread."""
        if reason.is_failure:
            _log.warning("broker %s refuses the connection: %s", self.name, reason)
            return
        with self._publishing:
            self._entities = set()
            if self._topics.entities:
                self._client.subscribe(self._topics.entities, qos=_AT_LEAST_ONCE)
            self._publish(*self._topics.camera_entities())
            for label in self._known:
                self._publish(*self._topics.class_entity(label))
            for each in self._readings.values():
                self._publish(*self._topics.reading_entity(each))
            self._publish(self._topics.available(True))
            self._published_places = {}
            self._publish_places()
            self._sent.clear()
            self._published, self._published_readings, self._published_text = None, (), None
            self._has_text_entity = False

    def _on_entity(self, _client: Any, _data: object, message: Any) -> None:
        """Note an entity that the broker has. Runs in paho's thread."""
        with self._publishing:
            if message.payload:
                self._entities.add(message.topic)
            else:
                self._entities.discard(message.topic)

    def _on_disconnect(self, _client: Any, _data: object, _flags: object, reason: Any, _properties: object) -> None:
        if reason.is_failure:
            _log.warning("the connection to broker %s is lost (%s); trying again", self.name, reason)


def _labels(result: Result) -> Iterator[str]:
    """Yield the labels to count: the labels of detections, the name of an embedding, and "anomaly" for an anomalous
    picture."""
    yield from (found.label for found in result.detections)
    if isinstance(result.content, Embedding) and result.content.label:
        yield result.content.label
    if isinstance(result.content, Anomaly) and result.content.is_anomalous:
        yield _ANOMALY


def _is_over(info: Any) -> bool:
    try:
        return bool(info.is_published())
    except (RuntimeError, ValueError):  # paho did not queue the message, so it will never be sent
        return True


def _secure(client: Any, ca: str) -> None:
    try:
        client.tls_set(ca_certs=ca or None)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the broker's CA certificates {ca!r} cannot be used: {error}") from None


def _require_paho() -> Any:
    try:
        return importlib.import_module("paho.mqtt.client")
    except ImportError:
        raise Unsupported(f"MQTT needs paho-mqtt; install it: {packages.install_extra('mqtt')}") from None


PASSWORD, PASSWORD_FILE = "EDGED_MQTT_PASSWORD", "EDGED_MQTT_PASSWORD_FILE"
_FORM = "write mqtt://user@host:1883/prefix, or mqtts:// for TLS"
_PORTS = {"mqtt": 1883, "mqtts": 8883}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings in the query of a broker's address. `rate` is results per second. `discovery` is the topic prefix to
    which Home Assistant subscribes; empty turns discovery off. `ca` is a file of CA certificates; empty means the
    system's. If `maps` is set, published results include the cells of class maps, depth maps and heat maps. Such a
    result can have a megabyte."""

    rate: float = 2.0
    discovery: str = "homeassistant"
    ca: str = ""
    maps: bool = False


class Broker(msgspec.Struct, frozen=True):
    """A broker's address and login."""

    host: str
    port: int
    tls: bool
    user: str | None
    password: str | None
    prefix: str
    settings: Settings


def broker(url: str, environment: Mapping[str, str] = os.environ) -> Broker:
    """Parse `mqtt://user@host:1883/prefix?rate=2&discovery=homeassistant`, or `mqtts://` for TLS.

    The password comes from EDGED_MQTT_PASSWORD, or from the file named by EDGED_MQTT_PASSWORD_FILE. It must not be in
    the address, since every user of the machine can see the address. Raises InvalidInput for an invalid address,
    NotFound if the file cannot be read.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(f"the broker's address {redact(url)!r} is invalid: {error}; {_FORM}") from None
    settings = query_settings(url, parts.query, Settings)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidInput(f"the broker's address {redact(url)!r} is invalid; {_FORM}")
    if parts.password is not None:
        raise InvalidInput(
            f"a password in the broker's address is visible to every user; use {PASSWORD} or {PASSWORD_FILE}"
        )
    if settings.rate <= 0:
        raise InvalidInput(f"rate={settings.rate:g} is out of range; give a number of results per second above 0")
    prefix = unquote(parts.path.strip("/")) or "edged"
    if "#" in url or any(sign in prefix + settings.discovery for sign in "+#\0"):
        raise InvalidInput(f"the broker's address {redact(url)!r} has an invalid topic prefix; leave out + and #")
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
    except UnicodeDecodeError:
        raise InvalidInput(f"the password file {path!r} of {PASSWORD_FILE} is not text; write it in UTF-8") from None


_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class Message(msgspec.Struct, frozen=True):
    topic: str
    payload: bytes
    retain: bool = False


class Entity(Message, frozen=True):
    """A message that announces an entity of Home Assistant."""


class Place(msgspec.Struct, frozen=True):
    """The state of a zone: whether an object is in it, and the number of objects of each class."""

    occupied: bool
    counts: dict[str, int]


class Crossings(msgspec.Struct, frozen=True):
    """The state of a line: how many objects have crossed it in each direction."""

    entered: int
    left: int


class Topics:
    """Makes the topics and messages of one camera, without IO. `node` distinguishes cameras of several machines.
    Methods such as `text_entity` return an entity of Home Assistant as the messages that announce the entity."""

    def __init__(self, prefix: str, discovery: str, node: str, camera: str) -> None:
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
        self.readings, self.text = f"{base}/readings", f"{base}/text"

    @property
    def entities(self) -> str:
        """The topic filter of all entities of the camera; empty if discovery is off."""
        return f"{self._discovery}/+/{self._node}/+/config" if self._discovery else ""

    def former_places(self, entities: Set[str], places: Iterable[tuple[str, str]]) -> set[str]:
        """Return the topics of entities that belong to zones and lines other than `places` (kinds and names)."""
        known = {message.topic for kind, name in places for message in self.place_entities(kind, name)}
        kinds = f"/{self._node}/zone_", f"/{self._node}/line_"
        return {topic for topic in entities if any(kind in topic for kind in kinds)} - known

    def available(self, online: bool) -> Message:
        return Message(self.availability, b"online" if online else b"offline", retain=True)

    def whole(self, result: Result, maps: bool = False) -> Message:
        return Message(self.result, encode(result, maps))

    def state(self, counts: Counter[str]) -> tuple[Message, Message]:
        """Return two messages: whether anything is detected (ON or OFF), and the number of objects of each class."""
        seen = b"ON" if counts else b"OFF"
        return Message(self.detected, seen, retain=True), Message(self.counts, _json(dict(counts)), retain=True)

    def camera_entities(self) -> tuple[Message, ...]:
        """Return the entities that every camera has; empty if discovery is off."""
        occupancy = {"state_topic": self.detected, "device_class": "occupancy", "name": "Detected"}
        return (
            *self._entity("binary_sensor", "detected", occupancy),
            *self._count("objects", "Objects", "{{ value_json.values() | sum }}", self.counts),
        )

    def class_entity(self, label: str) -> tuple[Message, ...]:
        """Return the entity for the number of objects of a class; empty if discovery is off."""
        name = msgspec.json.encode(label).decode()
        return self._count(f"count_{slug(label)}", label, f"{{{{ value_json.get({name}, 0) }}}}", self.counts)

    def read(self, found: Sequence[Reading]) -> Message:
        """Return the message that maps the name of each reading to its value."""
        return Message(self.readings, _json({each.name: each.value for each in found}), retain=True)

    def reading_entity(self, reading: Reading) -> tuple[Message, ...]:
        """Return the entity for a reading. Its value is 0 while results lack the reading. Empty if discovery is off."""
        name = msgspec.json.encode(reading.name).decode()
        config = {"name": reading.name, "state_topic": self.readings, "state_class": "measurement"}
        unit = {"unit_of_measurement": reading.unit} if reading.unit else {}
        template = {"value_template": f"{{{{ value_json.get({name}, 0) }}}}"}
        return self._entity("sensor", f"reading_{slug(reading.name)}", {**config, **unit, **template})

    def text_state(self, text: Text) -> Message:
        """Return the message with the text that a recogniser reads, and its score."""
        return Message(self.text, _json({"text": text.text, "confidence": round(text.score, 4)}), retain=True)

    def text_entity(self) -> tuple[Message, ...]:
        """Return the entity for the text; empty if discovery is off."""
        template = f"{{{{ value_json.text[:{_LONGEST_STATE}] }}}}"
        return self._entity("sensor", "text", {"name": "Text", "state_topic": self.text, "value_template": template})

    def described(self, rule: str, text: str, unix_s: float) -> Message:
        """Return the message with a description of what the camera sees."""
        plain = {"rule": rule, "text": text, "unix_s": round(unix_s, 3)}
        return Message(f"{self._base}/description", _json(plain), retain=True)

    def description_entity(self) -> tuple[Message, ...]:
        """Return the entity for descriptions; empty if discovery is off."""
        template = f"{{{{ value_json.text[:{_LONGEST_STATE}] }}}}"
        config = {"name": "Description", "state_topic": f"{self._base}/description", "value_template": template}
        return self._entity("sensor", "description", config)

    def place(self, kind: str, name: str, state: Place | Crossings) -> Message:
        """Return the message with the state of a zone or line."""
        plain = msgspec.to_builtins(state)
        if isinstance(state, Place):
            plain["occupied"] = "ON" if state.occupied else "OFF"
        return Message(self._place_topic(kind, name), _json(plain), retain=True)

    def place_entities(self, kind: str, name: str) -> tuple[Message, ...]:
        """Return the entities of a zone (occupancy, number of objects) or a line (totals); empty if discovery is
        off."""
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
        """Return an entity for a number of objects; `kind` is Home Assistant's state class."""
        config = {"name": name, "state_topic": topic, "value_template": template, "state_class": kind}
        return self._entity("sensor", what, config | {"unit_of_measurement": "objects"})

    def _entity(self, component: str, what: str, config: dict[str, str]) -> tuple[Message, ...]:
        if not self._discovery:
            return ()
        identity = f"{self._node}_{what}"
        whole = {**config, "unique_id": identity, "availability_topic": self.availability, "device": self._device}
        return (Entity(f"{self._discovery}/{component}/{self._node}/{what}/config", _json(whole), retain=True),)


def slug(text: str) -> str:
    """Return the text as a topic level and identifier, with only letters, digits, `_` and `-`. If the result would
    differ from the text, a checksum is added, so that different texts have different results."""
    plain = _UNSAFE.sub("_", text).strip("_")
    return plain if plain == text and plain else f"{plain}_{zlib.crc32(text.encode()):08x}".lstrip("_")


def _json(plain: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(plain, order="sorted")
