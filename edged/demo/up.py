"""`edged up`: serves a model to a camera, and starts a daemon if none runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from edged import config as configuration
from edged import formatting, paths
from edged.api.auth import tokens
from edged.api.auth.guard import tokens_path
from edged.api.auth.policy import parse_roles
from edged.api_types import CameraInfo, ModelInfo, StatusInfo
from edged.client import AsyncClient
from edged.client.upload import Package
from edged.config import Config
from edged.demo.daemon_process import DaemonProcess, free_port, running
from edged.demo.life import Life, Story
from edged.errors import DaemonUnavailable, EdgedError, InvalidInput, NotFound, redact
from edged.models.identity import model_digest
from edged.shapes import MODEL_PATH

SCENE = "scene:7"
_EMBEDDED = "shapes"
_TOKEN = "up"  # noqa: S105 (the token's name)
_LOOK_S = 1.0
_CALL_S = 60.0


@dataclass(frozen=True)
class Plan:
    """The user's arguments. `model` is a file or the name of a model of the daemon; empty means the embedded model. An
    empty `source` means a drawn scene. If `name` is empty, the camera is named after its source. `settings` apply only
    to a new model."""

    model: str = ""
    source: str = ""
    name: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def camera(self) -> str:
        return self.name or camera_name(self.source or SCENE)


@dataclass
class Output:
    """Prints progress. `say` prints a permanent line. `show` replaces the status line. `page` is called once, with the
    address of the page. `has_started` is set after a daemon was started."""

    say: Callable[[str], None]
    show: Callable[[str], None]
    page: Callable[[str], None]
    has_started: bool = False


async def up(plan: Plan, output: Output) -> None:
    """Serve the model to the camera, and report progress until cancelled. At the end, stop the daemon if this call
    started it. The model, its engines and the camera are kept. Raises EdgedError if the start fails or the model cannot
    be served."""
    source = absolute(plan.source) or SCENE
    if plan.model and not Path(plan.model).is_file() and _looks_like_file(plan.model):
        raise InvalidInput(f"model file {plan.model!r} does not exist")
    async with _daemon(output) as (address, token), AsyncClient(address, timeout=_CALL_S) as client:
        model = await _add_model(client, plan, output)
        await _add_camera(client, plan.camera, source, model, output)
        status = await client.status()
        if status.page:
            output.page(status.page + (f"/#token={token}" if token else ""))
        else:
            output.say("page     off; to use it, set 'listen' of [page] in the daemon's configuration (docs/page.md)")
        await _report(client, model, plan.camera, output)


def camera_name(source: str) -> str:
    """Return a camera's name from its source: the host of a URL, the stem of a file, or the device. Pure."""
    url = urlsplit(source)
    if url.netloc:
        found = url.hostname or url.scheme
    elif ":" in source and not source.startswith("/"):
        found = source.partition(":")[0]
    else:
        found = Path(source).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", found).strip("-._")[:64] or "camera"


def model_name(file: Path) -> str:
    """Return a model's name from its file. Pure."""
    return re.sub(r"[^A-Za-z0-9._+@-]+", "-", file.stem).strip("-._+@")[:128] or "model"


def absolute(source: str) -> str:
    """Return a source that the daemon can open: make a path absolute, and return other sources unchanged."""
    is_path = source and (source.startswith(("/", ".", "~")) or os.path.exists(source))
    return str(Path(source).expanduser().absolute()) if is_path else source


def camera_line(camera: CameraInfo) -> str:
    """Describe a camera's current state in one line. Pure."""
    if camera.state != "streaming":
        return f"{camera.camera} is {camera.state}" + (f": {camera.reason}" if camera.reason else "")
    age = "" if camera.age_p50_ms is None else f", {camera.age_p50_ms:.0f} ms after capture"
    return f"{camera.camera}: {camera.fps_answered:.1f} of {camera.fps_in:.1f} frames a second answered{age}"


def now_line(camera: CameraInfo | None, status: StatusInfo) -> str:
    """Describe the camera's state and the engine that is being built. Pure."""
    made = [
        f"{each.backend}: {formatting.far(each.phase, each.fraction, each.elapsed_s, each.estimate_s)}"
        for each in status.building[:1]
    ]
    return "; ".join([*([camera_line(camera)] if camera else []), *made])


def _looks_like_file(model: str) -> bool:
    return "/" in model or model.lower().endswith(".onnx")


@contextlib.asynccontextmanager
async def _daemon(output: Output) -> AsyncIterator[tuple[str, str]]:
    """Yield the address of this user's daemon, and a token for its page. If no daemon runs, start a daemon. If a daemon
    already runs, the token is empty."""
    address = f"unix:{paths.client_socket()}"
    if await _answers(address):
        output.say("daemon   already running; it is used")
        yield address, ""
        return
    file = paths.default_config()
    settings = configuration.read(file if file and file.exists() else None, dict(os.environ)).required()
    state = (Path(settings.state) if settings.state else paths.default_state_dir()).absolute()
    environment = dict(os.environ)
    if not settings.page.listen:
        environment["EDGED_PAGE_LISTEN"] = f"localhost:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="edged-up-", ignore_cleanup_errors=True) as folder:
        output.show("starting a daemon")
        async with running(DaemonProcess(address, (), Path(folder), environment)):
            output.has_started = True
            output.say("daemon   started for you; it runs until Ctrl-C")
            with _token(settings, state) as token:
                yield f"unix:{paths.client_socket()}", token


async def _answers(address: str) -> bool:
    try:
        async with AsyncClient(address, timeout=_CALL_S) as client:
            await client.status()
    except DaemonUnavailable:
        return False
    return True


@contextlib.contextmanager
def _token(settings: Config, state: Path) -> Iterator[str]:
    """Yield a token for the page, with the roles `read` and `operate`. Revoke the token at the end."""
    file = tokens.TokenFile(tokens_path(settings.access, state))
    token, secret = tokens.make(_TOKEN, parse_roles(["read", "operate"]), days=1)
    with contextlib.suppress(NotFound):  # left by a run that was killed
        file.revoke(_TOKEN)
    file.add(token)
    try:
        yield secret
    finally:
        with contextlib.suppress(NotFound):
            file.revoke(_TOKEN)


async def _add_model(client: AsyncClient, plan: Plan, output: Output) -> str:
    """Add the model if it is new; return its name."""
    wanted = plan.model
    known = {model.name: model for model in await client.models()}
    while any(not model.digest and model.state == "loading" for model in known.values()):
        output.show("reading the models of this box")
        await asyncio.sleep(_LOOK_S / 10)
        known = {model.name: model for model in await client.models()}
    if wanted in known and not _looks_like_file(wanted):
        return wanted
    file = Path(wanted) if wanted else MODEL_PATH
    if not file.is_file():
        names = ", ".join(sorted(known)) or "none"
        raise InvalidInput(
            f"{wanted!r} is neither a file nor a model of this box; the models of this box: {names};"
            " if it is a camera, make it the second argument: edged up MODEL SOURCE"
        )
    name = model_name(file) if wanted else _EMBEDDED
    package = await asyncio.to_thread(Package.of, name, file, plan.settings)
    if name in known:
        digest = await asyncio.to_thread(model_digest, file, [relative for relative, _ in package.files[1:]])
        if known[name].digest != digest:
            how = f"edged models add {name} {file} --replace"
            raise InvalidInput(f"this box has a different model named {name}; to replace that model: {how}")
        output.say(f"model    {name}, which this box already has")
        return name
    output.show(f"examining {file.name}")
    output.say(f"model    {name}: {_described(await client.upload(package))}")
    return name


def _described(model: ModelInfo) -> str:
    inputs = ", ".join(f"{'x'.join(map(str, each.shape))}" for each in model.inputs)
    return f"{model.family or 'tensors in, tensors out'}, input {inputs}"


async def _add_camera(client: AsyncClient, name: str, source: str, model: str, output: Output) -> None:
    there = next((each for each in await client.cameras() if each.configured and each.camera == name), None)
    changes = {"source": source, "model": model}
    if there is None:
        await client.add_camera(name, changes)
    elif (there.source, there.model) != (redact(source), model):
        await client.set_camera(name, changes)
    output.say(f"camera   {name}: {redact(source)}")


async def _report(client: AsyncClient, model: str, camera: str, output: Output) -> None:
    """Report progress until cancelled. Raises EdgedError if the model cannot be served."""
    began, before, life = time.monotonic(), Life(), Life()
    story, told, is_told = None, "", False
    while True:
        models, engines, cameras, status = await asyncio.gather(
            client.models(), client.engines(model), client.cameras(), client.status()
        )
        now = time.monotonic() - began
        found = next((each for each in models if each.name == model), None)
        if found is not None and found.state in ("refused", "failed"):
            raise EdgedError(f"model {model} cannot be served: {found.reason}")
        if story is None:
            before.look(found, engines, now)
            is_new = all(each.created_unix_s <= 0 for each in engines)
            story = Story(life, None if is_new else before)
        life.look(found, engines, now)
        seen = next((each for each in cameras if each.configured and each.camera == camera), None)
        if seen is not None and seen.fps_answered and life.serving is not None:
            life.answer(life.serving.key, now)
        for line in story.new_lines(now):
            output.say(f"{_since(line.at_s)}  {line.text}")
        if seen is not None and (state := f"{seen.state}{seen.reason}") != told:
            told = state
            output.say(f"{_since(now)}  camera {camera_line(seen)}")
        if life.is_settled(now) and not is_told:
            is_told = True
            output.say(f"{_since(now)}  the fastest engine serves; nothing is left to build")
        output.show(now_line(seen, status))
        await asyncio.sleep(_LOOK_S)


def _since(seconds: float) -> str:
    return f"{int(seconds) // 60:4d}:{int(seconds) % 60:02d}"
