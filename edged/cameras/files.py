"""The files, devices and network that the process of a camera may use. Pure but for looking at paths."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from edged.confinement import rules
from edged.ipc.capture_messages import Begin


def capture_reach(begin: Begin) -> rules.Reach:
    """Return what the process of a camera may reach. A pipeline of GStreamer may need any file, and is not confined."""
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
    with contextlib.suppress(ValueError):  # of an invalid address; the process of the camera says what is wrong with it
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
