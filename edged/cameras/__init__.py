"""The daemon's part of configured cameras: which exist, and the processes that run them (`edged.capture`)."""
