"""The report on one engine, for people to read. One HTML page without scripts and other files. Pure."""
