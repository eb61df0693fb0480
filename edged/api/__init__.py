"""The gRPC services and other endpoints that clients call. They convert requests to work for engines, and results to
responses."""
