"""TraceSetting: what is traced of requests, for all models or for one."""

from __future__ import annotations

from edged.api.grpc.rpc import Context, Service
from edged.engines.controller import Controller
from edged.proto import open_inference_pb2 as pb
from edged.serving import trace_settings
from edged.serving.trace import Tracing


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
