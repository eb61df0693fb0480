"""The command line: runs the command that the arguments name, and sets the exit status."""
