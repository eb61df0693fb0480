"""Sinks for results: lines of JSON, an annotated video, a preview in the browser, MQTT. Several can be combined:

with Sinks([JsonLines("door.jsonl"), Mp4("door.mp4"), Preview(8090)]) as sinks:
    for result in client.stream("doors", sinks.tap(open_source("rtsp://camera/main"))):
        sinks.on_result(result)
"""

from __future__ import annotations

from edged.client.sinks.mp4 import Mp4
from edged.client.sinks.mqtt import Mqtt
from edged.client.sinks.preview import Preview
from edged.client.sinks.sink import Answered, JsonLines, Sink, Sinks

__all__ = ["Answered", "JsonLines", "Mp4", "Mqtt", "Preview", "Sink", "Sinks"]
