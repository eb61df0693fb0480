"""The report on one engine for people: one HTML page without scripts and without other files. Pure."""
