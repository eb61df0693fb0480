"""The engines this box owns: a directory per engine, no database. A bad entry is a counted miss, never an error."""
