"""The extensions for operators: model_repository, statistics, trace and logging."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from edged.api.grpc.rpc import Context
from edged.engines.controller import Controller
from edged.engines.ensembles import PlannedEnsemble
from edged.engines.loader import READY
from edged.engines.plan import PlannedModel
from edged.errors import InvalidInput, Unsupported
from edged.language.model import PlannedLanguageModel
from edged.logs.formats import TextLines
from edged.proto import open_inference_pb2 as pb
from edged.serving import trace
from edged.serving.statistics import Duration
from edged.serving.trace import Tracing

_FILE = "file:"
_UNLOAD = "unload_dependents"


class AdministrationHandlers:
    """Answers calls about the repository, the statistics and the trace settings of the models in a controller."""

    def __init__(self, controller: Controller, tracing: Tracing) -> None:
        self._controller, self._tracing = controller, tracing

    async def repository_index(
        self, request: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        _require_the_repository(request.repository_name)
        rows = [row for row in await self._controller.loader.listed() if row.state == READY or not request.ready]
        model = pb.RepositoryIndexResponse.ModelIndex
        return pb.RepositoryIndexResponse(
            models=[model(name=row.name, version=row.version, state=row.state, reason=row.reason) for row in rows]
        )

    async def repository_model_load(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        """Load a model, and answer once the model is ready; `Loader.load` describes the errors."""
        _require_the_repository(request.repository_name)
        config, files = overrides(request.parameters)
        await self._controller.loader.load(request.model_name, config, files)
        return pb.RepositoryModelLoadResponse()

    async def repository_model_unload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        """Unload a model or ensemble. With `unload_dependents`, also unload the models that were loaded only for this
        ensemble."""
        _require_the_repository(request.repository_name)
        has_parts = False
        for name, parameter in request.parameters.items():
            if name != _UNLOAD:
                raise InvalidInput(f"unknown parameter {name[:80]!r} for unloading a model; use only {_UNLOAD}")
            _require(name, parameter, "bool_param")
            has_parts = parameter.bool_param
        await self._controller.loader.unload(request.model_name, with_parts=has_parts)
        return pb.RepositoryModelUnloadResponse()

    async def model_statistics(
        self, request: pb.ModelStatisticsRequest, context: Context
    ) -> pb.ModelStatisticsResponse:
        """Return the statistics of a version; without a version, of all versions; without a name, of all models.

        Raises NotFound.
        """
        controller, models = self._controller, list[PlannedModel | PlannedEnsemble]()
        chats = [] if request.name else list(controller.language.models.values())
        if request.name and (found := controller.language.find(request.name, request.version)) is not None:
            return pb.ModelStatisticsResponse(model_stats=[_language_statistics(found)])
        if request.name and request.version:
            models.append(controller.find_any(request.name, request.version))
        elif request.name:
            name = controller.find_any(request.name).entry.model
            models += controller.catalogue.versions(name) or controller.catalogue.ensembles_of(name)
        else:
            models = controller.served()
        rows = [*map(_statistics, models), *map(_language_statistics, chats)]
        return pb.ModelStatisticsResponse(model_stats=rows)

    async def trace_setting(self, request: pb.TraceSettingRequest, context: Context) -> pb.TraceSettingResponse:
        """Change the settings in the request, if any, and return all settings."""
        # All versions of a model share its settings.
        model = self._controller.find_any(request.model_name).entry.model if request.model_name else ""
        if request.settings:
            self._tracing.change({name: list(value.value) for name, value in request.settings.items()}, model)
        response = pb.TraceSettingResponse()
        for name, texts in trace.shown(self._tracing.settings(model)).items():
            response.settings[name].value.extend(texts)
        return response


def overrides(parameters: Mapping[str, pb.ModelRepositoryParameter]) -> tuple[str | None, dict[str, bytes]]:
    """Return the configuration (None if absent) and the files by path, from the parameters of loading a model. Raises
    InvalidInput for other parameters."""
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
            raise InvalidInput(f"unknown parameter {name[:80]!r} for loading a model; use only config and file:PATH")
    return config, files


def _require(name: str, parameter: pb.ModelRepositoryParameter, kind: str) -> None:
    given = parameter.WhichOneof("parameter_choice")
    if given is None:
        raise InvalidInput(f"parameter {name[:80]!r} has no value; set its {kind}")
    if given != kind:
        raise InvalidInput(f"parameter {name[:80]!r} must be a {kind}, not a {given}")


def _require_the_repository(name: str) -> None:
    if name:
        raise Unsupported(f"edged has only one repository, which has no name; leave out repository_name {name[:80]!r}")


def _language_statistics(planned: PlannedLanguageModel) -> pb.ModelStatistics:
    """Return the numbers of answered and of failed requests of a language model."""
    counts = planned.counts
    message = pb.ModelStatistics(name=planned.entry.model, version=planned.version)
    message.inference_count = message.execution_count = counts.requests - counts.failed
    message.inference_stats.success.count = counts.requests - counts.failed
    message.inference_stats.fail.count = counts.failed
    return message


def _statistics(planned: PlannedModel | PlannedEnsemble) -> pb.ModelStatistics:
    found = planned.statistics if isinstance(planned, PlannedEnsemble) else planned.slot.statistics
    message = pb.ModelStatistics(
        name=planned.entry.model,
        version=planned.version,
        last_inference=found.last_inference_ms,
        inference_count=found.inference_count,
        execution_count=found.execution_count,
        inference_stats=pb.InferStatistics(
            **_durations(found, "success", "fail", "queue", *_COMPUTE),
            cache_hit=pb.StatisticDuration(),  # answers are not cached
            cache_miss=pb.StatisticDuration(),
        ),
    )
    for rows, batch in sorted(found.batches.items()):
        message.batch_stats.add(batch_size=rows, **_durations(batch, *_COMPUTE))
    for place, response in sorted(found.responses.items()):
        message.response_stats[str(place)].MergeFrom(
            pb.InferResponseStatistics(
                **_durations(response, "compute_infer", "compute_output", "success"),
                empty_response=_duration(response.empty),
                fail=pb.StatisticDuration(),  # if a request fails, it fails before its first response
                cancel=pb.StatisticDuration(),
            )
        )
    return message


_COMPUTE = ("compute_input", "compute_infer", "compute_output")


def _durations(found: object, *names: str) -> dict[str, pb.StatisticDuration]:
    """Return the durations in `found` with these names, as fields of a message."""
    return {name: _duration(getattr(found, name)) for name in names}


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)


Value: TypeAlias = bool | int | str

_OURS = "edged"
_ISO = "ISO8601"
_FORMATS = ("default", _ISO)


# The field that carries a value on the wire, and the allowed values in words.
_KINDS: dict[type[Value], tuple[str, str]] = {
    bool: ("bool_param", "true or false"),
    int: ("uint32_param", "a number"),
    str: ("string_param", f"one of {', '.join(_FORMATS)}"),
}


class LogSettings(msgspec.Struct, frozen=True):
    """Settings of the log, named as on the wire. With `log_verbose_level` 1, the daemon also logs every call; with 2,
    also the debug messages of libraries."""

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"

    def admits(self, level: int) -> bool:
        """Whether a record of `level` is written. Critical records are always written."""
        if level >= logging.CRITICAL:
            return True
        if level >= logging.ERROR:
            return self.log_error
        if level >= logging.WARNING:
            return self.log_warning
        return self.log_info if level >= logging.INFO else self.log_verbose_level > 0


class LogHandlers:
    """Applies the log settings of clients to the loggers of this process. One per process."""

    def __init__(self) -> None:
        self._settings = LogSettings()
        self._before: dict[logging.Handler, logging.Formatter | None] = {}
        self._levels: dict[str, int] = {}

    async def log_settings(self, request: pb.LogSettingsRequest, context: Context) -> pb.LogSettingsResponse:
        """Change the given settings, and return all. If a given setting is invalid, change none and raise
        InvalidInput."""
        if request.settings:
            self._settings = changed(self._settings, {name: _value(value) for name, value in request.settings.items()})
            self._apply()
        response = pb.LogSettingsResponse()
        for name, value in msgspec.structs.asdict(self._settings).items():
            kind, _ = _KINDS[type(value)]
            setattr(response.settings[name], kind, value)
        return response

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record; a filter for `logging`."""
        return self._settings.admits(record.levelno)

    def again(self) -> None:
        """Apply the settings of clients once more, because the configuration of the log changed."""
        self._levels.clear()
        self._apply()

    def _apply(self) -> None:
        for handler in logging.getLogger().handlers:
            handler.addFilter(self.filter)  # no effect if it was added before
            if not isinstance(handler.formatter, _Iso):
                self._before[handler] = handler.formatter
            handler.setFormatter(_Iso() if self._settings.log_format == _ISO else self._before.get(handler))
        for name, needed in ((_OURS, 1), ("", 2)):
            logger = logging.getLogger(name)
            usual = self._levels.setdefault(name, logger.level)
            logger.setLevel(logging.DEBUG if self._settings.log_verbose_level >= needed else usual)


def changed(settings: LogSettings, values: dict[str, Value | None]) -> LogSettings:
    """Return a copy of `settings` with these new values. The keys of `values` are the protocol's names of the settings.
    Raises InvalidInput."""
    known = msgspec.structs.asdict(settings)
    for name, value in values.items():
        if name not in known:
            raise InvalidInput(f"log setting {name[:40]!r} does not exist; known settings: {', '.join(known)}")
        if name == "log_file" and value != "":
            raise InvalidInput("clients cannot set 'log_file'; redirect the daemon's standard error instead")
        kind, allowed = _KINDS[type(known[name])]
        if type(value) is not type(known[name]) or (name == "log_format" and value not in _FORMATS):
            raise InvalidInput(f"log setting {name!r} must be {allowed}, sent as {kind}")
    return msgspec.structs.replace(settings, **values)


def _value(value: pb.LogSettingsRequest.SettingValue) -> Value | None:
    kind = value.WhichOneof("parameter_choice")
    found: Value | None = getattr(value, kind) if kind else None
    return found


class _Iso(TextLines):
    """Formats lines with the time in UTC, to the millisecond, for programs that read logs."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"
