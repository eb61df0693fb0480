"""Packages of the working tree, and systems to install them in."""


class Unavailable(Exception):
    """Why this machine cannot do it, in one line."""
