"""The Open Inference Protocol over HTTP: requests in JSON for the handlers of the gRPC services."""
