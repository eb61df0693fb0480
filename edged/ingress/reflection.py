"""grpc.reflection.v1alpha: which services and messages there are, for grpcurl and its like.

gRPC's own servicer answers. It is registered as every other service is, so that bytes that are no message are their
sender's fault here too: gRPC would answer UNKNOWN and log a traceback for each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from grpc_reflection.v1alpha import reflection, reflection_pb2

from edged.ingress.rpc import Context, Service


def reflection_service(names: Iterable[str]) -> Service:
    """Tells of the services of these names, and of itself."""
    servicer = reflection.aio.ReflectionServicer([*names, reflection.SERVICE_NAME])

    def answer(
        requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        told: AsyncIterator[reflection_pb2.ServerReflectionResponse] = servicer.ServerReflectionInfo(requests, context)
        return told

    service = Service(reflection.SERVICE_NAME)
    service.duplex("ServerReflectionInfo", reflection_pb2.ServerReflectionRequest, answer)
    return service
