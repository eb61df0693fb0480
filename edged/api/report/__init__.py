"""The report on one engine, for people to read. It is one HTML page without scripts, and needs no other files. Pure."""
