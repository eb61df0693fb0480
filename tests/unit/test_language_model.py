"""Language models in real hosts: answers, batches, cancelling, crashes, limits, and the change to another runtime."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from edged.backends.language.contract import Generation, Sampling
from edged.backends.language.registry import NAMES
from edged.engines import alarms
from edged.errors import DeadlineExceeded, EngineUnusable, HostLost, InvalidInput, NotReady, Overloaded
from edged.events import EventLog
from edged.language import proof
from edged.language.describe import Describer
from edged.language.host import LanguageHost
from edged.language.model import Box, LanguageState, PlannedLanguageModel
from edged.language.models import LanguageModels
from edged.language.proof import Proof, Proofs
from edged.models import language
from edged.models.entries import ModelEntry, stamp
from edged.models.language import LanguageSettings
from edged.store import sealed
from edged.tasks import TaskGroup
from tests.tiny_language import ANSWER, write_genai, write_gguf

pytest.importorskip("onnxruntime_genai", reason="ONNX Runtime GenAI has no wheel for this Python")
pytestmark = pytest.mark.timeout(120)

_GENAI, _OPENVINO = NAMES
_GB = 1 << 10


class World:
    """A box with one language model."""

    def __init__(self, folder: Path, cache: Path, **settings: str) -> None:
        self.facts = {"runtime.onnxruntime_genai": "0.18.0", "runtime.openvino_genai": "2026.4.1.0"}
        self.available_mb = 64 * _GB
        self.events = EventLog()
        self.proofs = Proofs(cache, sealed.at_once)
        self.folder, self.settings = folder, {key.replace("__", "."): value for key, value in settings.items()}
        self.box = Box(
            lambda: self.facts, self.proofs, self.events, lambda: self.available_mb, lambda: None, asyncio.Lock()
        )
        self.model = PlannedLanguageModel(self.entry(), self.box)

    def entry(self, **changes: Any) -> ModelEntry:
        names = sorted(os.listdir(self.folder))
        main = next((name for name in names if name == "genai_config.json"), names[0])
        path = self.folder / main
        marks = stamp(self.folder / name for name in names)
        return ModelEntry("chat", "1", str(path), {**self.settings, **changes}, marks)

    async def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        for _ in range(int(seconds / 0.02)):
            if holds():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{self.model.state}: {self.model.problem}")

    async def ready(self) -> None:
        await self.until(lambda: self.model.state is LanguageState.READY)

    async def ask(self, question: str, stop: tuple[str, ...] = (), **options: Any) -> str:
        text = ""
        async with aclosing(self.model.generate(chat(question, **options), stop)) as texts:
            async for each in texts:
                text += each.text
        return text


def chat(question: str, **options: Any) -> Generation:
    return Generation(json.dumps([{"role": "user", "content": question}]), **options)


@asynccontextmanager
async def world(
    tmp_path: Path, *, slow: int = 0, forms: str = "genai", is_ready: bool = True, **settings: str
) -> AsyncGenerator[World, None]:
    folder = tmp_path / "chat" / "1"
    if "genai" in forms:
        write_genai(folder, slow=slow)
    if "gguf" in forms:
        write_gguf(folder / "tiny.gguf")
    found = World(folder, tmp_path / "cache", **settings)
    try:
        if is_ready:
            await found.ready()
        yield found
    finally:
        await found.model.stop()


async def test_answers_are_those_of_the_model_one_by_one_and_together(tmp_path: Path) -> None:
    colours = ("red", "green", "blue", "grey", "red", "blue")
    async with world(tmp_path) as box:
        for colour in colours:
            assert await box.ask(f"a {colour} door") == ANSWER.format(colour)
        assert await box.ask("a blue house") == ANSWER.format("blue")
        assert await box.ask("a blue house") == ANSWER.format("blue")
        found = await asyncio.gather(*(box.ask(f"a {colour} car") for colour in colours))
        assert found == [ANSWER.format(colour) for colour in colours]
        assert box.model.counts.requests == 14
        assert box.model.counts.failed == 0
        assert box.model.counts.cached_tokens > 0  # the beginning of one prompt was known from another


async def test_requests_that_come_late_join_those_that_run(tmp_path: Path) -> None:
    async with world(tmp_path, slow=100) as box:
        story = asyncio.ensure_future(box.ask("a red story", most_tokens=300))
        await asyncio.sleep(0.1)
        late = await asyncio.gather(*(box.ask(f"a {colour} car") for colour in ("green", "blue")))
        assert late == [ANSWER.format("green"), ANSWER.format("blue")]
        assert not story.done()
        assert (await story).startswith(f"{ANSWER.format('red')} {ANSWER.format('red')}")


async def test_gguf_file_is_served_by_openvino(tmp_path: Path) -> None:
    async with world(tmp_path, forms="gguf") as box:
        assert box.model.host is not None
        assert box.model.host.form.runtime == _OPENVINO
        found = await asyncio.gather(*(box.ask(f"question {number}") for number in range(6)))
        assert found == [ANSWER.format("grey")] * 6


@pytest.mark.parametrize("forms", ["genai", "gguf"])
async def test_guided_answers_follow_and_wrong_grammars_harm_no_other(tmp_path: Path, forms: str) -> None:
    async with world(tmp_path, forms=forms) as box:
        guided = Sampling(guidance="regex", grammar="(yes|no)")
        assert await box.ask("x", sampling=guided) in ("yes", "no")
        assert box.model.host is not None
        before = box.model.host.pid
        others = [asyncio.ensure_future(box.ask("x")) for _ in range(3)]
        # edged's own checks refuse this grammar before a runtime gets it.
        wrong = Sampling(guidance="regex", grammar="(((")
        with pytest.raises((InvalidInput, EngineUnusable)):
            await box.ask("x", sampling=wrong)
        assert await asyncio.gather(*others) == [ANSWER.format("grey")] * 3
        assert box.model.host.pid == before


async def test_stops_lengths_and_seeds(tmp_path: Path) -> None:
    async with world(tmp_path) as box:
        assert await box.ask("a red door", stop=(" door", "zzz")) == "The camera sees a red"
        assert await box.ask("a story", most_tokens=3) == "The camera sees"
        wild = {"most_tokens": 12}
        texts = [await box.ask("x", sampling=Sampling(temperature=15.0, seed=seed), **wild) for seed in (1, 1, 2)]
        assert texts[0] == texts[1] != texts[2]


async def test_prompt_that_is_too_long_is_refused_and_others_continue(tmp_path: Path) -> None:
    async with world(tmp_path, language__context="64") as box:
        with pytest.raises(InvalidInput, match=r"language\.context"):
            await box.ask("word " * 200)
        assert await box.ask("a red door") == ANSWER.format("red")


async def test_request_that_is_closed_ends_within_two_tokens(tmp_path: Path) -> None:
    async with world(tmp_path, slow=40) as box:
        async with aclosing(box.model.generate(chat("a red story", most_tokens=400))) as texts:
            count = 0
            async for each in texts:
                count += each.tokens
                if count >= 5:
                    break
        host = box.model.host
        assert host is not None
        assert host.requests == 0
        # The next request is not delayed by more than the token that was being made.
        assert await box.ask("a blue door") == ANSWER.format("blue")
        assert box.model.turns.running == 0


async def test_deadline_ends_a_request(tmp_path: Path) -> None:
    async with world(tmp_path, slow=40, limits__seconds="0.2") as box:
        with pytest.raises(DeadlineExceeded, match=r"limits\.seconds"):
            await box.ask("a red story", most_tokens=400)
        assert box.model.host is not None
        await box.until(lambda: box.model.host is not None and box.model.host.requests == 0)


async def test_deadline_and_removal_end_requests_that_wait_for_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opens(*_: object) -> LanguageHost:
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(LanguageHost, "start", opens)
    box = World(write_genai(tmp_path / "chat" / "1"), tmp_path / "cache", limits__seconds="0.3")
    try:
        await box.until(lambda: box.model.settings.seconds < 1)
        with pytest.raises(DeadlineExceeded, match=r"limits\.seconds"):
            await asyncio.wait_for(box.ask("x"), 20)
        box.model.settings = LanguageSettings()
        asked = asyncio.ensure_future(box.ask("x"))
        await asyncio.sleep(0.1)
        await box.model.stop()
        with pytest.raises(NotReady, match="no longer"):
            await asyncio.wait_for(asked, 0.9)
    finally:
        await box.model.stop()


async def test_request_without_text_ends_when_the_model_is_removed(tmp_path: Path) -> None:
    async with world(tmp_path) as box:
        host = box.model.host
        assert host is not None
        os.kill(host.pid, signal.SIGSTOP)  # it gives no text
        asked = asyncio.ensure_future(box.ask("x"))
        await box.until(lambda: bool(host.requests))
        await box.model.stop()
        with pytest.raises(NotReady, match="no longer"):
            await asyncio.wait_for(asked, 20)


async def test_waiting_requests_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path, slow=20, language__requests="1", language__waiting="2") as box:
        asked = [asyncio.ensure_future(box.ask("a red story", most_tokens=60)) for _ in range(5)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(each, Overloaded) for each in found) == 2
        assert sum(isinstance(each, str) for each in found) == 3


async def test_killed_host_is_started_again_and_the_request_is_answered(tmp_path: Path) -> None:
    async with world(tmp_path) as box:
        assert box.model.host is not None
        os.kill(box.model.host.pid, signal.SIGKILL)
        assert await box.ask("a red door") == ANSWER.format("red")


async def test_host_killed_after_the_first_text_fails_only_that_request(tmp_path: Path) -> None:
    async with world(tmp_path, slow=40) as box:
        assert box.model.host is not None
        pid = box.model.host.pid

        async def kill_at_the_first_text() -> None:
            async with aclosing(box.model.generate(chat("a red story", most_tokens=400))) as texts:
                async for _ in texts:
                    os.kill(pid, signal.SIGKILL)

        with pytest.raises(HostLost):
            await kill_at_the_first_text()
        assert await box.ask("a red door") == ANSWER.format("red")


async def test_stopped_host_is_replaced(tmp_path: Path) -> None:
    async with world(tmp_path, slow=40) as box:
        assert box.model.host is not None
        before = box.model.host.pid
        story = asyncio.ensure_future(box.ask("a red story", most_tokens=400))
        await asyncio.sleep(0.2)
        os.kill(before, signal.SIGSTOP)
        with pytest.raises(HostLost):
            await story
        await box.until(lambda: box.model.host is not None and box.model.host.pid != before)
        assert await box.ask("a red door") == ANSWER.format("red")


async def test_model_that_needs_more_memory_than_the_box_has_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path, is_ready=False) as box:
        box.available_mb = 100
        await box.until(lambda: box.model.problem is not None)
        assert box.model.problem is not None
        assert "100 MiB" in str(box.model.problem)
        with pytest.raises(NotReady):
            await box.ask("x")


async def test_requests_do_not_wait_for_a_host_that_dies_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object) -> LanguageHost:
        raise HostLost("the host ended while it opened the model")

    monkeypatch.setattr(LanguageHost, "start", dies)
    box = World(write_genai(tmp_path / "chat" / "1"), tmp_path / "cache")
    try:
        with pytest.raises(NotReady, match="the host ended"):
            await asyncio.wait_for(box.ask("x"), 20)
    finally:
        await box.model.stop()


async def test_model_is_read_again_after_a_read_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(language, "read_regular", fails)
        box = World(write_genai(tmp_path / "chat" / "1"), tmp_path / "cache")
        await box.until(lambda: box.model.state is LanguageState.REFUSED)
    try:
        await box.ready()
    finally:
        await box.model.stop()


async def test_model_is_up_to_date_once_its_newest_content_serves(tmp_path: Path) -> None:
    async with world(tmp_path) as box:
        await box.until(lambda: box.model.is_up_to_date)
        (box.folder / "decoder.onnx").write_bytes(b"not a model")
        box.model.look(box.entry())
        assert box.model.state is LanguageState.READY  # the content before serves
        assert not box.model.is_up_to_date
        assert not box.model.is_refused
        await box.until(lambda: box.model.is_refused)
        write_genai(box.folder)
        box.model.look(box.entry())
        assert not box.model.is_refused
        await box.until(lambda: box.model.is_up_to_date)


async def test_changed_memory_limit_starts_another_host(tmp_path: Path) -> None:
    async with world(tmp_path) as box:
        box.model.look(box.entry(**{"language.memory_mb": "2048"}))
        await box.until(lambda: box.model.swaps == 1)
        assert box.model.host is not None
        assert box.model.host._memory_mb == 2048


async def test_models_that_start_together_do_not_count_on_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = World(write_genai(tmp_path / "chat" / "1"), tmp_path / "cache", language__memory_mb="1000")
    start = LanguageHost.start

    async def opens(*arguments: Any) -> LanguageHost:
        await asyncio.sleep(0.2)
        box.available_mb -= 1000
        return await start(*arguments)

    monkeypatch.setattr(LanguageHost, "start", opens)
    box.available_mb = 1500
    other = PlannedLanguageModel(box.entry(), box.box)
    try:
        await box.until(lambda: all(each.problem or each.host for each in (box.model, other)))
        assert sorted(each.state.value for each in (box.model, other)) == ["ready", "refused"]
    finally:
        await asyncio.gather(box.model.stop(), other.stop())


async def test_model_opens_while_another_one_waits_for_its_old_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_stop, waiting = asyncio.Event(), asyncio.Event()

    async def drains(host: LanguageHost) -> None:
        waiting.set()
        await may_stop.wait()

    async with world(tmp_path) as box:
        monkeypatch.setattr(LanguageHost, "drain", drains)
        box.available_mb = 1255  # 1256 are needed; the host that serves frees some
        box.model.look(box.entry(**{"language.memory_mb": "1000"}))
        await asyncio.wait_for(waiting.wait(), 20)
        other = PlannedLanguageModel(box.entry(**{"language.memory_mb": "900"}), box.box)
        try:
            await box.until(lambda: other.state is LanguageState.READY)
            assert box.model.host is None
            box.available_mb = 64 * _GB
            may_stop.set()
            await box.ready()
        finally:
            await other.stop()


async def test_model_that_cannot_use_its_device_says_that_it_runs_on_the_cpu(tmp_path: Path) -> None:
    folder = write_genai(tmp_path / "chat" / "1")
    config = json.loads((folder / "genai_config.json").read_text())
    config["model"]["decoder"]["session_options"] = {"provider_options": [{"cuda": {}}]}
    (folder / "genai_config.json").write_text(json.dumps(config))
    box = World(folder, tmp_path / "cache")
    models = LanguageModels(box.box)
    models.models["chat"] = box.model
    try:
        await box.ready()
        assert await box.ask("a red door") == ANSWER.format("red")
        describer = Describer(models.require, lambda what, model: None, TaskGroup(lambda: None))
        (alarm,) = alarms.of_language(models, describer)
        assert (alarm.kind, alarm.model) == (alarms.AlarmKind.FALLBACK, "chat")
        assert "runs on the CPU instead of the device in genai_config.json: Cuda" in alarm.message
    finally:
        await box.model.stop()


async def test_model_that_the_runtime_refuses_names_the_reason(tmp_path: Path) -> None:
    folder = write_genai(tmp_path / "chat" / "1")
    (folder / "decoder.onnx").write_bytes(b"not a model")
    box = World(folder, tmp_path / "cache")
    try:
        await box.until(lambda: box.model.state is LanguageState.REFUSED)
        assert "ONNX Runtime GenAI refuses the model" in str(box.model.problem)
        write_genai(folder)
        box.model.look(box.entry())
        await box.ready()
    finally:
        await box.model.stop()


async def test_faster_of_two_runtimes_is_chosen_by_measurement_and_kept(tmp_path: Path) -> None:
    async with world(tmp_path, forms="genai gguf") as box:
        known = box.proofs.read(box.model.digest)
        assert set(known.figures) == set(NAMES)
        faster = proof.faster(known.figures)
        await box.until(lambda: box.model.host is not None and box.model.host.form.runtime == faster)
        assert "tokens/s" in box.model.choice
        box.model.look(box.entry(**{"language.runtime": _OPENVINO}))
        await box.until(lambda: box.model.host is not None and box.model.host.form.runtime == _OPENVINO)
        assert await box.ask("x") == ANSWER.format("grey")


async def test_new_version_of_a_runtime_is_verified_and_takes_over_while_requests_run(tmp_path: Path) -> None:
    async with world(tmp_path, slow=20) as box:
        answered = 0

        async def ask_on() -> None:
            nonlocal answered
            while box.model.swaps < 3:
                colour = ("red", "green", "blue")[answered % 3]
                assert await box.ask(f"a {colour} door") == ANSWER.format(colour)
                answered += 1

        asking = asyncio.gather(ask_on(), ask_on())
        for number in range(3):
            box.facts["runtime.onnxruntime_genai"] = f"0.18.{number + 1}"
            box.model.look()
            await box.until(lambda wanted=number + 1: box.model.swaps >= wanted)  # type: ignore[misc]
        await asking
        assert answered > 3
        assert box.model.counts.failed == 0
        assert box.proofs.read(box.model.digest).versions[_GENAI] == "0.18.3"


async def test_new_version_with_other_answers_does_not_serve(tmp_path: Path) -> None:
    async with world(tmp_path) as box:
        digest = box.model.digest
        known = box.proofs.read(digest)
        wrong = tuple(f"other {number}" for number in range(len(known.answers[_GENAI])))
        box.proofs.write(digest, Proof({_GENAI: "0.18.0"}, {_GENAI: wrong}))
        before = box.model.host
        box.facts["runtime.onnxruntime_genai"] = "0.19.0"
        box.model.look()
        await box.until(lambda: box.model.problem is not None)
        assert "differ" in str(box.model.problem)
        assert box.model.host is before  # it serves on
        assert await box.ask("a red door") == ANSWER.format("red")
        box.model.look(box.entry(**{"language.verify": "false"}))
        await box.until(lambda: box.model.host is not before)
        assert box.model.problem is None


async def test_runtime_that_is_removed_does_not_stop_the_host(tmp_path: Path) -> None:
    async with world(tmp_path) as box:
        del box.facts["runtime.onnxruntime_genai"]
        box.model.look()
        await box.until(lambda: box.model.problem is not None)
        assert await box.ask("a red door") == ANSWER.format("red")
