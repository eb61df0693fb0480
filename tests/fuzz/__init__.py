"""Invalid input of every kind: structured nonsense for every call, and bytes that follow no protocol."""
