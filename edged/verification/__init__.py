"""Compares and judges the answers of engines. Pure; used by the daemon and by jobs."""
