"""LogSettings: what the daemon says, how, and how much of it.

Triton's settings: `log_info`, `log_warning`, `log_error` (bool), `log_verbose_level` (uint32), `log_format` ("default"
or "ISO8601"), `log_file`, which nobody may set from outside: the log stays where whoever started the daemon wants it.
"""

from __future__ import annotations

import logging
import time
from typing import TypeAlias

import msgspec

from edged.api.grpc.rpc import Context, Service
from edged.errors import InvalidInput
from edged.logs.formats import TextLines
from edged.proto import open_inference_pb2 as pb

Value: TypeAlias = bool | int | str

_OURS = "edged"
_ISO = "ISO8601"
_FORMATS = ("default", _ISO)


class LogSettings(msgspec.Struct, frozen=True):
    """What is logged. `verbose` 1 adds every call, 2 what libraries tell of themselves as well."""

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose: int = 0
    format: str = "default"

    def admits(self, level: int) -> bool:
        """Whether a record of so high a level is written. What ends the daemon always is."""
        if level >= logging.CRITICAL:
            return True
        if level >= logging.ERROR:
            return self.error
        if level >= logging.WARNING:
            return self.warning
        return self.info if level >= logging.INFO else self.verbose > 0


class LogHandlers:
    """Holds the daemon's loggers to its settings; the loggers of one process have one such."""

    def __init__(self) -> None:
        self._settings = LogSettings()
        self._before: dict[logging.Handler, logging.Formatter | None] = {}
        self._levels: dict[str, int] = {}

    def register(self, service: Service) -> None:
        service.unary("LogSettings", pb.LogSettingsRequest, self.log_settings)

    async def log_settings(self, request: pb.LogSettingsRequest, context: Context) -> pb.LogSettingsResponse:
        """Changes all that is given, or nothing where something of it is wrong. Answers with all settings."""
        if request.settings:
            self._settings = changed(self._settings, {name: _value(value) for name, value in request.settings.items()})
            self._apply()
        return pb.LogSettingsResponse(settings={name: _told(value) for name, value in shown(self._settings).items()})

    def filter(self, record: logging.LogRecord) -> bool:
        """What logging asks of each record."""
        return self._settings.admits(record.levelno)

    def again(self) -> None:
        """The configuration changed the log beneath: what clients have set is set anew, on top of that."""
        self._levels.clear()
        self._apply()

    def _apply(self) -> None:
        for handler in logging.getLogger().handlers:
            handler.addFilter(self.filter)  # which counts once, however often
            if not isinstance(handler.formatter, _Iso):
                self._before[handler] = handler.formatter
            handler.setFormatter(_Iso() if self._settings.format == _ISO else self._before.get(handler))
        for name, needed in ((_OURS, 1), ("", 2)):
            logger = logging.getLogger(name)
            usual = self._levels.setdefault(name, logger.level)
            logger.setLevel(logging.DEBUG if self._settings.verbose >= needed else usual)


def changed(settings: LogSettings, values: dict[str, Value | None]) -> LogSettings:
    """`settings` with values by their names on the wire. InvalidInput."""
    fields: dict[str, Value] = {}
    for name, value in values.items():
        if name in ("log_info", "log_warning", "log_error"):
            if not isinstance(value, bool):
                raise InvalidInput(f"{name} is true or false; set bool_param")
            fields[name.removeprefix("log_")] = value
        elif name == "log_verbose_level":
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidInput(f"{name} is a number; set uint32_param")
            fields["verbose"] = value
        elif name == "log_format":
            if value not in _FORMATS:
                raise InvalidInput(f"{name} is one of {', '.join(_FORMATS)}; set string_param")
            fields["format"] = str(value)
        elif name == "log_file":
            if value != "":
                raise InvalidInput("log_file cannot be set by clients; redirect the daemon's standard error instead")
        else:
            known = ", ".join(shown(settings))
            raise InvalidInput(f"there is no log setting {name[:40]!r}; there are {known}")
    return msgspec.structs.replace(settings, **fields)


def shown(settings: LogSettings) -> dict[str, Value]:
    """All settings by their names on the wire."""
    return {
        "log_file": "",
        "log_info": settings.info,
        "log_warning": settings.warning,
        "log_error": settings.error,
        "log_verbose_level": settings.verbose,
        "log_format": settings.format,
    }


def _value(value: pb.LogSettingsRequest.SettingValue) -> Value | None:
    kind = value.WhichOneof("parameter_choice")
    found: Value | None = getattr(value, kind) if kind else None
    return found


def _told(value: Value) -> pb.LogSettingsResponse.SettingValue:
    if isinstance(value, bool):
        return pb.LogSettingsResponse.SettingValue(bool_param=value)
    if isinstance(value, int):
        return pb.LogSettingsResponse.SettingValue(uint32_param=value)
    return pb.LogSettingsResponse.SettingValue(string_param=value)


class _Iso(TextLines):
    """UTC to the millisecond, for programs that read logs; otherwise as all text, whoever chose the names in it."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
