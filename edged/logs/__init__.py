"""The daemon's log: lines for people, JSON for programs, entries for the journal; and the output of child processes."""

from edged.logs.output import LogOptions as LogOptions
from edged.logs.output import reconfigure as reconfigure
from edged.logs.output import start as start
