"""Endpoints other than gRPC: ZeroMQ, Frigate, shared memory, published results."""
