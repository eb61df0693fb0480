"""HTTP/2 as gRPC uses it, on asyncio: connections, their streams as calls, and their limits."""
