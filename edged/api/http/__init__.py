"""The Open Inference Protocol over HTTP, for people with curl: the gRPC services' handlers, asked in JSON."""
