"""The daemon's log, as text lines, JSON or journal entries, and the output of child processes."""

from edged.logs.output import LogOptions as LogOptions
from edged.logs.output import reconfigure as reconfigure
from edged.logs.output import start as start
