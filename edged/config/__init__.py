"""The daemon's configuration: typed, frozen, from one TOML file, the environment and a few options of `edged serve`.

`schema` describes every key, and other modules use this description. `keys` lists the tables and their keys. `checking`
finds mistakes. `reading` determines the values in force, and where each value was set. `template` writes the commented
file and listings. `changes` finds what a reload changes.
"""

from edged.config.reading import Reading as Reading
from edged.config.reading import load as load
from edged.config.reading import read as read
from edged.config.schema import Access as Access
from edged.config.schema import Config as Config
from edged.config.schema import Drift as Drift
from edged.config.schema import Engines as Engines
from edged.config.schema import Families as Families
from edged.config.schema import Fleet as Fleet
from edged.config.schema import Frigate as Frigate
from edged.config.schema import Health as Health
from edged.config.schema import Http as Http
from edged.config.schema import Metrics as Metrics
from edged.config.schema import ModelControl as ModelControl
from edged.config.schema import Page as Page
from edged.config.schema import Tls as Tls
from edged.config.schema import Zmq as Zmq
from edged.config.tables import Collect as Collect
from edged.config.tables import Describe as Describe
from edged.config.tables import Frames as Frames
from edged.config.tables import Pipeline as Pipeline
