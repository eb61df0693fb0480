"""LogSettings on the daemon's own loggers."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from edged.api.inference.administration import LogHandlers
from edged.errors import InvalidInput
from edged.proto import open_inference_pb2 as pb

_LOG = logging.getLogger("edged.somewhere")
_LIBRARY = logging.getLogger("library")


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What the daemon would write to its standard error, with logging as `edged serve` sets it up."""
    root, ours = logging.getLogger(), logging.getLogger("edged")
    before = root.handlers, root.level, ours.level
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    root.handlers, root.level = [handler], logging.INFO
    root.setLevel(logging.INFO)
    yield stream
    root.handlers = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def _set(handlers: LogHandlers, **settings: bool | int | str) -> dict[str, bool | int | str]:
    request = pb.LogSettingsRequest()
    for name, value in settings.items():
        field = (
            "bool_param" if isinstance(value, bool) else "uint32_param" if isinstance(value, int) else "string_param"
        )
        setattr(request.settings[name], field, value)
    answer = asyncio.run(handlers.log_settings(request, Mock()))
    return {name: getattr(value, str(value.WhichOneof("parameter_choice"))) for name, value in answer.settings.items()}


def _say() -> None:
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        _LOG.log(level, "%s of ours", logging.getLevelName(level))
        _LIBRARY.log(level, "%s of a library", logging.getLevelName(level))


def _said(written: io.StringIO, whose: str = "ours") -> list[str]:
    lines = [line.rpartition(": ")[2] for line in written.getvalue().splitlines()]
    found = [line.split()[0] for line in lines if line.endswith(f"of {whose}")]
    written.seek(0)
    written.truncate()
    return found


def test_all_settings_are_told_and_asking_changes_nothing(written: io.StringIO) -> None:
    assert _set(LogHandlers()) == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    _say()
    assert _said(written) == ["INFO", "WARNING", "ERROR", "CRITICAL"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"log_info": False}, ["WARNING", "ERROR", "CRITICAL"]),
        ({"log_warning": False}, ["INFO", "ERROR", "CRITICAL"]),
        ({"log_error": False}, ["INFO", "WARNING", "CRITICAL"]),
        ({"log_verbose_level": 1}, ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]),
        ({"log_verbose_level": 1, "log_info": False}, ["DEBUG", "WARNING", "ERROR", "CRITICAL"]),
    ],
)
def test_each_kind_of_message_can_be_switched(written: io.StringIO, settings: dict[str, bool], said: list[str]) -> None:
    handlers = LogHandlers()
    answer = _set(handlers, **settings)
    assert {name: answer[name] for name in settings} == settings
    _say()
    assert _said(written) == said
    _set(handlers, log_info=True, log_warning=True, log_error=True, log_verbose_level=0)
    _say()
    assert _said(written) == ["INFO", "WARNING", "ERROR", "CRITICAL"]


def test_libraries_speak_of_details_at_the_second_level_only(written: io.StringIO) -> None:
    handlers = LogHandlers()
    for level, spoken in ((1, False), (2, True), (0, False)):
        _set(handlers, log_verbose_level=level)
        _say()
        assert ("DEBUG" in _said(written, "a library")) is spoken


def test_no_name_looks_like_another_line_in_the_other_format(written: io.StringIO) -> None:
    _set(LogHandlers(), log_format="ISO8601")
    _LOG.info("camera %s", "door\n2026-05-01T10:00:00.000Z I edged: all is well\x1b[2J")
    assert written.getvalue().count("\n") == 1
    assert "\x1b" not in written.getvalue()


def test_the_format_changes_and_comes_back(written: io.StringIO) -> None:
    handlers = LogHandlers()
    patterns = {
        "ISO8601": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z I ",
        "default": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} I ",
    }
    for name, pattern in patterns.items():
        _set(handlers, log_format=name)
        _LOG.info("hello")
        assert re.match(pattern, written.getvalue())
        written.seek(0)
        written.truncate()


@pytest.mark.parametrize(
    "settings",
    [
        {"log_file": "/tmp/x"},
        {"log_file": "x"},
        {"log_format": "xml"},
        {"log_info": 1},
        {"log_info": "yes"},
        {"log_verbose_level": True},
        {"log_colour": True},
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(written: io.StringIO, settings: dict[str, bool]) -> None:
    handlers = LogHandlers()
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        _set(handlers, log_warning=False, **settings)
    assert _set(handlers)["log_warning"] is True
    _say()
    assert "WARNING" in _said(written)


def test_a_setting_without_a_value_is_refused(written: io.StringIO) -> None:
    request = pb.LogSettingsRequest(settings={"log_error": pb.LogSettingsRequest.SettingValue()})
    with pytest.raises(InvalidInput, match="bool_param"):
        asyncio.run(LogHandlers().log_settings(request, Mock()))
