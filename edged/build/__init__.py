"""Making engines: one-shot children inspect, build, verify and time them; nothing they do can harm the daemon."""
