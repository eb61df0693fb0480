"""The MQTT sink with the tests' own small broker, and the messages for Home Assistant."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edged.client.result import Detection, Result, Timings
from edged.client.sinks import Answered, Mqtt
from edged.client.sinks.mqtt import Crossings, Place, Settings, Topics, broker, slug
from edged.errors import InvalidInput, NotFound, Unsupported
from edged.vision.content import Anomaly, ClassMap, Content, Depth, Embedding, Text, ValueMap
from tests.unit.mqtt_broker import Broker
from tests.waiting import wait

pytest.importorskip("paho.mqtt.client")
pytestmark = pytest.mark.timeout(90)


def answered(*labels: str, sequence: int = 1, error: tuple[str, str] | None = None) -> Answered:
    found = tuple(Detection(0, 0, 4, 4, 0.5, index, label) for index, label in enumerate(labels))
    return Answered(Result("hall", sequence, "doors", 8, 8, found, {}, 1.5, Timings(), "e", "b", 0, error))


def connect(at: Broker, query: str = "?rate=1000", **options: Any) -> Mqtt:
    """Return a connected sink. Its default clock advances by one second for each result."""
    options.setdefault("clock", itertools.count(1).__next__)
    sink = Mqtt(broker(f"mqtt://127.0.0.1:{at.port}/site/one{query}", {}), "hall", "box", **options)
    at.wait_for("site/one/hall/availability", b"online")
    return sink


def test_mqtt_results_are_published() -> None:
    with Broker() as at:
        sink = connect(at)
        sink.on_answer(answered("person", "person", "dog", sequence=7))
        result = at.wait_for("site/one/hall/result")
        assert json.loads(result.payload)["sequence"] == 7
        assert (result.qos, result.retain) == (0, False)
        assert json.loads(at.retained["site/one/hall/counts"]) == {"person": 2, "dog": 1}
        assert at.retained["site/one/hall/detected"] == b"ON"
        sink.on_answer(answered(sequence=8))
        at.wait_for("site/one/hall/detected", b"OFF")
        sink.on_answer(answered("person", sequence=9))
        wait(lambda: at.retained["site/one/hall/detected"] == b"ON")
        sink.publish_absence()
        wait(lambda: at.retained["site/one/hall/detected"] == b"OFF")
        wait(lambda: at.retained["site/one/hall/counts"] == b"{}")
        sink.close()
        at.wait_for("site/one/hall/availability", b"offline")
        assert at.logins == [(None, None)]


@pytest.mark.parametrize(
    ("content", "counts"),
    [
        (Embedding(bytes(4), "Ada", 0.75), {"Ada": 1}),
        (Embedding(bytes(4), "", 0.25), {}),
        (Anomaly(0.75, True), {"anomaly": 1}),
        (Anomaly(0.25, False), {}),
        (Depth(ValueMap(1, 1, 0, 1, bytes(2)), True), {}),
    ],
)
def test_mqtt_counts_names_and_anomalies(content: Content, counts: dict[str, int]) -> None:
    with Broker() as at:
        sink = connect(at)
        sink.on_answer(Answered(msgspec.structs.replace(answered().result, content=content)))
        at.wait_for("site/one/hall/result")
        assert json.loads(at.retained["site/one/hall/counts"]) == counts
        assert at.retained["site/one/hall/detected"] == (b"ON" if counts else b"OFF")
        sink.close()


def test_mqtt_unchanged_counts_are_not_published_again_and_errors_ignored() -> None:
    with Broker() as at:
        sink = connect(at)
        for number in range(1, 4):
            sink.on_answer(answered("dog", sequence=number))
            at.wait_for("site/one/hall/result", count=number)
        sink.on_answer(answered(sequence=4, error=("UNAVAILABLE", "the host died")))
        sink.close()
    topics = [message.topic for message in at.published]
    assert topics.count("site/one/hall/result") == 3
    assert topics.count("site/one/hall/counts") == topics.count("site/one/hall/detected") == 1


def test_mqtt_discovery_describes_camera_and_classes() -> None:
    with Broker() as at:
        sink = connect(at)
        sink.on_answer(answered("person", "fire engine"))
        at.wait_for("site/one/hall/result")
        sink.close()
        configs = {t: json.loads(p) for t, p in at.retained.items() if t.startswith("homeassistant/")}
    occupancy = configs["homeassistant/binary_sensor/edged_box_hall/detected/config"]
    assert occupancy["state_topic"] == "site/one/hall/detected"
    assert occupancy["availability_topic"] == "site/one/hall/availability"
    assert "homeassistant/sensor/edged_box_hall/objects/config" in configs
    person = configs["homeassistant/sensor/edged_box_hall/count_person/config"]
    assert person["value_template"] == '{{ value_json.get("person", 0) }}'
    assert person["device"] == occupancy["device"]
    assert len(configs) == 4
    assert len({config["unique_id"] for config in configs.values()}) == 4


def test_mqtt_text_is_published_with_an_entity_when_it_changes() -> None:
    def reading(text: str, score: float = 0.91234) -> Answered:
        read = msgspec.structs.replace(answered().result, content=Text(text, score))
        return Answered(read)

    with Broker() as at:
        sink = connect(at)
        for number, each in enumerate((reading("KA 17"), reading("KA 17", 0.8), reading("")), 1):
            sink.on_answer(each)
            at.wait_for("site/one/hall/result", count=number)
        sink.close()
        texts = [json.loads(message.payload) for message in at.published if message.topic == "site/one/hall/text"]
        assert texts == [{"text": "KA 17", "confidence": 0.9123}, {"text": "", "confidence": 0.9123}]
        entity = json.loads(at.retained["homeassistant/sensor/edged_box_hall/text/config"])
    assert entity["state_topic"] == "site/one/hall/text"
    assert entity["value_template"] == "{{ value_json.text[:255] }}"


def test_mqtt_discovery_off_publishes_no_entities() -> None:
    with Broker() as at:
        sink = connect(at, "?discovery=&rate=1000")
        sink.on_answer(answered("person"))
        at.wait_for("site/one/hall/result")
        sink.close()
    assert not [message for message in at.published if "config" in message.topic]


def entities(at: Broker) -> set[str]:
    return {topic.split("/", 2)[2] for topic in at.retained if topic.startswith("homeassistant/")}


def test_mqtt_entities_of_former_zones_and_lines_are_removed() -> None:
    free, none = Place(False, {}), Crossings(0, 0)
    with Broker() as at:
        other = "homeassistant/sensor/edged_box_yard/zone_door_objects/config"
        at.retained[other] = b"{}"
        for zones, lines in (({"door": free, "bed": free}, {"gate": none}), ({"bed": free}, {})):
            sink = connect(at)
            sink.on_answer(answered("person", "zone_x"))
            sink.publish_places(zones, lines)
            at.wait_for("site/one/hall/zone/bed")
            at.wait_for("site/one/hall/result")
            sink.close()
            at.published.clear()
        sink = connect(at)
        sink.publish_places({"bed": free}, {})

        def is_clean() -> bool:
            sink.publish_places({"bed": free}, {})
            return not any("door" in topic or "gate" in topic for topic in entities(at) if "yard" not in topic)

        wait(is_clean)
        wanted = {"detected", "objects", "count_person", "count_zone_x", "zone_bed", "zone_bed_objects"}
        assert entities(at) == {f"edged_box_hall/{each}/config" for each in wanted} | {other.split("/", 2)[2]}
        sink.close()


def test_mqtt_entities_of_a_removed_camera_are_removed() -> None:
    with Broker() as at:
        at.retained["homeassistant/sensor/edged_box_yard/objects/config"] = b"{}"
        at.retained["homeassistant/sensor/edged_box_hall/count_cat/config"] = b"{}"  # of an earlier process
        sink = connect(at)
        sink.on_answer(answered("person"))
        at.wait_for("site/one/hall/result")
        sink.on_answer(answered("dog"))
        sink.forget()
        sink.close()
        wait(lambda: at.retained["site/one/hall/availability"] == b"offline")
        assert entities(at) == {"edged_box_yard/objects/config"}


def test_mqtt_many_entities_of_a_removed_camera_are_removed() -> None:
    """More entities than paho queues: those of earlier models and of the places of earlier processes count too."""
    with Broker() as at:
        for number in range(500):
            at.retained[f"homeassistant/sensor/edged_box_hall/count_{number}/config"] = b"{}"
        sink = connect(at)
        wait(lambda: len(sink._entities) >= 502)
        sink.forget()
        sink.close()
        wait(lambda: at.retained["site/one/hall/availability"] == b"offline")
        assert entities(at) == set()


def test_mqtt_rate_limits_results_and_close_publishes_last_state() -> None:
    now = 100.0
    with Broker() as at:
        sink = connect(at, "?rate=2", clock=lambda: now)
        for number in range(40):  # four seconds
            sink.on_answer(answered("dog", sequence=number))
            now += 0.1
        sink.on_answer(answered())
        sink.close()
        at.wait_for("site/one/hall/detected", b"OFF")
    assert 8 <= len([m for m in at.published if m.topic.endswith("/result")]) <= 9


def test_mqtt_lost_connection_is_offline_by_will() -> None:
    with Broker() as at:
        sink = connect(at)
        at.drop()
        at.wait_for("site/one/hall/availability", b"offline")
        assert at.wait_for("site/one/hall/availability", b"online", count=2).retain  # after a new connection
        sink.close()


def test_mqtt_broker_started_later_or_again_gets_states_and_discovery() -> None:
    with Broker() as first:
        port = first.port
    clock = itertools.count(1).__next__
    sink = Mqtt(broker(f"mqtt://127.0.0.1:{port}/site/one?rate=1000", {}), "hall", "box", clock=clock)
    begun = time.monotonic()
    for number in range(100):
        sink.on_answer(answered("dog", sequence=number))
    assert time.monotonic() - begun < 5  # results do not wait for a broker

    def published(at: Broker) -> bool:
        sink.on_answer(answered("cat"))
        return at.retained.get("site/one/hall/counts") == b'{"cat":1}'

    for _ in range(2):
        with Broker(port) as at:
            at.wait_for("site/one/hall/availability", b"online")
            wait(lambda at=at: published(at))  # type: ignore[misc]
            assert "homeassistant/sensor/edged_box_hall/count_cat/config" in at.retained
    sink.close()


def test_mqtt_stalled_broker_drops_results() -> None:
    with Broker() as at:
        sink = connect(at, "?rate=1000000")
        at.stalled.set()
        begun = time.monotonic()
        many = [f"class {number}" for number in range(300)]
        for number in range(20_000):
            sink.on_answer(answered(*many[: 1 + number % 3], sequence=number))
            if sink.dropped > 100:
                break
        assert sink.dropped > 100
        assert time.monotonic() - begun < 60
        at.drop()
        sink.close()


def test_mqtt_refused_connection_is_logged_without_password(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("from a file\n")
    with Broker(refuse=5) as at:
        url = f"mqtt://ed%40home@127.0.0.1:{at.port}"
        sink = Mqtt(broker(url, {"EDGED_MQTT_PASSWORD_FILE": str(secret)}), "hall", "box")
        wait(lambda: "refuses the connection" in caplog.text)
        assert at.logins[0] == ("ed@home", "from a file")
        sink.close()
    assert "from a file" not in caplog.text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://box", "mqtt://user@host"),
        ("mqtt://", "mqtt://user@host"),
        ("mqtt://box:port", "box:port"),
        ("mqtt://me:secret@box", "EDGED_MQTT_PASSWORD"),
        ("mqtt://box/a/#", "topic"),
        ("mqtt://box?rate=0", "rate"),
        ("mqtt://box?speed=1", "speed"),
    ],
)
def test_broker_invalid_address_raises(url: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        broker(url, {})
    assert "secret" not in str(caught.value)


def test_broker_valid_addresses_are_parsed() -> None:
    plain = broker("mqtt://box", {"EDGED_MQTT_PASSWORD": "x"})
    assert (plain.host, plain.port, plain.tls, plain.user, plain.password) == ("box", 1883, False, None, "x")
    assert (plain.prefix, plain.settings) == ("edged", Settings(2.0, "homeassistant", ""))
    assert (broker("mqtts://box", {}).port, broker("mqtts://box", {}).tls) == (8883, True)
    with pytest.raises(NotFound, match="password file"):
        broker("mqtt://box", {"EDGED_MQTT_PASSWORD_FILE": "/nowhere"})
    with pytest.raises(InvalidInput, match="certificates"):
        Mqtt(broker("mqtts://box?ca=/nowhere", {}), "hall")


def test_broker_password_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="password"):
        broker("mqtt://box", {"EDGED_MQTT_PASSWORD_FILE": str(tmp_path / "password")})


def test_slug_different_names_stay_different() -> None:
    names = ["hall", "hall 1", "hall_1", "hall/1", "", "+", "Türe"]
    assert len({slug(name) for name in names}) == len(names)
    assert slug("hall-1") == "hall-1"
    assert Topics("p", "d", "n", "a/+#b").result.count("/") == 2
    assert not set("+#") & set(Topics("p", "d", "n", "a/+#b").result)


def test_mqtt_missing_library_raises_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "paho.mqtt.client", None)
    with pytest.raises(Unsupported, match="-m pip install 'paho-mqtt"):
        Mqtt(broker("mqtt://box", {}), "hall")


def seen(content: Content, sequence: int = 1) -> Answered:
    labels = {0: "road", 1: "sky"}
    return Answered(
        Result(
            "hall", sequence, "m", 8, 8, (), {}, 1.5, Timings(), "e", "b", 0, None, content=content, class_labels=labels
        )
    )


def test_mqtt_class_map_gives_the_share_of_each_class_and_no_map() -> None:
    discovery = "homeassistant/sensor/edged_box_hall"
    with Broker() as at:
        sink = connect(at)
        sink.on_answer(seen(ClassMap.of(np.array([[0, 0, 1]]))))
        at.wait_for("site/one/hall/readings")
        assert json.loads(at.retained["site/one/hall/readings"]) == {"road": 66.7, "sky": 33.3}
        assert "lengths" not in json.loads(at.wait_for("site/one/hall/result").payload)["class_map"]
        sink.on_answer(seen(ClassMap.of(np.array([[0, 0, 0]])), 2))
        at.wait_for("site/one/hall/readings", b'{"road":100.0}')
        sink.close()
        entity = json.loads(at.retained[f"{discovery}/reading_sky/config"])
        assert (entity["name"], entity["unit_of_measurement"]) == ("sky", "%")
        assert entity["value_template"] == '{{ value_json.get("sky", 0) }}'


def test_mqtt_depth_gives_its_limits_and_the_map_if_wanted() -> None:
    with Broker() as at:
        sink = connect(at, "?rate=1000&maps=true")
        sink.on_answer(seen(Depth(ValueMap.of(np.array([[1.5, 20.25]])), False, "m")))
        at.wait_for("site/one/hall/readings")
        assert json.loads(at.retained["site/one/hall/readings"]) == {"depth low": 1.5, "depth high": 20.25}
        assert "data" in json.loads(at.wait_for("site/one/hall/result").payload)["depth"]["map"]
        sink.close()
        entities = [json.loads(value) for topic, value in at.retained.items() if "/reading_" in topic]
        assert {entity["unit_of_measurement"] for entity in entities} == {"m"}


def test_mqtt_equal_readings_are_not_published_again() -> None:
    with Broker() as at:
        sink = connect(at)
        for number in range(1, 4):
            sink.on_answer(seen(ClassMap.of(np.array([[0, 1]])), number))
            at.wait_for("site/one/hall/result", count=number)
        sink.close()
        at.wait_for("site/one/hall/availability", b"offline")
        assert sum(message.topic == "site/one/hall/readings" for message in at.published) == 1
