"""gRPC: listeners, the guard of every call, and the services of edged.v1 and grpc.health."""
