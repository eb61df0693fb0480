"""grpc.reflection.v1alpha: which services and messages there are, for grpcurl and its like.

gRPC's own servicer answers. It is registered as every other service is, so that bytes that are no message are their
sender's fault here too: gRPC would answer UNKNOWN and log a traceback for each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from edged.api.grpc.rpc import Context, Service
from edged.proto import POOL


def reflection_service(names: Iterable[str]) -> Service:
    """Describes the services of these names, and itself."""
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        POOL.AddSerializedFile(file.serialized_pb)  # of gRPC's packages, which register them in the default pool
    servicer = reflection.aio.ReflectionServicer([*names, reflection.SERVICE_NAME], POOL)

    def answer(
        requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        told: AsyncIterator[reflection_pb2.ServerReflectionResponse] = servicer.ServerReflectionInfo(requests, context)
        return told

    service = Service(reflection.SERVICE_NAME)
    service.duplex("ServerReflectionInfo", reflection_pb2.ServerReflectionRequest, answer)
    return service
