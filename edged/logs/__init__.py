"""What the daemon says, in the way that whoever hears it understands: lines for people, JSON for programs, the journal.

options.py     what the configuration says of it
fields.py      what a record is about: model, engine, camera, event, child
formats.py     a record as a line of text, of JSON, or with systemd's priority
journal.py     a record as an entry of the journal, with fields to search by
repetition.py  what is said again and again is said once a second, with how often. Pure
output.py      the one handler that all of it ends in
overheard.py   what children print, as log lines of their name
setup.py       makes the process's loggers so, and changes them
"""

from edged.logs.output import LogOptions as LogOptions
from edged.logs.output import heed as heed
from edged.logs.output import start as start
