"""A box of its own with a real systemd: namespaces, and the files of this machine copied on write."""


class Unavailable(Exception):
    """Why there can be no such box on this machine, in one line."""
