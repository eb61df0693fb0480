"""The one place that says which edged this is."""

__version__ = "0.1.0"
