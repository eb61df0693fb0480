"""The calls that register shared memory: the system's, and CUDA's, which a device of this kind does not have."""

from __future__ import annotations

from edged.api.grpc.rpc import Context, Service
from edged.api.inference.access import Access
from edged.errors import Unsupported
from edged.proto import open_inference_pb2 as pb


class SharedMemoryHandlers:
    """Registers, tells and forgets regions."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def register(self, service: Service) -> None:
        service.unary("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest, self.status)
        service.unary("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest, self.register_region)
        service.unary("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest, self.unregister)
        service.unary("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest, self.cuda_status)
        service.unary("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest, self.cuda_register)
        service.unary("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest, self.cuda_unregister)

    async def status(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Context
    ) -> pb.SystemSharedMemoryStatusResponse:
        """One region, or with an empty name all of the client's. NotFound, Refused."""
        response = pb.SystemSharedMemoryStatusResponse()
        for region in self._access.regions(context.peer).listed(request.name):
            told = response.regions[region.name]
            told.name, told.key, told.offset, told.byte_size = region.name, region.key, region.offset, region.size
        return response

    async def register_region(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Context
    ) -> pb.SystemSharedMemoryRegisterResponse:
        """AlreadyExists, InvalidInput, Overloaded, Refused."""
        self._access.register(context.peer, request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def unregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        """One region, or with an empty name all of the client's; a region that does not exist is no error. Refused."""
        self._access.regions(context.peer).unregister(request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def cuda_status(
        self, request: pb.CudaSharedMemoryStatusRequest, context: Context
    ) -> pb.CudaSharedMemoryStatusResponse:
        return pb.CudaSharedMemoryStatusResponse()

    async def cuda_register(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Context
    ) -> pb.CudaSharedMemoryRegisterResponse:
        raise Unsupported("memory of a GPU cannot be shared between processes here; register system shared memory")

    async def cuda_unregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """There is none to forget: clients ask before and after, whichever memory they use."""
        return pb.CudaSharedMemoryUnregisterResponse()
