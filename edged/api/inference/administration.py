"""The extension `model_repository`: which models there are, and loading and unloading them by command."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from edged.api.grpc.rpc import Context, Service
from edged.engines.controller import Controller
from edged.engines.loader import READY
from edged.engines.plan import PlannedModel
from edged.errors import InvalidInput, Unsupported
from edged.logs.formats import TextLines
from edged.proto import open_inference_pb2 as pb
from edged.serving import trace_settings
from edged.serving.statistics import BatchDuration, Duration, ResponseDuration, Statistics
from edged.serving.trace import Tracing

_FILE = "file:"
_UNLOAD = "unload_dependents"


class ControlHandlers:
    """RepositoryIndex, RepositoryModelLoad, RepositoryModelUnload."""

    def __init__(self, controller: Controller) -> None:
        self._loader = controller.loader

    def register(self, service: Service) -> None:
        service.unary("RepositoryIndex", pb.RepositoryIndexRequest, self.index)
        service.unary("RepositoryModelLoad", pb.RepositoryModelLoadRequest, self.load)
        service.unary("RepositoryModelUnload", pb.RepositoryModelUnloadRequest, self.unload)

    async def index(self, request: pb.RepositoryIndexRequest, context: Context) -> pb.RepositoryIndexResponse:
        _require_the_repository(request.repository_name)
        rows = [row for row in await self._loader.listed() if row.state == READY or not request.ready]
        model = pb.RepositoryIndexResponse.ModelIndex
        return pb.RepositoryIndexResponse(
            models=[model(name=row.name, version=row.version, state=row.state, reason=row.reason) for row in rows]
        )

    async def load(self, request: pb.RepositoryModelLoadRequest, context: Context) -> pb.RepositoryModelLoadResponse:
        """Answers once the model can; see `Loader.load` for what it does not."""
        _require_the_repository(request.repository_name)
        config, files = overrides(request.parameters)
        await self._loader.load(request.model_name, config, files)
        return pb.RepositoryModelLoadResponse()

    async def unload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        """`unload_dependents` changes nothing: no model is made of others here."""
        _require_the_repository(request.repository_name)
        for name, parameter in request.parameters.items():
            if name != _UNLOAD:
                raise InvalidInput(f"to unload a model there is no parameter {name[:80]!r}, only {_UNLOAD}")
            _require(name, parameter, "bool_param")
        await self._loader.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()


def overrides(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> tuple[str | None, dict[str, bytes]]:
    """The configuration, None where there is none, and the files by path. InvalidInput for any other parameter."""
    config: str | None = None
    files: dict[str, bytes] = {}
    for name, parameter in parameters.items():
        if name == "config":
            _require(name, parameter, "string_param")
            config = parameter.string_param
        elif name.startswith(_FILE):
            _require(name, parameter, "bytes_param")
            files[name.removeprefix(_FILE)] = parameter.bytes_param
        else:
            raise InvalidInput(f"to load a model there is no parameter {name[:80]!r}, only config and file:PATH")
    return config, files


def _require(name: str, parameter: pb.ModelRepositoryParameter, kind: str) -> None:
    given = parameter.WhichOneof("parameter_choice")
    if given != kind:
        raise InvalidInput(f"parameter {name[:80]!r} comes as {kind}, not as {given or 'nothing'}")


def _require_the_repository(name: str) -> None:
    if name:
        raise Unsupported(f"there is one folder of models, which has no name; leave repository_name {name[:80]!r} away")


class StatisticsHandlers:
    """Tells statistics of one model or of all."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def register(self, service: Service) -> None:
        service.unary("ModelStatistics", pb.ModelStatisticsRequest, self.model_statistics)

    async def model_statistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        """Without a name those of every model, without a version those of every version. NotFound."""
        if request.name and request.version:
            models = [self._controller.find(request.name, request.version)]
        elif request.name:
            models = self._controller.catalogue.versions(self._controller.find(request.name).entry.model)
        else:
            models = [planned for _, planned in sorted(self._controller.models.items())]
        return pb.ModelStatisticsResponse(model_stats=[_of_model(planned) for planned in models])


def _of_model(planned: PlannedModel) -> pb.ModelStatistics:
    statistics = planned.slot.statistics
    return pb.ModelStatistics(
        name=planned.entry.model,
        version=planned.version,
        last_inference=statistics.last_inference_ms,
        inference_count=statistics.inference_count,
        execution_count=statistics.execution_count,
        inference_stats=_of_requests(statistics),
        batch_stats=[_of_batches(rows, batch) for rows, batch in sorted(statistics.batches.items())],
        response_stats={str(place): _of_responses(each) for place, each in sorted(statistics.responses.items())},
    )


def _of_requests(statistics: Statistics) -> pb.InferStatistics:
    return pb.InferStatistics(
        success=_duration(statistics.success),
        fail=_duration(statistics.fail),
        queue=_duration(statistics.queue),
        compute_input=_duration(statistics.compute_input),
        compute_infer=_duration(statistics.compute_infer),
        compute_output=_duration(statistics.compute_output),
        cache_hit=pb.StatisticDuration(),  # answers are not kept
        cache_miss=pb.StatisticDuration(),
    )


def _of_batches(rows: int, batch: BatchDuration) -> pb.InferBatchStatistics:
    return pb.InferBatchStatistics(
        batch_size=rows,
        compute_input=_duration(batch.compute_input),
        compute_infer=_duration(batch.compute_infer),
        compute_output=_duration(batch.compute_output),
    )


def _of_responses(response: ResponseDuration) -> pb.InferResponseStatistics:
    return pb.InferResponseStatistics(
        compute_infer=_duration(response.compute_infer),
        compute_output=_duration(response.compute_output),
        success=_duration(response.success),
        fail=pb.StatisticDuration(),  # a request fails as a whole, before its first response
        empty_response=_duration(response.empty),
        cancel=pb.StatisticDuration(),
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


class TraceHandlers:
    """Changes and tells trace settings."""

    def __init__(self, controller: Controller, tracing: Tracing) -> None:
        self._controller, self._tracing = controller, tracing

    def register(self, service: Service) -> None:
        service.unary("TraceSetting", pb.TraceSettingRequest, self.trace_setting)

    async def trace_setting(self, request: pb.TraceSettingRequest, context: Context) -> pb.TraceSettingResponse:
        """Answers with all settings as they hold now; without any in the request it only tells."""
        # Of all versions of a model, however it was named.
        model = self._controller.find(request.model_name).entry.model if request.model_name else ""
        if request.settings:
            self._tracing.change({name: list(value.value) for name, value in request.settings.items()}, model)
        told = trace_settings.shown(self._tracing.settings(model))
        values_of = {name: pb.TraceSettingResponse.SettingValue(value=texts) for name, texts in told.items()}
        return pb.TraceSettingResponse(settings=values_of)


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
