"""ModelStatistics: what each model's engines have done since the model was loaded."""

from __future__ import annotations

from edged.api.grpc.rpc import Context, Service
from edged.engines.controller import Controller
from edged.engines.plan import PlannedModel
from edged.proto import open_inference_pb2 as pb
from edged.serving.statistics import BatchDuration, Duration, ResponseDuration, Statistics


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
