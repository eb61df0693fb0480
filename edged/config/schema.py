"""Everything that can be configured: names, types, ranges, defaults and meanings, said once and nowhere else.

The commented file, the reference in docs/configuration.md, the names in the environment and the words of every error
are made from it. A field says in its `Meta` what it means, with its unit; a table says so in its docstring. What has no
default to show, or an empty one, has an example. Keys come before tables, as TOML wants it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edged.config.access import Access, Tls
from edged.config.limits import AdmissionLimits, HostLimits, Limits
from edged.confinement.rules import Mode
from edged.logs.output import LogOptions

ModelControl: TypeAlias = Literal["poll", "none", "explicit"]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Engines(_Strict, frozen=True):
    """How engines live: space, drivers, alarms."""

    build: Annotated[
        Literal["auto", "command"],
        Meta(
            description='When engines that are missing are built: "auto", as soon as the box can; "command", only when'
            " edged engines rebuild says so, and until then the best that is there serves."
        ),
    ] = "auto"
    on_driver_change: Annotated[
        Literal["verify", "rebuild"],
        Meta(
            description="What becomes of an engine when only a driver, or the processor's model, changed and all else"
            ' of its key is equal: "verify" tries it in a child and keeps it if its answers are right, "rebuild" never'
            " does."
        ),
    ] = "verify"
    budget_mb: Annotated[
        int, Meta(ge=0, le=1 << 30, description="Mebibytes that all engines may take; 0 for no limit.")
    ] = 0
    keep_free_mb: Annotated[int, Meta(ge=0, le=1 << 30, description="Mebibytes that stay free on the disk.")] = 200
    attempts: Annotated[
        int, Meta(ge=1, le=1000, description="Failures in a row after which an engine is no longer tried by itself.")
    ] = 4
    regression_factor: Annotated[
        float,
        Meta(
            gt=1,
            le=1e6,
            description="An alarm is raised when inference takes that many times as long as when the engine was"
            " measured, for regression_seconds.",
        ),
    ] = 3.0
    regression_seconds: Annotated[
        float, Meta(gt=0, le=1e6, description="How long inference must be that slow for an alarm, in seconds.")
    ] = 30.0


class Health(_Strict, frozen=True):
    """When a model counts as ready."""

    probe_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="An engine that has had nothing to do for so many seconds is asked something; 0 for never.",
        ),
    ] = 30.0
    probe_failures: Annotated[
        int,
        Meta(ge=1, le=1000, description="Probes in a row that must fail until a model is not ready any more."),
    ] = 3
    strict_readiness: Annotated[
        bool, Meta(description="Whether the server is ready only while every model is that can be served.")
    ] = True


class Frigate(_Strict, frozen=True):
    """What Frigate's ZMQ detector connects to; the table, even an empty one, opens it."""

    endpoint: Annotated[
        str, Meta(description="ipc:///PATH, or tcp://HOST:PORT on this machine; elsewhere only with allow_remote.")
    ] = "ipc:///tmp/cache/zmq_detector"
    allow_remote: Annotated[
        bool,
        Meta(
            description="Whether endpoint may be an address that other machines reach, for a container's bridge. See to"
            " it that nothing else reaches it."
        ),
    ] = False
    model: Annotated[
        str,
        Meta(
            description="Which model serves; empty for the one that is called as Frigate's file, or else the only one.",
            examples=["yolov9-t"],
        ),
    ] = ""
    uploads: Annotated[bool, Meta(description="Whether Frigate may send a model that is not there.")] = False
    score: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Overrides the model's own threshold, which holds where this is not set.", examples=[0.4]),
    ] = None
    timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=60000,
            description="Milliseconds after which nothing found is answered; below Frigate's own request_timeout_ms,"
            " which is 200.",
        ),
    ] = 150
    pixel_format: Annotated[Literal["rgb", "bgr"], Meta(description="Frigate's input_pixel_format.")] = "rgb"
    labels: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 24,
            description="How many labels there are in Frigate's label map; 0 for as many as the model has names.",
        ),
    ] = 0


class Zmq(_Strict, frozen=True):
    """Lanes over ZeroMQ."""

    frames: Annotated[
        str,
        Meta(
            description="Where frames come in and results go back: ipc:///PATH, or tcp://HOST:PORT on this machine;"
            " empty for nowhere.",
            examples=["ipc:///run/edged/frames"],
        ),
    ] = ""
    publish: Annotated[
        str,
        Meta(
            description="Where results and events are sent to subscribers: ipc:///PATH, or tcp://HOST:PORT on this"
            " machine; empty for nowhere.",
            examples=["ipc:///run/edged/results"],
        ),
    ] = ""


class Http(_Strict, frozen=True):
    """The Open Inference Protocol over HTTP."""

    listen: Annotated[
        str,
        Meta(
            description="HOST:PORT on this machine's loopback, or unix:PATH; empty for nowhere.",
            examples=["localhost:8000"],
        ),
    ] = ""
    body_mb: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Mebibytes that the body of a request may have; all together hold four times as much at most.",
        ),
    ] = 64


class Metrics(_Strict, frozen=True):
    """Where Prometheus scrapes."""

    listen: Annotated[
        str,
        Meta(
            description="HOST:PORT on this machine's loopback, or unix:PATH; empty for nowhere.",
            examples=["localhost:9301"],
        ),
    ] = ""


class Config(_Strict, frozen=True):
    """Everything that can be configured."""

    listen: Annotated[
        tuple[str, ...],
        Meta(
            description="Where gRPC answers: unix:PATH, or HOST:PORT, beyond this machine only with [tls]; empty for"
            " the default sockets, for frames and for operators.",
            examples=[["unix:/run/edged/edged.sock", "unix:/run/edged/operate.sock", "localhost:8001"]],
        ),
    ] = ()
    state: Annotated[
        str,
        Meta(description="Directory for models; empty for the default, the service's own.", examples=["/data/edged"]),
    ] = ""
    cache: Annotated[
        str,
        Meta(
            description="Directory for engines; empty for the default, the service's own.",
            examples=["/data/edged-engines"],
        ),
    ] = ""
    model_control: Annotated[
        ModelControl,
        Meta(
            description='Which models of the directory are served: "poll" all, as they come and go; "none" all that are'
            ' there at the start; "explicit" those that are loaded by command.'
        ),
    ] = "poll"
    startup_models: Annotated[
        tuple[str, ...],
        Meta(
            description='The models that model_control = "explicit" begins with; "*" is all.',
            examples=[["door", "yard"]],
        ),
    ] = ()
    max_message_mb: Annotated[
        int,
        Meta(
            ge=1,
            le=2047,
            description="Mebibytes that a gRPC message to the daemon may have: a raw picture of 4K has 25.",
        ),
    ] = 32
    allow_shared_memory_over_tcp: Annotated[
        bool,
        Meta(
            description="Whether clients of Triton on this machine that come by TCP may register system shared memory;"
            " those on a unix socket may."
        ),
    ] = False
    confinement: Annotated[
        Mode,
        Meta(
            description="What keeps engine hosts, builds and the tracker from files, network and processes that are not"
            ' theirs: "on" all that the kernel can do, "enforce" nothing starts on a kernel that cannot do all, "off"'
            " nothing."
        ),
    ] = "on"
    stop_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="How long running calls may take to end when the daemon stops, in seconds."),
    ] = 5.0
    models: Annotated[
        dict[str, str],
        Meta(
            description="Model files that are served where they lie, by name.",
            examples=[{"door": "/srv/models/door.onnx"}],
        ),
    ] = {}
    engines: Engines = Engines()
    admission: AdmissionLimits = AdmissionLimits()
    build: Limits = Limits()
    hosts: HostLimits = HostLimits()
    health: Health = Health()
    frigate: Frigate | None = None
    zmq: Zmq = Zmq()
    http: Http = Http()
    metrics: Metrics = Metrics()
    tls: Tls = Tls()
    access: Access = Access()
    log: LogOptions = LogOptions()

    def __post_init__(self) -> None:
        if self.startup_models and self.model_control != "explicit":
            raise ValueError('startup_models goes with model_control = "explicit"; other modes begin with every model')
