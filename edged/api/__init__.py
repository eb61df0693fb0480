"""What clients call: gRPC services and other endpoints. They turn messages into work, and answers into messages."""
