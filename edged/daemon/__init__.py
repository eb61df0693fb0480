"""The daemon's process: start, stop, reload, and notifications to systemd."""
