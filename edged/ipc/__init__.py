"""What crosses a process boundary: message types, framing, shared memory."""
