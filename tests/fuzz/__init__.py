"""What no client should send: structured nonsense for every call, and bytes that are no protocol at all."""
