"""The LogSettings call, applied to the daemon's loggers."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from edged.api.grpc.rpc import Context
from edged.api.inference.administration import LogHandlers
from edged.errors import InvalidInput
from edged.proto import open_inference_pb2 as pb

OURS, LIBRARY = logging.getLogger("edged.somewhere"), logging.getLogger("library")
USUAL = ["INFO", "WARNING", "ERROR", "CRITICAL"]


class Log:
    """Logging as `edged serve` configures it, written to a buffer, and the handlers of LogSettings."""

    def __init__(self) -> None:
        self.stream, self.handlers = io.StringIO(), LogHandlers()

    def set(self, **settings: bool | int | str) -> dict[str, Any]:
        request = pb.LogSettingsRequest()
        kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
        for name, value in settings.items():
            setattr(request.settings[name], kinds[type(value)], value)
        found = asyncio.run(self.handlers.log_settings(request, Context("unix:"))).settings
        return {name: getattr(value, str(value.WhichOneof("parameter_choice"))) for name, value in found.items()}

    def levels(self, of: logging.Logger = OURS) -> list[str]:
        """Log a message at each level. Return the levels that were written."""
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            of.log(level, "it is %s", logging.getLevelName(level))
        return [line.rpartition(" ")[2] for line in self.written().splitlines()]

    def written(self) -> str:
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text


@pytest.fixture
def log() -> Iterator[Log]:
    root, ours, found = logging.getLogger(), logging.getLogger("edged"), Log()
    before = root.handlers, root.level, ours.level
    handler = logging.StreamHandler(found.stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    ours.setLevel(logging.NOTSET)
    yield found
    root.handlers = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_log_settings_without_changes_returns_all(log: Log) -> None:
    assert log.set() == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    assert log.levels() == USUAL


@pytest.mark.parametrize(
    ("settings", "levels"),
    [
        ({"log_info": False}, ["WARNING", "ERROR", "CRITICAL"]),
        ({"log_warning": False}, ["INFO", "ERROR", "CRITICAL"]),
        ({"log_error": False}, ["INFO", "WARNING", "CRITICAL"]),
        ({"log_verbose_level": 1}, ["DEBUG", *USUAL]),
        ({"log_verbose_level": 1, "log_info": False}, ["DEBUG", "WARNING", "ERROR", "CRITICAL"]),
    ],
)
def test_log_settings_switch_levels(log: Log, settings: dict[str, bool], levels: list[str]) -> None:
    assert {name: log.set(**settings)[name] for name in settings} == settings
    assert log.levels() == levels
    log.set(log_info=True, log_warning=True, log_error=True, log_verbose_level=0)
    assert log.levels() == USUAL


def test_log_settings_second_level_adds_debug_messages_of_libraries(log: Log) -> None:
    for level, is_written in ((1, False), (2, True), (0, False)):
        log.set(log_verbose_level=level)
        assert ("DEBUG" in log.levels(LIBRARY)) is is_written


def test_log_settings_format_changes_and_resets(log: Log) -> None:
    for name, pattern in (
        ("ISO8601", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z I "),
        ("default", r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} I "),
    ):
        log.set(log_format=name)
        OURS.info("hello")
        assert re.match(pattern, log.written())


def test_log_settings_iso_format_escapes_control_characters(log: Log) -> None:
    log.set(log_format="ISO8601")
    OURS.info("camera %s", "door\n2026-05-01T10:00:00.000Z I edged: all is well\x1b[2J")
    text = log.written()
    assert text.count("\n") == 1
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("log_file", value) for value in ("/tmp/x", "x")),
        ("log_format", "xml"),
        *(("log_info", value) for value in (1, "yes")),
        ("log_verbose_level", True),
        ("log_colour", True),
    ],
)
def test_log_settings_invalid_setting_changes_nothing(log: Log, name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        log.set(log_warning=False, **{name: value})
    assert log.set()["log_warning"] is True
    assert log.levels() == USUAL


def test_log_settings_without_a_value_is_refused(log: Log) -> None:
    request = pb.LogSettingsRequest(settings={"log_error": pb.LogSettingsRequest.SettingValue()})
    with pytest.raises(InvalidInput, match="log_error"):
        asyncio.run(log.handlers.log_settings(request, Context("unix:")))
