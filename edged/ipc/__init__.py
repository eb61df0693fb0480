"""Messages between processes, their framing, and shared memory."""
