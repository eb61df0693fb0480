"""A box with its own systemd: namespaces, and a copy-on-write view of this machine's files."""


class Unavailable(Exception):
    """This machine cannot run such a box; the message is a one-line reason."""
