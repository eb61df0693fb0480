"""Endurance: a daemon under everything that happens to one in a year, and whether it grows."""
