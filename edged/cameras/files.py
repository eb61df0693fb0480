"""The files, devices and network that a camera's process may use. Pure, except that paths are resolved."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from edged.confinement import rules
from edged.ipc.capture_messages import Begin


def capture_reach(begin: Begin) -> rules.Reach:
    """Return what a camera's process may access. A GStreamer pipeline may need any file, so its process is not
    confined."""
    camera = begin.camera
    network, devices = True, rules.CAMERAS
    found = rules.reach(_reads(begin), _writes(begin), network=network, devices=devices)
    return found._replace(mode="off") if camera.source.startswith("gst:") else found


def _reads(begin: Begin) -> Iterator[str]:
    camera = begin.camera
    if "://" not in camera.source:
        yield os.path.abspath(camera.source)
        yield os.path.realpath(camera.source)
    if camera.sinks.mqtt_password_file:
        yield camera.sinks.mqtt_password_file
    with contextlib.suppress(ValueError):  # an invalid address, which the camera's process reports
        yield from parse_qs(urlsplit(camera.sinks.mqtt).query).get("ca", ())
    if begin.target.startswith("unix:"):
        yield os.path.dirname(begin.target.removeprefix("unix:"))


def _writes(begin: Begin) -> Iterator[str]:
    camera = begin.camera
    yield "/dev/shm"  # noqa: S108 - rings of frames for the daemon
    yield begin.folder
    if camera.sinks.lines:
        yield os.path.dirname(os.path.abspath(camera.sinks.lines))
    if camera.sinks.zmq.startswith("ipc://"):
        yield os.path.dirname(camera.sinks.zmq.removeprefix("ipc://"))
