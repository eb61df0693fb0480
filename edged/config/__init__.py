"""The daemon's configuration: typed, frozen, from one TOML file, the environment and the command line.

`schema` says what there is. Everything else is made from it: what may be said where (`keys`, `environment`), what is
wrong with what was said and in which line (`checking`, `nearest`, `lines`), what is in force and why (`reading`,
`listing`), and the commented file that a box begins with (`template`).
"""

from edged.config.access import Access as Access
from edged.config.access import Tls as Tls
from edged.config.reading import Reading as Reading
from edged.config.reading import load as load
from edged.config.reading import read as read
from edged.config.schema import Config as Config
from edged.config.schema import Engines as Engines
from edged.config.schema import Frigate as Frigate
from edged.config.schema import Health as Health
from edged.config.schema import Http as Http
from edged.config.schema import Metrics as Metrics
from edged.config.schema import ModelControl as ModelControl
from edged.config.schema import Zmq as Zmq
