"""The TensorRT session on the stand-in driver and a small engine: its answers, and the order of its work."""

from __future__ import annotations

import ctypes
import enum
import queue
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from edged.backends.contract import Order, Recipe, Session, Signature, Staging
from edged.backends.cuda.driver import Device
from edged.backends.trt import load
from edged.backends.trt.load import open_engine
from edged.backends.trt.log import Log
from edged.backends.trt.session import TensorRtSession
from edged.errors import EngineUnusable, InvalidInput, Unsuitable
from edged.tensors import TensorSpec
from tests.fake_cuda.control import ILLEGAL_ADDRESS, INVALID_VALUE, Control
from tests.fake_cuda.engine import FakeContext, FakeEngine, expected

FIXED = {"x": ("INPUT", "FLOAT", (1, 3, 4)), "y": ("OUTPUT", "FLOAT", (1, 3, 4))}
OPEN = {"x": ("INPUT", "FLOAT", (-1, 4)), "y": ("OUTPUT", "FLOAT", (-1, 4))}
UP_TO_8 = {"x": ((1, 4), (1, 4), (8, 4))}
DATATYPES = {"FLOAT": "FP32", "HALF": "FP16", "INT64": "INT64", "INT32": "INT32", "BOOL": "BOOL", "BF16": "BF16"}

Open = Callable[..., TensorRtSession]


def signature(engine: FakeEngine) -> Signature:
    def specs(mode: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(name, DATATYPES[dtype], tuple("n" if d == -1 else d for d in shape))
            for name, (m, dtype, shape) in engine.tensors.items()
            if m == mode
        )

    return Signature(specs("INPUT"), specs("OUTPUT"))


@pytest.fixture
def opened(device: Device) -> Iterator[Open]:
    sessions: list[TensorRtSession] = []

    def open_session(engine: FakeEngine, explain: Callable[[], str] = lambda: "") -> TensorRtSession:
        sessions.append(TensorRtSession(engine, signature(engine), device, explain))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()


@pytest.fixture
def integrated(control: Control, request: pytest.FixtureRequest) -> Device:
    control.configure(integrated=1)
    found: Device = request.getfixturevalue("device")
    return found


def values(seed: float, shape: tuple[int, ...] = (1, 3, 4)) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + np.float32(seed)


# -- answers --------------------------------------------------------------------------------------------------------


def test_session_supports_staging(opened: Open, control: Control) -> None:
    session: Session = opened(FakeEngine(control, FIXED))
    assert isinstance(session, Staging)


def test_session_repeated_inferences_are_right(opened: Open, control: Control) -> None:
    session = opened(FakeEngine(control, FIXED, compute_us=300))
    control.configure(copy_us=300)
    for seed in range(12):
        np.testing.assert_array_equal(session.infer({"x": values(seed)})["y"], expected(values(seed)))


def test_session_answer_is_valid_until_the_next_call_returns(opened: Open, control: Control) -> None:
    session = opened(FakeEngine(control, FIXED))
    before = session.infer({"x": values(0)})["y"]
    for seed in range(1, 6):
        staged = session.stage({"x": values(seed)})
        np.testing.assert_array_equal(before, expected(values(seed - 1)))
        before = session.infer_staged(staged)["y"]


def test_only_the_outputs_asked_for_are_fetched_in_their_order(opened: Open, control: Control) -> None:
    tensors = {**FIXED, "z": ("OUTPUT", "FLOAT", (1, 3, 4))}
    session = opened(FakeEngine(control, tensors))
    assert list(session.infer({"x": values(1)})) == ["y", "z"]
    fetched = control.calls("cuMemcpyDtoHAsync")
    assert list(session.infer({"x": values(1)}, ["z"])) == ["z"]
    assert control.calls("cuMemcpyDtoHAsync") == fetched + 1
    assert list(session.infer({"x": values(1)}, ["z", "y"])) == ["z", "y"]


def test_inputs_that_the_caller_changes_after_staging_do_not_matter(opened: Open, control: Control) -> None:
    control.configure(copy_us=5000)
    session, array = opened(FakeEngine(control, FIXED)), values(3)
    staged = session.stage({"x": array})
    array[:] = -1
    np.testing.assert_array_equal(session.infer_staged(staged)["y"], expected(values(3)))


def test_session_array_is_zeroed_and_staged_in_place(opened: Open, control: Control) -> None:
    session = opened(FakeEngine(control, FIXED))
    ours = session.array((1, 3, 4), np.dtype(np.float32))
    assert ours.dtype == np.float32
    assert not ours.any()
    for seed in range(5):
        ours[:] = values(seed)
        np.testing.assert_array_equal(session.infer({"x": ours})["y"], expected(values(seed)))


@pytest.mark.parametrize(
    ("made", "dtype"), [("HALF", np.float16), ("INT64", np.int64), ("BF16", np.uint16), ("BOOL", np.bool_)]
)
def test_session_copies_bytes_of_every_dtype(opened: Open, control: Control, made: str, dtype: type) -> None:
    """The engine computes in floats; this test checks the number of bytes copied."""
    tensors = {"x": ("INPUT", made, (2, 8)), "y": ("OUTPUT", made, (2, 8))}
    engine = FakeEngine(control, tensors)
    session, given = opened(engine), np.ones((2, 8), dtype)
    engine.contexts[0].execute_async_v3 = lambda stream: True  # type: ignore[method-assign]
    answer = session.infer({"x": given})["y"]
    assert (answer.dtype, answer.shape) == (np.dtype(dtype), (2, 8))
    assert [t.size for t in control.traces("copy")] == [given.nbytes, given.nbytes]


def test_empty_tensors_are_not_copied(opened: Open, control: Control) -> None:
    tensors = {"x": ("INPUT", "FLOAT", (0, 4)), "y": ("OUTPUT", "FLOAT", (0, 4))}
    answer = opened(FakeEngine(control, tensors)).infer({"x": np.zeros((0, 4), np.float32)})["y"]
    assert answer.shape == (0, 4)
    assert control.traces("copy") == []


def test_session_engine_without_inputs_runs(opened: Open, control: Control) -> None:
    engine = FakeEngine(control, {"y": ("OUTPUT", "FLOAT", (2,))})
    session = opened(engine)
    engine.contexts[0].execute_async_v3 = lambda stream: True  # type: ignore[method-assign]
    assert session.infer({})["y"].shape == (2,)


# -- shapes ---------------------------------------------------------------------------------------------------------


def test_session_accepts_every_shape_of_the_profile(opened: Open, control: Control) -> None:
    session = opened(FakeEngine(control, OPEN, [UP_TO_8]))
    for batch in (1, 8, 3, 3, 2, 8):
        given = values(batch, (batch, 4))
        np.testing.assert_array_equal(session.infer({"x": given})["y"], expected(given))
    assert control.traces("launch") == []


def test_session_sets_a_shape_only_when_it_changes(opened: Open, control: Control) -> None:
    engine = FakeEngine(control, OPEN, [UP_TO_8])
    session, count = opened(engine), engine.contexts[0].shapes_set
    for batch in (2, 2, 2, 3, 3, 2):
        session.infer({"x": values(batch, (batch, 4))})
    assert engine.contexts[0].shapes_set == count + 3


def test_session_on_discrete_device_maps_no_memory(opened: Open, control: Control) -> None:
    opened(FakeEngine(control, FIXED)).array((1,), np.dtype(np.float32))
    assert control.calls("cuMemHostAlloc") == 5
    assert control.calls("cuMemHostGetDevicePointer") == 0


@pytest.mark.parametrize("shape", [(9, 4), (0, 4), (1, 5), (4,), (1, 4, 1)])
def test_session_shape_outside_the_profile_is_invalid_input(
    opened: Open, control: Control, shape: tuple[int, ...]
) -> None:
    session = opened(FakeEngine(control, OPEN, [UP_TO_8]))
    with pytest.raises(InvalidInput) as raised:
        session.infer({"x": np.zeros(shape, np.float32)})
    assert str(raised.value) == f"input 'x' has the shape {list(shape)}; the engine takes [1, 4] to [8, 4]"
    np.testing.assert_array_equal(session.infer({"x": values(1, (2, 4))})["y"], expected(values(1, (2, 4))))


def test_session_other_shape_than_the_fixed_one_is_invalid_input(opened: Open, control: Control) -> None:
    with pytest.raises(InvalidInput, match=r"'x' has the shape \[3, 4\]; the engine takes \[1, 3, 4\]$"):
        opened(FakeEngine(control, FIXED)).infer({"x": np.zeros((3, 4), np.float32)})


def test_session_wrong_dtype_is_invalid_input(opened: Open, control: Control) -> None:
    with pytest.raises(InvalidInput, match="'x'"):
        opened(FakeEngine(control, FIXED)).infer({"x": np.zeros((1, 3, 4))})


def test_each_profile_has_a_context_that_is_made_when_it_is_needed(opened: Open, control: Control) -> None:
    engine = FakeEngine(control, OPEN, [UP_TO_8, {"x": ((16, 4), (16, 4), (32, 4))}])
    session = opened(engine)
    assert len(engine.contexts) == 1
    for batch in (1, 20, 8, 32, 16):
        given = values(batch, (batch, 4))
        np.testing.assert_array_equal(session.infer({"x": given})["y"], expected(given))
    assert [context.profile for context in engine.contexts] == [0, 1]
    with pytest.raises(InvalidInput, match=r"takes \[1, 4\] to \[8, 4\] or \[16, 4\] to \[32, 4\]"):
        session.infer({"x": np.zeros((12, 4), np.float32)})


def test_shapes_that_no_single_profile_takes_together_are_named(opened: Open, control: Control) -> None:
    tensors = {**OPEN, "w": ("INPUT", "FLOAT", (-1,))}
    small, large = ((1,), (1,), (1,)), ((2,), (2,), (2,))
    session = opened(FakeEngine(control, tensors, [{**UP_TO_8, "w": small}, {"x": ((9, 4),) * 3, "w": large}]))
    with pytest.raises(InvalidInput, match=r"together: 'x' \[1, 4\], 'w' \[2\]"):
        session.infer({"x": np.zeros((1, 4), np.float32), "w": np.zeros(2, np.float32)})


def test_session_allocates_the_runtimes_largest_output(opened: Open, control: Control) -> None:
    """Outputs up to the runtime's own maximum fit; a larger output is refused before it could overrun the buffer."""
    engine = FakeEngine(control, OPEN, [UP_TO_8])
    FakeContext.get_max_output_size = lambda self, name: 4096  # type: ignore[attr-defined]
    try:
        session = opened(engine)
    finally:
        del FakeContext.get_max_output_size  # type: ignore[attr-defined]
    context = engine.contexts[0]
    context.execute_async_v3 = lambda stream: True  # type: ignore[method-assign]
    context.get_tensor_shape = lambda name: (64, 4)  # type: ignore[method-assign]
    assert session.infer({"x": values(1, (2, 4))})["y"].shape == (64, 4)
    context.get_tensor_shape = lambda name: (1024, 4)  # type: ignore[method-assign]
    with pytest.raises(EngineUnusable, match="16384 bytes, more than the 4096"):
        session.infer({"x": values(1, (3, 4))})


# -- errors at opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "declared", "problem"),
    [
        (FIXED, Signature((TensorSpec("x", "FP16", (1, 3, 4)),), (TensorSpec("y", "FP32", (1, 3, 4)),)), "FP16.*FLOAT"),
        (FIXED, Signature((TensorSpec("x", "FP32", (1, 3, 4)),), (TensorSpec("y", "INT64", (1,)),)), "'y'.*INT64"),
        (FIXED, Signature((TensorSpec("x", "BYTES", (1,)),), (TensorSpec("y", "FP32", (1,)),)), "BYTES"),
        (FIXED, Signature((TensorSpec("other", "FP32", (1,)),), (TensorSpec("y", "FP32", (1,)),)), "'x'.*'other'"),
        (FIXED, Signature((TensorSpec("x", "FP32", (1, 3, 4)),), ()), "outputs are 'y', but the model's are none"),
        (
            {**FIXED, "y": ("OUTPUT", "FP8", (1,))},
            Signature((TensorSpec("x", "FP32", (1, 3, 4)),), (TensorSpec("y", "FP32", (1,)),)),
            "FP8",
        ),
        (
            {**FIXED, "y": ("OUTPUT", "FLOAT", (1, 3, 4, -1))},
            Signature((TensorSpec("x", "FP32", (1, 3, 4)),), (TensorSpec("y", "FP32", (1, 3, 4, "k")),)),
            "'y' depends on the data",
        ),
    ],
)
def test_session_engine_of_another_model_is_refused_and_leaves_nothing(
    device: Device, control: Control, tensors: dict, declared: Signature, problem: str
) -> None:
    with pytest.raises(EngineUnusable, match=problem) as raised:
        TensorRtSession(FakeEngine(control, tensors), declared, device)
    assert "\n" not in str(raised.value)


def test_session_with_shape_tensor_is_unsuitable(device: Device, control: Control) -> None:
    engine = FakeEngine(control, FIXED)
    engine.is_shape_inference_io = lambda name: name == "x"  # type: ignore[attr-defined]
    with pytest.raises(Unsuitable, match="'x'"):
        TensorRtSession(engine, signature(engine), device)


def test_session_without_context_raises_the_runtimes_reason(device: Device, control: Control) -> None:
    engine = FakeEngine(control, FIXED)
    engine.makes_contexts = False
    with pytest.raises(EngineUnusable, match=r"cannot create an execution context.*: out of everything"):
        TensorRtSession(engine, signature(engine), device, lambda: "out of everything")


@pytest.mark.parametrize("call", ["cuStreamCreate", "cuEventCreate", "cuMemAlloc", "cuMemHostAlloc"])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_session_failed_open_leaves_nothing(device: Device, control: Control, call: str, skip: int) -> None:
    if (call, skip) == ("cuStreamCreate", 3):
        pytest.skip("a session has two streams")
    engine = FakeEngine(control, FIXED)
    control.fail(call, INVALID_VALUE, skip)
    with pytest.raises(EngineUnusable, match=call):
        TensorRtSession(engine, signature(engine), device)


# -- order ----------------------------------------------------------------------------------------------------------


def test_session_copies_next_inputs_during_the_current_inference(opened: Open, control: Control) -> None:
    session = opened(FakeEngine(control, FIXED, compute_us=200_000))
    control.configure(copy_us=5_000)
    first = session.stage({"x": values(1)})
    answers: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: answers.append(session.infer_staged(first)["y"].copy()))
    thread.start()
    while control.calls("cuEventSynchronize") == 0:
        pass
    second = session.stage({"x": values(2)})
    thread.join()
    answers.append(session.infer_staged(second)["y"])
    for seed, answer in zip((1, 2), answers, strict=True):
        np.testing.assert_array_equal(answer, expected(values(seed)))
    (computing, last), copies = control.traces("compute"), control.traces("copy")
    inward = [trace for trace in copies if trace.stream != computing.stream]
    assert len(inward) == 2
    assert inward[0].end <= computing.begin
    assert inward[1].overlaps(computing), "the second copy overlaps the first computation"
    assert inward[1].end <= last.begin


def test_session_stages_a_third_inference_after_the_first_ends(opened: Open, control: Control) -> None:
    session = opened(FakeEngine(control, FIXED))
    waiting = [session.stage({"x": values(seed)}) for seed in (1, 2)]
    thread = threading.Thread(target=lambda: waiting.append(session.stage({"x": values(3)})))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    np.testing.assert_array_equal(session.infer_staged(waiting[0])["y"], expected(values(1)))
    thread.join()
    for seed in (2, 3):
        np.testing.assert_array_equal(session.infer_staged(waiting[seed - 1])["y"], expected(values(seed)))


@pytest.mark.parametrize("shares_memory", [False, True])
def test_two_threads_with_every_delay_never_mix_up_inferences(
    control: Control, request: pytest.FixtureRequest, shares_memory: bool
) -> None:
    control.configure(integrated=int(shares_memory))
    session: TensorRtSession = request.getfixturevalue("opened")(FakeEngine(control, FIXED, compute_us=700))
    control.configure(copy_us=400)
    ours = [session.array((1, 3, 4), np.dtype(np.float32)) for _ in range(3)]
    between: queue.SimpleQueue[tuple[int, object] | None] = queue.SimpleQueue()

    def prepare() -> None:
        for seed in range(60):
            given = ours[seed % 3] if seed % 4 else values(seed)
            given[:] = values(seed)
            between.put((seed, session.stage({"x": given})))
        between.put(None)

    thread = threading.Thread(target=prepare)
    thread.start()
    while (item := between.get()) is not None:
        seed, staged = item
        np.testing.assert_array_equal(session.infer_staged(staged)["y"], expected(values(seed)))
    thread.join()


# -- graphs ---------------------------------------------------------------------------------------------------------


def test_session_fixed_shape_is_captured_once_per_buffer_set(opened: Open, control: Control, device: Device) -> None:
    engine = FakeEngine(control, FIXED)
    session = opened(engine)
    for seed in range(10):
        np.testing.assert_array_equal(session.infer({"x": values(seed)})["y"], expected(values(seed)))
    assert session.why_no_graphs == ""
    assert engine.runs == 4, "one run and one capture for each of the two buffer sets"
    assert len(control.traces("launch")) == 8


@pytest.mark.parametrize("how", ["cuStreamBeginCapture", "cuGraphInstantiate", "engine", "wait"])
def test_session_failed_capture_continues_and_keeps_the_reason(
    opened: Open, control: Control, device: Device, how: str
) -> None:
    engine = FakeEngine(control, FIXED)
    session = opened(engine, lambda: "says TensorRT")
    if how == "engine":
        engine.contexts[0].before_run = lambda stream: engine.runs != 2
    elif how == "wait":
        lane = next(iter(session._lanes.values()))
        run = lane.enqueue
        lane.enqueue = lambda stream: (run(stream), engine.runs == 2 and stream.synchronize())  # type: ignore
    else:
        control.fail(how, INVALID_VALUE)
    for seed in range(6):
        np.testing.assert_array_equal(session.infer({"x": values(seed)})["y"], expected(values(seed)))
    assert session.why_no_graphs.endswith(": says TensorRT")
    assert control.traces("launch") == []
    assert engine.runs == 6 + (how != "cuStreamBeginCapture"), "one attempt"


def test_session_engine_that_denies_capture_is_not_captured(opened: Open, control: Control, device: Device) -> None:
    engine = FakeEngine(control, FIXED)
    session = opened(engine)
    engine.contexts[0].is_stream_capturable = lambda stream: False  # type: ignore[attr-defined]
    for seed in range(4):
        session.infer({"x": values(seed)})
    assert control.calls("cuStreamBeginCapture") == 0
    assert "cannot be captured" in session.why_no_graphs


# -- a device that shares the host's memory -------------------------------------------------------------------------


def test_on_shared_memory_nothing_is_copied(integrated: Device, opened: Open, control: Control) -> None:
    assert integrated.properties.shares_memory
    session = opened(FakeEngine(control, FIXED, compute_us=300))
    ours = session.array((1, 3, 4), np.dtype(np.float32))
    for seed in range(8):
        given = ours if seed % 2 else values(seed)
        given[:] = values(seed)
        np.testing.assert_array_equal(session.infer({"x": given})["y"], expected(values(seed)))
    assert control.traces("copy") == []
    assert control.calls("cuMemAlloc") == 0


def test_on_shared_memory_the_engine_reads_the_callers_array(
    integrated: Device, opened: Open, control: Control
) -> None:
    engine = FakeEngine(control, FIXED)
    session = opened(engine)
    session.infer({"x": values(1)})
    own = engine.contexts[0].addresses["x"]
    ours = [session.array((1, 3, 4), np.dtype(np.float32)) for _ in range(3)]
    addresses = set()
    for turn in range(12):
        session.infer({"x": ours[turn % 3]})
        addresses.add(engine.contexts[0].addresses["x"])
    assert own not in addresses
    assert len(addresses) == 3


def test_session_on_integrated_device_without_mapping_copies(control: Control, request: pytest.FixtureRequest) -> None:
    control.configure(integrated=1, can_map=0)
    session: TensorRtSession = request.getfixturevalue("opened")(FakeEngine(control, FIXED))
    np.testing.assert_array_equal(session.infer({"x": values(1)})["y"], expected(values(1)))
    assert len(control.traces("copy")) == 2


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call", ["cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize"]
)
def test_session_next_inference_after_a_failed_call_is_right(opened: Open, control: Control, call: str) -> None:
    session = opened(FakeEngine(control, FIXED, compute_us=2000))
    for seed in range(6):
        control.fail(call, INVALID_VALUE)
        with pytest.raises(EngineUnusable, match=f"{call} failed: .*INVALID_VALUE"):
            session.infer({"x": values(-1)})
        np.testing.assert_array_equal(session.infer({"x": values(seed)})["y"], expected(values(seed)))


def test_session_failed_start_raises_the_runtimes_reason(opened: Open, control: Control) -> None:
    engine = FakeEngine(control, FIXED)
    session = opened(engine, lambda: "a tactic is gone")
    engine.contexts[0].before_run = lambda stream: False
    for _ in range(4):
        with pytest.raises(EngineUnusable, match="could not start the inference: a tactic is gone"):
            session.infer({"x": values(1)})


def test_session_failed_start_names_the_earlier_device_error(opened: Open, control: Control) -> None:
    engine = FakeEngine(control, FIXED)
    session = opened(engine)
    engine.contexts[0].before_run = lambda stream: control.break_context(stream) is not None
    with pytest.raises(EngineUnusable, match=r"could not start.*: cuStreamSynchronize failed: .*ILLEGAL_ADDRESS"):
        session.infer({"x": values(1)})
    control.recover()


def test_session_broken_device_raises_and_close_does_not(opened: Open, control: Control) -> None:
    engine = FakeEngine(control, OPEN, [UP_TO_8])
    session = opened(engine)
    given = values(1, (2, 4))
    session.infer({"x": given})
    engine.contexts[0].before_run = lambda stream: control.break_context(stream) is None
    with pytest.raises(EngineUnusable, match="ILLEGAL_ADDRESS"):
        session.infer({"x": given})
    for _ in range(3):
        with pytest.raises(EngineUnusable, match="ILLEGAL_ADDRESS"):
            session.infer({"x": given})
    control.recover()  # so that the fixture can count leaks


def test_session_close_on_broken_device_tries_every_free(device: Device, control: Control) -> None:
    """Each kind of call fails once. Closing raises nothing and still calls every free."""
    engine = FakeEngine(control, FIXED)
    session = TensorRtSession(engine, signature(engine), device)
    for call in ("cuMemFreeHost", "cuMemFree", "cuStreamSynchronize", "cuEventDestroy", "cuStreamDestroy"):
        control.fail(call, ILLEGAL_ADDRESS)
    freed = control.calls("cuMemFree"), control.calls("cuMemFreeHost")
    session.close()
    assert (control.calls("cuMemFree"), control.calls("cuMemFreeHost")) == (freed[0] + 4, freed[1] + 4)
    control.leave()


def test_session_close_waits_for_staged_inputs(opened: Open, control: Control) -> None:
    control.configure(copy_us=20_000)
    session = opened(FakeEngine(control, FIXED))
    session.stage({"x": values(1)})
    session.close()
    assert len(control.traces("copy")) == 1


# -- the device on which objects end --------------------------------------------------------------------------------


class Ending:
    """Records the current device when deleted, as TensorRT's objects free memory then: "engine 1", -1 for none."""

    def __init__(self, what: str, ended: list[str]) -> None:
        self._what, self._ended = what, ended

    def __del__(self) -> None:
        device = ctypes.c_int(-1)
        ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(device))
        self._ended.append(f"{self._what} {device.value}")


class EndingContext(FakeContext):
    def __init__(self, engine: EndingEngine) -> None:
        super().__init__(engine)
        self.nvtx_verbosity = Verbosity.DETAILED
        self.ending = Ending("context", engine.ended)


class EndingEngine(FakeEngine):
    """An engine that holds no reference to its contexts, so that a context ends when its session drops it."""

    def __init__(self, control: Control, ended: list[str]) -> None:
        super().__init__(control, FIXED)
        self.ended, self.ending = ended, Ending("engine", ended)

    def create_execution_context(self) -> FakeContext:
        return EndingContext(self)


class Verbosity(enum.Enum):
    NONE = 0
    DETAILED = 1


@pytest.fixture
def second(control: Control, monkeypatch: pytest.MonkeyPatch) -> Iterator[Order]:
    """An order for the second of two devices; any bytes are a valid plan."""
    control.configure(devices=2)
    monkeypatch.setattr(load, "read_plan", lambda order, kind, version: b"plan")
    yield Order("", signature(FakeEngine(control, FIXED)), Recipe("tensorrt", "cuda:1", options="workspace_mb=64"))
    control.configure(devices=1)


@pytest.fixture
def ended(control: Control, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ended on which device; every plan gives an EndingEngine."""
    found: list[str] = []

    def deserialise(trt: object, data: bytes, kind: str, dla_core: int | None) -> load.Loaded:
        return load.Loaded(EndingEngine(control, found), Log(), (Ending("runtime", found),))  # type: ignore[arg-type]

    monkeypatch.setattr(load, "deserialise", deserialise)
    return found


def test_context_engine_and_runtime_end_on_their_device(second: Order, ended: list[str]) -> None:
    session = open_engine(SimpleNamespace(), "TensorRT", "10.0.0.0", second)  # type: ignore[arg-type]
    assert session._lanes[0].context.nvtx_verbosity is Verbosity.NONE  # type: ignore[attr-defined]
    np.testing.assert_array_equal(session.infer({"x": values(1)})["y"], expected(values(1)))
    assert ended == []
    session.close()
    assert ended == ["context 1", "engine 1", "runtime 1"]


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuMemHostAlloc", "cuEventCreate"])
def test_failed_open_ends_on_the_device(control: Control, second: Order, ended: list[str], call: str) -> None:
    control.fail(call, INVALID_VALUE, skip=1)
    with pytest.raises(EngineUnusable, match="INVALID_VALUE") as raised:
        open_engine(SimpleNamespace(), "TensorRT", "10.0.0.0", second)  # type: ignore[arg-type]
    # `raised` holds the frames, which refer to all three objects.
    assert ended == ["context 1", "engine 1", "runtime 1"], raised
