"""A grpc.aio server with one method, which returns its request unparsed. Prints its address.

python -m tests.bench.empty_server SOCKET
"""

from __future__ import annotations

import asyncio
import sys

import grpc
import grpc.aio


async def _same(request: bytes, context: object) -> bytes:
    return request


async def main(address: str) -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    methods = {"Same": grpc.unary_unary_rpc_method_handler(_same)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Empty", methods)])
    server.add_insecure_port(address)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
