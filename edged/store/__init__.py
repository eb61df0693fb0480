"""The engine store: one directory per engine, no database. A damaged entry counts as a miss and is never an error."""
