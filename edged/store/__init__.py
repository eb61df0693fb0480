"""The engine store: one directory per engine, no database. A damaged entry counts as missing and is never an error."""
