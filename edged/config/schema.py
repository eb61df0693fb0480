"""Every key of the configuration: name, type, range, default, meaning, and what a reload does with it.

Everything else, except the few options of `edged serve`, is derived from this module: the commented file, the reference
in docs/configuration.md, the names of environment variables, error messages, and what a reload changes. The `Meta` of a
field gives its meaning and unit; the docstring of a table is its description. A key with an empty default has an
example. Keys come before tables, as in TOML. A field annotated with a `Reload` changes as a whole, with all keys in it.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edged.config.cameras import Camera
from edged.config.child_limits import AdmissionLimits, HostLimits, Limits
from edged.config.tables import Describe, Frames, Pipeline, Table, check_names, check_pipelines
from edged.confinement.rules import Mode
from edged.logs.output import LogOptions

ModelControl: TypeAlias = Literal["poll", "none", "explicit"]
Role: TypeAlias = Literal["read", "infer", "operate"]
Roles: TypeAlias = tuple[Role, ...]

_Count: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 30)]
_Mebibytes: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 30)]
_Positive: TypeAlias = Annotated[float, Meta(gt=0, le=1e6)]


class Reload(enum.Enum):
    """When a reload applies a changed key. docs/service.md describes what a reload does for each key."""

    NOW = "at once"
    NEXT_CALL = "next call"
    NEXT_CONNECTION = "next connection"
    NEXT_PROCESS = "next process"  # hosts and children that start later
    REOPEN = "reopened"  # a listener or endpoint
    # The key names folders, or a change would unload models that clients loaded, or would end every running call.
    RESTART = "restart"


class Engines(Table, frozen=True):
    """When engines are built, how much disk space they may use, and when alarms are raised."""

    build: Annotated[
        Literal["auto", "command"],
        Meta(
            description='When missing engines are built. "auto": as soon as the box can; "command": only by edged'
            " engines rebuild, and until then the best existing engine serves."
        ),
    ] = "auto"
    on_driver_change: Annotated[
        Literal["verify", "rebuild"],
        Meta(
            description="What happens to an engine if only a driver or the processor's model changed."
            ' "verify": it is tested in a child and stays if its answers are right; "rebuild": it is built again.'
        ),
    ] = "verify"
    budget_mb: Annotated[_Mebibytes, Meta(description="Space for all engines, in MiB; 0 is no limit.")] = 0
    keep_free_mb: Annotated[_Mebibytes, Meta(description="Space on the disk that stays free, in MiB.")] = 200
    attempts: Annotated[
        int, Meta(ge=1, le=1000, description="Failures in a row after which an engine is tried again only on command.")
    ] = 4
    regression_factor: Annotated[
        float,
        Meta(
            gt=1,
            le=1e6,
            description="Raise an alarm if inference takes this many times its best time since the model was loaded.",
        ),
    ] = 3.0
    regression_seconds: Annotated[
        _Positive, Meta(description="How long inference must be slower than regression_factor allows, in seconds.")
    ] = 30.0


class Health(Table, frozen=True):
    """When a model counts as ready, and when an engine counts as faulty."""

    probe_seconds: Annotated[
        float, Meta(ge=0, le=86400, description="Probe an engine that was idle for this many seconds; 0 is never.")
    ] = 30.0
    probe_failures: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Failed probes in a row after which an engine counts as faulty. After three failed requests in"
            " a row, one failed probe is enough.",
        ),
    ] = 3
    strict_readiness: Annotated[
        bool, Meta(description="Whether the server is only ready while every servable model is ready.")
    ] = True


_Interval: TypeAlias = Annotated[float, Meta(ge=0, le=604_800)]


class Drift(Table, frozen=True):
    """Checks of live answers. Now and then the reference also answers a frame, and the two answers are compared
    (docs/drift.md)."""

    every_seconds: Annotated[_Interval, Meta(description="Seconds between two checks of a model; 0 is never.")] = 0.0
    models: Annotated[
        dict[str, _Interval],
        Meta(description="Seconds between two checks, by model.", examples=[{"door": 120.0}]),
    ] = msgspec.field(default_factory=dict)
    cpu_percent: Annotated[
        float,
        Meta(
            gt=0,
            le=100,
            description="Most processor time for the checks of a model, in percent of one processor. A model whose"
            " reference is slow is checked less often.",
        ),
    ] = 1.0
    busy_percent: Annotated[
        float,
        Meta(
            gt=0,
            le=100,
            description="No check starts while more than this percentage of the processors is in use. 100 for a box"
            " that is always busy: checks have the lowest priority.",
        ),
    ] = 90.0
    learn_hours: Annotated[
        float,
        Meta(
            gt=0,
            le=720,
            description="For how many hours a camera is seen before a change of its pictures raises an alarm. With less"
            " than a day, its first dusk may raise one.",
        ),
    ] = 24.0
    kept_mb: Annotated[
        int, Meta(ge=0, le=1024, description="Space for frames that raised an alarm, for each model, in MiB.")
    ] = 16
    kept_days: Annotated[
        float, Meta(gt=0, le=3650, description="For how many days frames that raised an alarm are kept.")
    ] = 30.0

    def interval(self, model: str) -> float:
        """Return the seconds between two checks of a model; 0 for none."""
        return self.models.get(model, self.every_seconds)


class Fleet(Table, frozen=True):
    """Engines that equal boxes share, so that each engine is built only once (docs/fleet.md)."""

    store: Annotated[
        str,
        Meta(
            description="Where engines are shared: s3://, gs:// or az://BUCKET/FOLDER, https://HOST/FOLDER, or"
            " file:///FOLDER; empty for nowhere. Needs the extra fleet.",
            examples=["s3://engines/jetson"],
        ),
    ] = ""
    publish: Annotated[
        bool,
        Meta(description="Whether this box publishes the engines that it builds; edged fleet keygen makes its key."),
    ] = False
    wait_minutes: Annotated[
        float,
        Meta(
            ge=0,
            le=10_080,
            description="How long this box waits for an engine that another box builds, before this box builds the"
            " engine itself.",
        ),
    ] = 90.0


class Families(Table, frozen=True):
    """Model families of other Python packages (docs/third-party-families.md)."""

    allow: Annotated[
        tuple[str, ...],
        Meta(
            description="Families whose code may run in engine hosts and in the children that examine models; edged"
            " family list shows the installed ones.",
            examples=[["my-detector"]],
        ),
    ] = ()


class Frigate(Table, frozen=True):
    """The endpoint for Frigate's ZMQ detector. It is open if this table exists, even if the table is empty."""

    endpoint: Annotated[
        str, Meta(description="ipc:///PATH, or tcp://HOST:PORT on this machine; other hosts need allow_remote.")
    ] = "ipc:///tmp/cache/zmq_detector"
    allow_remote: Annotated[
        bool,
        Meta(
            description="Whether endpoint may be an address that other machines can reach, such as that of a"
            " container's bridge. It has no access control: make sure that only Frigate reaches it."
        ),
    ] = False
    model: Annotated[
        str,
        Meta(
            description="The model for Frigate; empty: the model with the name of Frigate's file, or the only model.",
            examples=["yolov9-t"],
        ),
    ] = ""
    uploads: Annotated[bool, Meta(description="Whether Frigate may send a model that does not exist here.")] = False
    score: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Score threshold in place of the model's own.", examples=[0.4]),
    ] = None
    timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=60000,
            description="Milliseconds after which Frigate gets an answer without detections; must be below Frigate's"
            " own request_timeout_ms, which is 200 by default.",
        ),
    ] = 150
    pixel_format: Annotated[Literal["rgb", "bgr"], Meta(description="Frigate's input_pixel_format.")] = "rgb"
    labels: Annotated[
        int,
        Meta(ge=0, le=1 << 24, description="Size of Frigate's label map; 0: as many labels as the model has names."),
    ] = 0


class Zmq(Table, frozen=True):
    """Endpoints over ZeroMQ."""

    frames: Annotated[
        str,
        Meta(
            description="Receives frames and returns results: ipc:///PATH, or tcp://HOST:PORT on this machine; empty"
            " for none.",
            examples=["ipc:///run/edged/frames"],
        ),
        Reload.REOPEN,
    ] = ""
    publish: Annotated[
        str,
        Meta(
            description="Sends results and events to subscribers: ipc:///PATH, or tcp://HOST:PORT on this machine;"
            " empty for none.",
            examples=["ipc:///run/edged/results"],
        ),
        Reload.REOPEN,
    ] = ""


_LOOPBACK = (
    "unix:PATH, or HOST:PORT on this machine's loopback; any other address must also be in access.unencrypted. Empty"
    " for none."
)


class Http(Table, frozen=True):
    """HTTP: the Open Inference Protocol, detection in pictures, and OpenAI's protocol for language models."""

    listen: Annotated[str, Meta(description=_LOOPBACK, examples=["localhost:8000"])] = ""
    body_mb: Annotated[
        int,
        Meta(ge=1, le=1024, description="Largest body of a request, in MiB; four times that for all bodies together."),
    ] = 64


class Page(Table, frozen=True):
    """The page that shows the box in a browser."""

    listen: Annotated[
        str,
        Meta(
            description="HOST:PORT. An address that other machines can reach needs [tls], and browsers sign in there"
            " with a token. Empty for none.",
            examples=["localhost:8080"],
        ),
    ] = ""


class Metrics(Table, frozen=True):
    """The endpoint that Prometheus scrapes."""

    listen: Annotated[str, Meta(description=_LOOPBACK, examples=["localhost:9301"])] = ""


class Tls(Table, frozen=True):
    """Encryption of TCP; files are read again when they change."""

    certificate: Annotated[
        str,
        Meta(
            description="PEM file of the certificate and its chain; empty for no TLS. Then only loopback addresses and"
            " those in access.unencrypted are allowed.",
            examples=["/etc/edged/tls/box.pem"],
        ),
    ] = ""
    key: Annotated[str, Meta(description="PEM file of the certificate's key.", examples=["/etc/edged/tls/box.key"])] = (
        ""
    )
    client_ca: Annotated[
        str,
        Meta(
            description="PEM file of the authorities that sign clients' certificates; empty if clients need none.",
            examples=["/etc/edged/tls/clients.pem"],
        ),
    ] = ""
    without_client_certificate: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses of listen that need no client certificate, such as for clients with tokens.",
            examples=[["0.0.0.0:8002"]],
        ),
    ] = ()
    on_loopback: Annotated[bool, Meta(description="Whether loopback addresses use TLS too.")] = True

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("tls.certificate and tls.key go together; give both or neither")
        if self.client_ca and not self.certificate:
            raise ValueError("tls.client_ca needs tls.certificate and tls.key; give all three")


class Access(Table, frozen=True):
    """The permissions of clients. The roles are "infer", "read" and "operate" (docs/security.md)."""

    unix: Annotated[
        Roles, Meta(description="Roles of clients on the default socket; the operator socket has all roles.")
    ] = ("infer", "read")
    loopback: Annotated[
        Roles,
        Meta(
            description="Roles of clients that use loopback without TLS: every user of this machine, and every"
            " container in its network. Operators use the socket or a token."
        ),
    ] = ("infer", "read")
    grants: Annotated[
        dict[str, Roles],
        Meta(
            description="Roles by address of listen, http.listen or page.listen. They replace unix and loopback.",
            examples=[{"localhost:8001": ["infer"]}],
        ),
    ] = msgspec.field(default_factory=dict)
    unencrypted: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses of listen, http.listen or metrics.listen that other machines may reach without TLS."
            " Only for a network that is protected in another way, such as that of a pod. Their clients are granted"
            " infer and read, or what grants says.",
            examples=[["0.0.0.0:8001"]],
        ),
    ] = ()
    certificates: Annotated[
        dict[str, Roles],
        Meta(
            description="Roles by a name in the client's certificate: its common name or an alternative one.",
            examples=[{"frigate.lan": ["infer", "read"]}],
        ),
    ] = msgspec.field(default_factory=dict)
    tokens_file: Annotated[
        str,
        Meta(
            description="File of tokens, written by `edged tokens`; empty for access/tokens.json in the state"
            " directory.",
            examples=["/etc/edged/tokens.json"],
        ),
    ] = ""
    client_streams: Annotated[_Count, Meta(description="Streams of one client at a time.")] = 1024
    client_requests: Annotated[_Count, Meta(description="Requests of one client at a time.")] = 4096
    client_mb: Annotated[_Count, Meta(description="Size of one client's running requests, in MiB.")] = 512
    client_per_second: Annotated[
        _Count, Meta(description="Requests and frames of one client per second, which is also the largest burst.")
    ] = 50_000
    audit_mb: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Space for the audit log in the state directory, in MiB.")
    ] = 16
    foreign_files: Annotated[
        Literal["refuse", "accept"],
        Meta(description="What to do with models and engines that another user owns or any user may write."),
    ] = "refuse"


class Config(Table, frozen=True):
    """The whole configuration."""

    listen: Annotated[
        tuple[str, ...],
        Meta(
            description="Addresses of gRPC: unix:PATH or HOST:PORT. An address that other machines can reach needs"
            " [tls]. Empty for the default sockets: one for all clients, one for operators.",
            examples=[["unix:/run/edged/edged.sock", "unix:/run/edged/operate.sock", "localhost:8001"]],
        ),
        Reload.REOPEN,
    ] = ()
    state: Annotated[
        str,
        Meta(description="Directory for models, tokens and frames; empty for the default.", examples=["/data/edged"]),
        Reload.RESTART,
    ] = ""
    cache: Annotated[
        str,
        Meta(description="Directory for engines; empty for the default.", examples=["/data/edged-engines"]),
        Reload.RESTART,
    ] = ""
    model_control: Annotated[
        ModelControl,
        Meta(
            description='Which models of the directory are served. "poll": all, and it is watched for changes;'
            ' "none": all that exist at the start; "explicit": those that a command loads.'
        ),
        Reload.RESTART,
    ] = "poll"
    startup_models: Annotated[
        tuple[str, ...],
        Meta(
            description='Models to load at the start with model_control = "explicit"; "*" is all.',
            examples=[["door", "yard"]],
        ),
        Reload.RESTART,
    ] = ()
    max_message_mb: Annotated[
        int,
        Meta(ge=1, le=1500, description="Largest gRPC message to the daemon, in MiB; a raw 4K picture has 24 MiB."),
        Reload.RESTART,
    ] = 32
    allow_shared_memory_over_tcp: Annotated[
        bool,
        Meta(
            description="Whether Triton clients on this machine may register system shared memory over TCP; over a"
            " unix socket they always may."
        ),
        Reload.NOW,
    ] = False
    confinement: Annotated[
        Mode,
        Meta(
            description="Keeps engine hosts, builds and the tracker from files, network and processes that are not"
            ' theirs. "on": as far as the kernel supports it; "enforce": nothing starts unless the kernel supports all'
            ' of it; "off": not at all.'
        ),
        Reload.RESTART,
    ] = "on"
    stop_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="How long running calls may continue when the daemon stops, in seconds."),
        Reload.NOW,
    ] = 5.0
    models: Annotated[
        dict[str, str],
        Meta(
            description="Model files by name, served from where they are. A folder may have the file, or versions in"
            " Triton's layout; it need not be writable. A reference (docs/references.md) is fetched when the daemon"
            " starts, unless it is kept on this box.",
            examples=[{"door": "/srv/models/door.onnx"}],
        ),
        Reload.NOW,
    ] = msgspec.field(default_factory=dict)
    engines: Annotated[Engines, Reload.NOW] = Engines()
    admission: Annotated[AdmissionLimits, Reload.NEXT_PROCESS] = AdmissionLimits()
    build: Annotated[Limits, Reload.NEXT_PROCESS] = Limits()
    hosts: Annotated[HostLimits, Reload.NEXT_PROCESS] = HostLimits()
    health: Annotated[Health, Reload.NOW] = Health()
    drift: Annotated[Drift, Reload.NOW] = Drift()
    families: Annotated[Families, Reload.NOW] = Families()
    fleet: Annotated[Fleet, Reload.NOW] = Fleet()
    frigate: Annotated[Frigate | None, Reload.REOPEN] = None
    zmq: Zmq = Zmq()
    http: Annotated[Http, Reload.REOPEN] = Http()
    page: Annotated[Page, Reload.REOPEN] = Page()
    metrics: Annotated[Metrics, Reload.REOPEN] = Metrics()
    tls: Annotated[Tls, Reload.NEXT_CONNECTION] = Tls()
    access: Annotated[Access, Reload.NEXT_CALL] = Access()
    log: Annotated[LogOptions, Reload.NOW] = LogOptions()
    frames: Annotated[Frames, Reload.NOW] = Frames()
    pipelines: Annotated[dict[str, Pipeline], Reload.NOW] = msgspec.field(default_factory=dict)
    describe: Annotated[dict[str, Describe], Reload.NOW] = msgspec.field(default_factory=dict)
    cameras: Annotated[dict[str, Camera], Reload.NOW] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.startup_models and self.model_control != "explicit":
            raise ValueError('startup_models needs model_control = "explicit"; other modes load every model')
        check_names("cameras", self.cameras)
        check_pipelines(self.pipelines)
        check_names("describe", self.describe)
