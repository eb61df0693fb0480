"""The tracker's process: the only one that imports the tracking library."""
