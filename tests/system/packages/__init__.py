"""Packages built from the working tree, and systems to install them in."""


class Unavailable(Exception):
    """This machine cannot run the test; the message is a one-line reason."""
