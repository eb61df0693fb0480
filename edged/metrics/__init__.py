"""What Prometheus scrapes: one list of metrics, one collector for each room, and where they are read."""
