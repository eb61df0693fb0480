"""Messages between edged's processes, their framing, and shared memory."""
