"""The daemon's process: start, stop, reload, and what it owes to systemd."""
