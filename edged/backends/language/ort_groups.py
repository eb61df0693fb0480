"""Groups of requests for ONNX Runtime GenAI: a single request with a generator, or a batch in the library's engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import onnxruntime_genai as og

from edged.backends.language.contract import Generation, Prompt, Reason, Sampling, Step

_CHUNK = 128  # tokens of a prompt that are read at once, so that other requests continue in between
_SHORT_PROMPT = 512  # tokens; a longer prompt is not read in a batch
_WORTH = 4  # a request is moved if it has at most this many times as many tokens as are still to be generated
_FAR = 256  # the most tokens that a request is expected to generate


class Request:
    """A request, with the tokens of its prompt (`ids`) and the tokens that were generated so far (`made`)."""

    def __init__(self, number: int, ids: list[int], wanted: Generation, stream: Any, inputs: Any = None) -> None:
        self.number, self.ids, self.wanted, self.inputs = number, ids, wanted, inputs
        self.made: list[int] = []
        self.prompt: Prompt | None = None  # set when the request starts; reported once, with the first token
        self._stream = stream

    @property
    def left(self) -> int:
        return self.wanted.most_tokens - len(self.made)

    @property
    def may_share(self) -> bool:
        """Whether the request can be in a batch."""
        sampling = self.wanted.sampling
        is_plain = sampling.seed is None and not sampling.guidance and self.inputs is None
        return is_plain and len(self.ids) <= _SHORT_PROMPT

    def is_worth_moving(self) -> bool:
        return len(self.ids) + len(self.made) <= _WORTH * min(self.left, _FAR)

    def took(self, token: int, ends: Sequence[int], reason: Reason = "") -> Step:
        """Add a generated token, and return the step that reports it. `ends` are the tokens that end a text."""
        self.made.append(token)
        reason = "stop" if token in ends else reason or ("length" if self.left <= 0 else "")
        text = "" if token in ends else self._stream.decode(token)
        prompt, self.prompt = self.prompt, None
        return Step(self.number, text, 1, reason, prompt=prompt)


class Group(Protocol):
    requests: list[Request]

    def step(self) -> list[Step]: ...
    def cancel(self, request: Request) -> None: ...


class Kept:
    """The generator of an ended request, and the tokens that this generator has read."""

    def __init__(self, generator: Any, ids: list[int], sampling: Sampling) -> None:
        self.generator, self._ids, self._sampling = generator, ids, sampling

    def shared(self, request: Request) -> int:
        """Return how many of a request's first tokens the generator has read; 0 if the sampling differs. The last token
        of the prompt does not count: the model must read it again to compute the scores of the next token."""
        if request.wanted.sampling != self._sampling:
            return 0
        most = min(len(self._ids), len(request.ids) - 1)
        return next((i for i in range(most) if self._ids[i] != request.ids[i]), most)

    def rewound(self, request: Request) -> int:
        known = self.shared(request)
        self.generator.rewind_to(known)
        return known


class Alone:
    """A request with its own generator."""

    def __init__(self, generator: Any, request: Request, ends: Sequence[int], known: int = 0) -> None:
        self.generator, self.requests, self._ends, self._read = generator, [request], ends, known
        request.prompt = Prompt(len(request.ids), known)

    @property
    def is_reading_done(self) -> bool:
        request = self.requests[0]
        return request.inputs is None and self._read == len(request.ids)

    def step(self) -> list[Step]:
        (request,) = self.requests
        if request.inputs is not None and not self._read:
            self.generator.set_inputs(request.inputs)
            self._read = len(request.ids) or 1
            request.prompt = Prompt(self.generator.token_count())
        elif self._read < len(request.ids):
            end = min(self._read + _CHUNK, len(request.ids))
            self.generator.append_tokens(request.ids[self._read : end])
            self._read = end
            if end < len(request.ids):
                return []
        self.generator.generate_next_token()
        token = int(self.generator.get_next_tokens()[0])
        return [request.took(token, self._ends, "length" if self.generator.is_done() else "")]

    def cancel(self, request: Request) -> None:
        """Do nothing: the generator computes only during `step`, which is not called after a cancellation."""


class Batch:
    """Requests that the library's engine computes together."""

    def __init__(self, model: Any, requests: list[Request], ends: Sequence[int], context: int) -> None:
        self.requests, self._ends = list(requests), ends
        self._engine = og.Engine(model)
        self._events = self._engine.create_event_buffer(64)
        self._turns: list[tuple[Any, int, Request]] = []
        for request in requests:
            options = og.RequestOptions()
            options.set_max_session_tokens(context)
            turn_of = self._engine.create_request(options=options)
            turn = og.TurnOptions(turn_of)
            turn.set_max_generated_tokens(request.left)
            sampling = request.wanted.sampling
            turn.set_do_sample(sampling.temperature > 0)
            if sampling.temperature > 0:
                turn.set_temperature(sampling.temperature)
                turn.set_top_p(sampling.top_p)
                turn.set_top_k(0)
            self._turns.append((turn_of, turn_of.begin_turn([*request.ids, *request.made], turn), request))
            if not request.made:
                request.prompt = Prompt(len(request.ids))

    def step(self) -> list[Step]:
        if not self._engine.has_pending_requests():
            return [Step(each.number, error="the runtime lost the request; send it again") for each in self.requests]
        steps = []
        for event in self._engine.run(self._events):
            request = next((request for turn, _, request in self._turns if turn == event.request), None)
            if request is None or request not in self.requests:
                continue
            flags, reason = int(event.flags.value), _REASONS.get(event.finish_reason.name, "")
            if flags & int(og.EngineEventFlags.FAILED.value):
                steps.append(Step(request.number, error=f"ONNX Runtime GenAI failed: {event.error_code.name}"))
            elif flags & int(og.EngineEventFlags.TOKEN.value):
                steps.append(request.took(int(event.token), self._ends, reason))
            elif reason:
                steps.append(Step(request.number, reason=reason))
        return steps

    def cancel(self, request: Request) -> None:
        for turn_of, turn, other in self._turns:
            if other is request:
                turn_of.cancel_turn(turn)


_REASONS: dict[str, Reason] = {
    "EOS": "stop",
    "STOP_STRING": "stop",
    "MAX_GENERATED_TOKENS": "length",
    "MAX_SESSION_TOKENS": "length",
}


def set_sampling(parameters: Any, sampling: Sampling, context: int) -> None:
    """Set how the tokens of a generator are chosen. The library checks a grammar only when it creates the generator."""
    options: dict[str, Any] = {"max_length": context, "do_sample": sampling.temperature > 0}
    if sampling.temperature > 0:
        options |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    if sampling.seed is not None:
        options["random_seed"] = sampling.seed
    parameters.set_search_options(**options)
    if sampling.guidance:
        parameters.set_guidance(sampling.guidance, _compact(sampling))


def _compact(sampling: Sampling) -> str:
    """Return the grammar. A JSON schema gets an option that forbids optional spaces, because a model could generate
    spaces without end. A schema that is not an object, such as `true`, becomes {}."""
    if sampling.guidance != "json_schema":
        return sampling.grammar
    schema = json.loads(sampling.grammar)
    return json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}}) if isinstance(schema, dict) else "{}"
