"""One language model in the daemon: its files, its host, and the replacement of the host while the model serves."""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import msgspec

from edged import packages, tasks
from edged.backends.language import registry
from edged.backends.language.contract import Generation, Opening
from edged.backoff import Backoff
from edged.errors import (
    ConfigError,
    DeadlineExceeded,
    EdgedError,
    HostLost,
    ModelRefused,
    NotReady,
    OutOfMemory,
    Unsupported,
)
from edged.events import EngineServes, EventLog, ModelRead
from edged.events import HostLost as HostLostEvent
from edged.events import ModelRefused as ModelRefusedEvent
from edged.ipc import language_messages as m
from edged.language import proof
from edged.language.host import LanguageHost
from edged.language.proof import Figures, Proof, Proofs
from edged.language.turns import Turns
from edged.models import language
from edged.models.entries import ModelEntry
from edged.models.language import Form, LanguageFiles, LanguageSettings
from edged.serving import memory

_LOG = logging.getLogger("edged.language")
_PAUSES_S = (1.0, 5.0, 30.0, 120.0, 600.0)  # before the next try, after a failure that may be temporary
_HEALTHY_S = 60.0
_PATIENCE_S = 60.0  # how long a request waits for a host that is being started
_REPEATED = 2  # if a host could not be opened this many times in a row, requests do not wait for the next try
_PASSING = (HostLost, NotReady, OutOfMemory)
_SPARE_MB = 256  # of the box's memory that a new host must leave free
_LIMIT_SHARE, _LIMIT_MB = 1.5, 512  # a host's memory limit in MiB: 1.5 times the estimated memory, plus 512


class LanguageState(str, enum.Enum):
    LOADING = "loading"
    READY = "ready"
    REFUSED = "refused"


class Box(NamedTuple):
    """The parts of the daemon that all language models share. `facts` returns the facts of the device, `available_mb`
    the free memory in MiB. `changed` is called when a model changes its state.

    A model holds the lock `opening` from the check of the free memory until its host has opened the model. Otherwise
    two models could count on the same memory.
    """

    facts: Callable[[], Mapping[str, str]]
    proofs: Proofs
    events: EventLog
    available_mb: Callable[[], int]
    changed: Callable[[], None]
    opening: asyncio.Lock


class Counts(msgspec.Struct):
    """Numbers of requests and tokens of one model since the start of the daemon."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0


class _Wanted(NamedTuple):
    """Properties that the serving host must have. If these change, another host replaces it. `memory_mb` is the model's
    memory setting in MiB; 0 means that edged estimates the memory."""

    form: Form
    version: str
    digest: str
    how: Opening
    memory_mb: int


class PlannedLanguageModel:
    """A version of a language model that the daemon should serve."""

    def __init__(self, entry: ModelEntry, box: Box) -> None:
        self.entry, self._box = entry, box
        self.files: LanguageFiles | None = None
        self.settings = LanguageSettings()
        self.problem: EdgedError | None = None  # why the newest content or runtime cannot serve
        self.host: LanguageHost | None = None
        self.digest = ""
        self.figures: Figures | None = None
        self.choice = ""  # the speeds that decided which runtime serves; empty if only one can serve
        self.swaps = 0
        self.counts = Counts()
        self.turns = Turns(self.settings.requests, self.settings.waiting)
        self._serving: _Wanted | None = None
        self._digest_of = ""  # the stamp for which the digest was computed
        self._failures = 0  # how many times in a row a host could not be opened
        self._is_judged = False  # whether `problem` is about the newest content of the model, on the box as it is now
        self._is_stopped = False
        self._changed, self._moved = asyncio.Event(), asyncio.Event()
        self._draining: dict[asyncio.Task[None], LanguageHost] = {}
        self._task = tasks.keep(f"language model {entry.name}", self._live)

    @property
    def version(self) -> str:
        return self.entry.version

    @property
    def state(self) -> LanguageState:
        if self.host is not None and not self.host.lost:
            return LanguageState.READY
        is_refused = self.problem is not None and not isinstance(self.problem, HostLost)
        return LanguageState.REFUSED if is_refused else LanguageState.LOADING

    @property
    def is_up_to_date(self) -> bool:
        """Whether the model is served with its newest content."""
        return self._is_judged and self.problem is None and self.state is LanguageState.READY

    @property
    def is_refused(self) -> bool:
        """Whether the newest content cannot be served. The previous content may still serve."""
        is_repeated = not isinstance(self.problem, HostLost) or self._failures >= _REPEATED
        return self._is_judged and self.problem is not None and is_repeated

    @property
    def context(self) -> int:
        """The maximum number of tokens of a prompt and its answer together; 0 if unknown."""
        if self.host is not None and self.host.opened.context:
            return self.host.opened.context
        return self.files.limit(self.settings) if self.files is not None else 0

    def look(self, entry: ModelEntry | None = None) -> None:
        """Examine the model and the box again. `entry` is the model on disk now; None if it has not changed."""
        self.entry = entry or self.entry
        self._is_judged, self._failures = False, 0
        self._changed.set()

    async def until_read(self, seconds: float) -> None:
        """Wait until the files of the model are read or refused, at most for `seconds`."""
        end = time.monotonic() + seconds
        while self._digest_of != self.entry.stamp and self.problem is None and time.monotonic() < end:
            self._moved.clear()
            await tasks.until_set(self._moved, min(0.2, end - time.monotonic()))

    async def stop(self) -> None:
        """Stop the hosts, and refuse waiting requests."""
        self._is_stopped = True
        self._moved.set()
        self._task.cancel()
        self.turns.refuse(self._gone())
        await asyncio.gather(self._task, return_exceptions=True)
        hosts = [*self._draining.values(), *([self.host] if self.host is not None else [])]
        await asyncio.gather(*(host.stop() for host in hosts), *self._draining, return_exceptions=True)

    # -- requests ----------------------------------------------------------------------------------------------------

    async def generate(
        self, wanted: Generation, stop: tuple[str, ...] = (), client: str = "", *, is_low: bool = False
    ) -> AsyncGenerator[m.Text, None]:
        """Yield the parts of an answer; the last part has the `reason` for the end. If a text in `stop` occurs in the
        answer, the answer ends before this text. Clients take turns; `client` names the client of this request.

        If the host is lost before the first part, the request is tried once more. A request with guidance or pictures
        is not tried again, because these may have ended the host.

        Raises Overloaded, NotReady, DeadlineExceeded or HostLost. Raises InvalidInput if the host cannot generate an
        answer to the request.
        """
        # A task generates the answer. Without the task, a slow reader would keep its turn and escape the time limit.
        made: asyncio.Queue[m.Text | EdgedError | None] = asyncio.Queue()  # bounded by the tokens of an answer
        task = asyncio.ensure_future(self._make(wanted, stop, client, made, is_low=is_low))
        try:
            while (text := await made.get()) is not None:
                if isinstance(text, EdgedError):
                    raise text
                yield text
                if text.reason:
                    return
            await task  # raises an unexpected exception of the task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _make(
        self,
        wanted: Generation,
        stop: tuple[str, ...],
        client: str,
        made: asyncio.Queue[m.Text | EdgedError | None],
        *,
        is_low: bool,
    ) -> None:
        """Generate an answer: put its parts into `made`, then an error if it fails, then None."""
        end = time.monotonic() + self.settings.seconds
        self.counts.requests += 1
        try:
            async with self.turns.turn(client, self.entry.name, self.settings.seconds, is_low=is_low):
                is_last = bool(wanted.sampling.guidance or wanted.pictures)  # these may have ended the host
                while await self._try(wanted, stop, end, made, is_last=is_last):
                    is_last = True
        except EdgedError as error:
            self.counts.failed += 1
            made.put_nowait(error)
        finally:
            made.put_nowait(None)

    async def _try(
        self,
        wanted: Generation,
        stop: tuple[str, ...],
        end: float,
        made: asyncio.Queue[m.Text | EdgedError | None],
        *,
        is_last: bool,
    ) -> bool:
        """Generate an answer. Return True if the host was lost before the first text, so that another try is needed."""
        host, has_answered, counts = await self._ready_host(end), False, self.counts
        try:
            async with aclosing(host.generate(wanted, stop)) as texts:
                while True:
                    text = await self._before(end, texts)
                    has_answered = True
                    counts.tokens += text.tokens
                    made.put_nowait(text)
                    if text.reason:
                        counts.prompt_tokens += text.prompt_tokens
                        counts.cached_tokens += text.cached_tokens
                        return False
        except HostLost:
            if has_answered or is_last:
                raise
            return True

    async def _before(self, end: float, texts: AsyncGenerator[m.Text, None]) -> m.Text:
        try:
            return await tasks.at_most(max(0.001, end - time.monotonic()), anext(texts))
        except asyncio.TimeoutError:
            raise DeadlineExceeded(
                f"an answer of model {self.entry.name!r} took longer than {self.settings.seconds:g} s; ask for fewer"
                " tokens, or raise the model's setting 'limits.seconds'"
            ) from None

    async def _ready_host(self, end: float) -> LanguageHost:
        """Return the host. Wait for the host at most 60 s, and at most until `end` (monotonic seconds). Raises
        NotReady, or DeadlineExceeded at `end`."""
        patience = time.monotonic() + _PATIENCE_S
        while self.host is None or self.host.lost:
            if self._is_stopped:
                raise self._gone()
            if self.state is LanguageState.REFUSED:
                raise NotReady(f"model {self.entry.name!r} cannot be served: {self.problem}")
            why = f"is not ready: {self.problem}" if self.problem is not None else "is being loaded"
            now = time.monotonic()
            if now >= patience or self._failures >= _REPEATED:
                raise NotReady(f"model {self.entry.name!r} {why}; try again")
            if now >= end:
                raise DeadlineExceeded(
                    f"model {self.entry.name!r} {why}; the request waited for"
                    f" {self.settings.seconds:g} s; try again, or raise the model's setting 'limits.seconds'"
                )
            self._moved.clear()
            await tasks.until_set(self._moved, min(1.0, end - now, patience - now))
        return self.host

    def _gone(self) -> NotReady:
        return NotReady(f"model {self.entry.name!r} is no longer served")

    # -- the host ----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        """Keep a host with the wanted properties running, until this task is cancelled."""
        backoff = Backoff(_PAUSES_S, _HEALTHY_S)
        while True:
            self._changed.clear()
            pause = math.inf
            try:
                await self._turn()
                self.problem, self._failures = None, 0
            except EdgedError as error:
                self._failures += 1
                self._fail(error)
                pause = backoff.after(0.0) if _is_passing(error) else math.inf
            except (OSError, ValueError) as error:  # files that change while they are read
                self._fail(ModelRefused(f"the model cannot be read: {error}"))
                pause = backoff.after(0.0)
            self._is_judged = not self._changed.is_set()
            self._move()
            began = time.monotonic()
            if await self._until_lost(pause):
                self._lose()
                await tasks.until_set(self._changed, backoff.after(time.monotonic() - began))

    async def _until_lost(self, pause: float) -> bool:
        """Wait until `_changed` is set or the host ends, at most `pause` seconds. Return whether the host ended."""
        host = self.host
        waits = [asyncio.ensure_future(self._changed.wait())]
        if host is not None:
            waits.append(asyncio.ensure_future(host.ended.wait()))
        try:
            await asyncio.wait(waits, timeout=None if math.isinf(pause) else pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return host is not None and host.ended.is_set()

    async def _turn(self) -> None:
        """Read the model, and replace the host if it does not have the wanted properties. Raises EdgedError if that
        fails; the previous host then continues to serve, unless it was stopped to free memory."""
        entry = self.entry
        if entry.problem:
            raise ConfigError(entry.problem)
        settings = language.read_settings(entry.settings)
        path = Path(entry.path)
        files = await asyncio.to_thread(language.examine, path)
        self.files, self.settings = files, settings
        self.turns.most, self.turns.waiting = settings.requests, settings.waiting
        if self._digest_of != entry.stamp or not self.digest:
            self.digest, self._digest_of = await asyncio.to_thread(language.digest, path), entry.stamp
            self._box.events.emit(ModelRead(self.digest), entry.name)
        wanted = await self._choose(files, settings, self._usable(files, settings))
        if wanted == self._serving and self.host is not None and not self.host.lost:
            return
        known = await asyncio.to_thread(self._box.proofs.read, wanted.digest)
        host = await self._start(wanted, files, settings)
        try:
            known = await self._verify(host, wanted, settings, known)
        except BaseException:
            await host.stop()
            raise
        self._swap(host, wanted, known)

    def _usable(self, files: LanguageFiles, settings: LanguageSettings) -> dict[Form, str]:
        """Return the forms of the model that this box can open, each with the version of its runtime. A form is a
        runtime and the file that the runtime opens. Raises ConfigError if the settings do not fit the files, and
        Unsupported if no suitable runtime is installed."""
        language.check_fits(files, settings)
        facts = self._box.facts()
        found = {form: version for form in files.forms if (version := registry.version(form.runtime, facts))}
        if settings.runtime:
            found = {form: version for form, version in found.items() if form.runtime == settings.runtime}
        if not found:
            names = " or ".join(
                registry.TITLES[form.runtime] for form in files.forms if settings.runtime in ("", form.runtime)
            )
            raise Unsupported(
                f"the model needs {names}, but no such runtime is installed: {packages.install_extra('genai')}"
            )
        return found

    async def _choose(self, files: LanguageFiles, settings: LanguageSettings, usable: Mapping[Form, str]) -> _Wanted:
        """Return the properties of the host that should serve. If several forms are usable, measure the speeds that are
        not known, and choose the fastest form."""
        wanted = [
            _Wanted(form, version, self.digest, self._opening(form, files, settings), settings.memory_mb)
            for form, version in usable.items()
        ]
        self.choice = ""
        if len(wanted) == 1:
            return wanted[0]
        known, failure = await asyncio.to_thread(self._box.proofs.read, self.digest), None
        for each in list(wanted):
            runtime = each.form.runtime
            if known.measured.get(runtime) == _measured(each):
                continue
            try:
                figures = await self._measured(each, files, settings)
            except EdgedError as error:  # another runtime may open the model
                _LOG.warning("model %s: %s is not used: %s", self.entry.name, registry.TITLES[runtime], error)
                wanted.remove(each)
                failure = error
                continue
            known = msgspec.structs.replace(
                known,
                figures={**known.figures, runtime: figures},
                measured={**known.measured, runtime: _measured(each)},
            )
            self._box.proofs.write(self.digest, known)
        if not wanted and failure is not None:
            raise failure
        figures_of = {each.form.runtime: known.figures[each.form.runtime] for each in wanted}
        fastest = proof.faster(figures_of)
        self.choice = "; ".join(
            f"{registry.TITLES[name]}: {each.first_s * 1e3:.0f} ms to the first token, {each.tokens_per_s:.0f} tokens/s"
            for name, each in figures_of.items()
        )
        return next(each for each in wanted if each.form.runtime == fastest)

    async def _measured(self, wanted: _Wanted, files: LanguageFiles, settings: LanguageSettings) -> Figures:
        """Measure the speed of a runtime in a temporary host."""
        host = await self._start(wanted, files, settings)
        try:
            return await proof.measure(host)
        finally:
            await host.stop()

    @staticmethod
    def _opening(form: Form, files: LanguageFiles, settings: LanguageSettings) -> Opening:
        threads = settings.threads or max(1, (os.cpu_count() or 1) - 1)  # one CPU is left for cameras
        return Opening(form.path, threads, files.limit(settings), settings.requests)

    async def _start(self, wanted: _Wanted, files: LanguageFiles, settings: LanguageSettings) -> LanguageHost:
        """Start a host. If the box has too little memory for two hosts, stop the serving host first. Raises
        OutOfMemory if the memory does not suffice for one host."""
        needed = wanted.memory_mb or files.needed_mb(settings)
        limit = wanted.memory_mb or round(needed * _LIMIT_SHARE) + _LIMIT_MB
        reads = tuple(str(each) for each in await asyncio.to_thread(language.files, Path(wanted.form.path)))
        folders = tuple(dict.fromkeys((*reads, *(os.path.realpath(each) for each in reads))))
        if not language.is_gguf(wanted.form.path):
            folders = (str(Path(wanted.form.path).parent), *folders)
        while True:
            async with self._box.opening:
                before = self._taken_away(needed, files, settings)
                if before is None:
                    return await LanguageHost.start(
                        wanted.form, wanted.version, wanted.how, folders, limit, self.entry.name
                    )
            # The lock is released: requests of this host may take long, and other models can open hosts meanwhile.
            try:
                await before.drain()
            finally:
                await before.stop()

    def _taken_away(self, needed: int, files: LanguageFiles, settings: LanguageSettings) -> LanguageHost | None:
        """Remove and return the serving host if it must stop before another host starts. Return None if there is memory
        for another host. Raises OutOfMemory if there is too little memory even without the serving host."""
        available, serving = self._box.available_mb(), self.host
        held = round(memory.used_mb(serving.pid)) if serving is not None else 0
        if available and needed + _SPARE_MB > available + held:
            raise OutOfMemory(
                f"the model needs about {needed} MiB of memory, but only {available + held} MiB are free; lower the"
                f" model's setting {language.CONTEXT!r} (now {files.limit(settings)}) or {language.REQUESTS!r} (now"
                f" {settings.requests}), or free memory"
            )
        if serving is not None and needed + _SPARE_MB > available:
            _LOG.warning(
                "model %s: %d MiB are free, but a second host needs about %d MiB; the serving host is stopped first",
                *(self.entry.name, available, needed),
            )
            self.host = self._serving = None
            return serving
        return None

    async def _verify(self, host: LanguageHost, wanted: _Wanted, settings: LanguageSettings, known: Proof) -> Proof:
        """Compare the host's answers with those of the runtime's previous version, measure the host's speed, and return
        the updated proof. If the version has not changed, return `known`. Raises EngineUnusable if the answers
        differ."""
        runtime, name = wanted.form.runtime, self.entry.name
        before = known.versions.get(runtime, "")
        if before == wanted.version and runtime in known.answers:
            await proof.ask(host, "Hello", 2)  # the first answer is slower
            return known
        now = await proof.answers(host)
        if before and settings.verifies:
            proof.require_equal(known.answers.get(runtime, ()), now, before, wanted.version)
            _LOG.info("model %s: version %s of %s answers as version %s", name, wanted.version, runtime, before)
        figures = await proof.measure(host)
        known = msgspec.structs.replace(
            known,
            versions={**known.versions, runtime: wanted.version},
            answers={**known.answers, runtime: now},
            figures={**known.figures, runtime: figures},
            measured={**known.measured, runtime: _measured(wanted)},
        )
        self._box.proofs.write(wanted.digest, known)
        return known

    def _swap(self, host: LanguageHost, wanted: _Wanted, known: Proof) -> None:
        """Send new requests to `host`. The previous host finishes its requests and stops."""
        before, self.host, self._serving = self.host, host, wanted
        self.figures = known.figures.get(wanted.form.runtime)
        name, title = self.entry.name, registry.TITLES[wanted.form.runtime]
        _LOG.info("model %s: %s %s serves, opened in %.1f s", name, title, wanted.version, host.opened.seconds)
        self._box.events.emit(EngineServes(wanted.form.runtime), name)
        if before is not None:
            self.swaps += 1
            task = asyncio.get_running_loop().create_task(before.drain())
            self._draining[task] = before
            task.add_done_callback(self._draining.pop)

    def _fail(self, error: EdgedError) -> None:
        is_new = self.problem is None or str(self.problem) != str(error)
        self.problem = error
        if not is_new:
            return
        continues = "; the previous version continues to serve" if self.state is LanguageState.READY else ""
        _LOG.warning("model %s cannot be served: %s%s", self.entry.name, error, continues)
        self._box.events.emit(ModelRefusedEvent(str(error)), self.entry.name)

    def _lose(self) -> None:
        """Remove a host that has ended, and report the loss."""
        host, self.host, self._serving = self.host, None, None
        if host is None:
            return
        self.problem = HostLost(f"the model's host {host.lost}; edged starts a new host")
        _LOG.warning("model %s: the host (pid %d) %s; edged starts a new host", self.entry.name, host.pid, host.lost)
        self._box.events.emit(HostLostEvent(host.form.runtime, host.lost), self.entry.name)
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._box.changed()


def _measured(wanted: _Wanted) -> str:
    """Return the runtime's version and the threads: the speed of a model depends on both."""
    return f"{wanted.version} {wanted.how.threads}"


def _is_passing(error: EdgedError) -> bool:
    """Whether a failure may be temporary, so that a retry can succeed although neither the model nor the box has
    changed. A file that exists but could not be read is such a failure."""
    is_unread = isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError)
    return isinstance(error, _PASSING) or is_unread
