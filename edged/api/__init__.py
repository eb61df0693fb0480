"""The daemon's edge: gRPC services that turn messages into work and answers into messages."""
