"""How answers are compared and judged. Pure; used by the daemon and by jobs."""
