"""The engines' part of edged.v1.Operations: lists, explanations and commands."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from edged.api.grpc.rpc import Context, Service
from edged.engines import report
from edged.engines.commands import Ordered, Selection
from edged.engines.controller import Controller
from edged.message_mapper import to_message
from edged.proto import operations_pb2 as pb


class EngineHandlers:
    """Passes commands to `Commands` and streams their progress."""

    def __init__(self, controller: Controller) -> None:
        self._controller, self._commands = controller, controller.commands

    def register(self, service: Service) -> None:
        """Adds the methods to the service."""
        service.unary("ListEngines", pb.ListEnginesRequest, self.list_engines)
        service.unary("ExplainEngine", pb.ExplainEngineRequest, self.explain_engine)
        service.feed("Rebuild", pb.RebuildRequest, self.rebuild)
        service.feed("Verify", pb.VerifyRequest, self.verify)
        service.unary("Cancel", pb.SelectEngines, self.cancel)
        service.unary("Pin", pb.SelectEngines, self.pin)
        service.unary("Unpin", pb.SelectEngines, self.unpin)
        service.unary("Evict", pb.SelectEngines, self.evict)

    async def list_engines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesResponse:
        if request.model:
            self._controller.find(request.model)
        found = report.engines(
            self._controller.models,
            self._controller.store,
            request.model,
            by_command=self._controller.settings.build == "command",
        )
        return pb.ListEnginesResponse(engines=[to_message(engine, pb.Engine) for engine in found])

    async def explain_engine(self, request: pb.ExplainEngineRequest, context: Context) -> pb.ExplainEngineResponse:
        planned = self._controller.find(request.model)
        found = report.explain(planned, self._controller.store)
        return pb.ExplainEngineResponse(explanations=[to_message(item, pb.Explanation) for item in found])

    async def rebuild(self, request: pb.RebuildRequest, context: Context) -> AsyncIterator[pb.EngineProgress]:
        ordered = self._commands.rebuild(_selection(request.selector), request.force)
        async with aclosing(self._progress(ordered, request.follow)) as updates:
            async for progress in updates:
                yield progress

    async def verify(self, request: pb.VerifyRequest, context: Context) -> AsyncIterator[pb.EngineProgress]:
        ordered = self._commands.verify(_selection(request.selector))
        async with aclosing(self._progress(ordered, request.follow)) as updates:
            async for progress in updates:
                yield progress

    async def cancel(self, request: pb.SelectEngines, context: Context) -> pb.SelectedEngines:
        return pb.SelectedEngines(keys=self._commands.cancel(_selection(request.selector)))

    async def pin(self, request: pb.SelectEngines, context: Context) -> pb.SelectedEngines:
        return pb.SelectedEngines(keys=await self._commands.pin(_selection(request.selector)))

    async def unpin(self, request: pb.SelectEngines, context: Context) -> pb.SelectedEngines:
        return pb.SelectedEngines(keys=await self._commands.unpin(_selection(request.selector)))

    async def evict(self, request: pb.SelectEngines, context: Context) -> pb.SelectedEngines:
        return pb.SelectedEngines(keys=await self._commands.evict(_selection(request.selector)))

    async def _progress(self, ordered: tuple[Ordered, ...], follow: bool) -> AsyncGenerator[pb.EngineProgress, None]:
        """Yield every engine once, then, with `follow`, every change until all have their outcome.

        A client that ends its call ends this generator only; the work goes on.
        """
        unreported = {(each.model, each.key) for each in ordered}
        async with aclosing(self._commands.follow(ordered)) as statuses:
            async for status in statuses:
                yield to_message(status, pb.EngineProgress)
                unreported.discard((status.model, status.key))
                if not unreported and not follow:
                    return


def _selection(selector: pb.Selector) -> Selection:
    """Read a selector."""
    return Selection(model=selector.model, engine=selector.engine, everything=selector.everything)
