"""The gRPC services and other endpoints that clients call. Each request becomes a job for an engine, and each result
becomes a response."""
