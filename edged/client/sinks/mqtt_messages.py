"""What is told by MQTT: topics, payloads and Home Assistant's discovery. No IO.

Format of discovery: home-assistant.io/integrations/mqtt, "MQTT discovery"; a retained message at
`homeassistant/COMPONENT/NODE/OBJECT/config` describes an entity, an empty one takes it away.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter

import msgspec

from edged.client.result import Result
from edged.client.sinks.lines import encode
from edged.version import __version__

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class Message(msgspec.Struct, frozen=True):
    topic: str
    payload: bytes
    retain: bool = False


class Topics:
    """Those of one camera. `node` tells the cameras of several machines apart."""

    def __init__(self, prefix: str, discovery: str, node: str, camera: str) -> None:
        self.camera = camera
        self._discovery = discovery
        self._node = f"edged_{slug(node)}_{slug(camera)}"
        self._device = {
            "identifiers": [self._node],
            "name": f"{camera} ({node})",
            "manufacturer": "edged",
            "sw_version": __version__,
        }
        base = f"{prefix}/{slug(camera)}"
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
        """What a camera has from the start; nothing where discovery is switched off."""
        if not self._discovery:
            return ()
        occupancy: dict[str, object] = {"state_topic": self.detected, "device_class": "occupancy", "name": "Detected"}
        total = self._count("Objects", "{{ value_json.values() | sum }}")
        return self._config("binary_sensor", "detected", occupancy), self._config("sensor", "objects", total)

    def class_entity(self, label: str) -> tuple[Message, ...]:
        """The number of objects of a class, once the first one is seen."""
        if not self._discovery:
            return ()
        name = msgspec.json.encode(label).decode()
        config = self._count(label, f"{{{{ value_json.get({name}, 0) }}}}")
        return (self._config("sensor", f"count_{slug(label)}", config),)

    def _count(self, name: str, template: str) -> dict[str, object]:
        return {
            "name": name,
            "state_topic": self.counts,
            "value_template": template,
            "state_class": "measurement",
            "unit_of_measurement": "objects",
        }

    def _config(self, component: str, what: str, config: dict[str, object]) -> Message:
        whole = {
            **config,
            "unique_id": f"{self._node}_{what}",
            "availability_topic": self.availability,
            "device": self._device,
        }
        return Message(f"{self._discovery}/{component}/{self._node}/{what}/config", _json(whole), retain=True)


def counts_of(result: Result) -> Counter[str]:
    return Counter(found.label for found in result.detections)


def slug(text: str) -> str:
    """As a topic's level and an identifier may be; different texts stay different."""
    plain = _UNSAFE.sub("_", text).strip("_")
    return plain if plain == text and plain else f"{plain}_{zlib.crc32(text.encode()):08x}".lstrip("_")


def _json(plain: dict[str, object] | dict[str, int]) -> bytes:
    return msgspec.json.encode(plain, order="sorted")
