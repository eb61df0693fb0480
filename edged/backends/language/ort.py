"""ONNX Runtime GenAI. A folder with genai_config.json is a model.

On a CPU its engine computes a batch that cannot change: a request that comes later would wait for the whole batch.
Therefore edged makes the batches: requests that run are moved into a new batch together with those that wait, if
reading their tokens again costs less than the batch saves. Requests that cannot be in a batch (a seed, guidance,
pictures, a long prompt) have a generator each, and all groups take turns, a token at a time.

A generator that has ended is kept. The next request with the same beginning, such as a system prompt, continues it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

# Read when the library is loaded; without it the library writes into the home folder.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime_genai as og

from edged.backends.contract import one_line
from edged.backends.language.contract import Generation, Opening, Prompt, Reason, Sampling, Step
from edged.errors import EngineUnusable, InvalidInput

_CHUNK = 128  # tokens of a prompt that are read at once, so that other requests continue in between
_SHORT_PROMPT = 512  # tokens; a longer prompt is not read in a batch
_LEAST_SHARE = 0.5  # of a prompt that must be known; otherwise the generator is kept for a request that fits better
_KEPT = 2  # generators that have ended
_WORTH = 4  # a request is moved if it has read at most this many times the tokens that it may still generate
_FAR = 256  # tokens that a request is expected to generate at most
_PROBE = json.dumps([{"role": "user", "content": "x"}])
# What stands for a picture in a prompt, by the model's type. {} is the picture's number.
_MARKS = {
    "phi3v": "<|image_{}|>\n",
    "phi4mm": "<|image_{}|>",
    "gemma3": "<start_of_image>",
    "gemma4": "<|image|>",
    "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen3_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "fara": "<|vision_start|><|image_pad|><|vision_end|>",
    "lfm2_vl": "<image>",
    "mistral3": "[IMG]",
}


class _Runtime:
    def version(self) -> str:
        from importlib.metadata import PackageNotFoundError, version

        for name in ("onnxruntime-genai", "onnxruntime-genai-cuda"):
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return ""

    def open(self, how: Opening) -> OrtLanguageModel:
        try:
            return OrtLanguageModel(how)
        except (RuntimeError, ValueError, OSError) as error:
            raise EngineUnusable(f"ONNX Runtime GenAI refuses the model: {one_line(error)}") from error


RUNTIME = _Runtime()


class _Request:
    """A request and the tokens that it has read and made."""

    def __init__(self, number: int, ids: list[int], wanted: Generation, stream: Any, inputs: Any = None) -> None:
        self.number, self.ids, self.wanted, self.inputs = number, ids, wanted, inputs
        self.made: list[int] = []
        self.prompt: Prompt | None = None  # until it is reported with the first token
        self._stream = stream

    @property
    def left(self) -> int:
        return self.wanted.most_tokens - len(self.made)

    @property
    def may_share(self) -> bool:
        """Whether it can be in a batch."""
        sampling = self.wanted.sampling
        is_plain = sampling.seed is None and not sampling.guidance and self.inputs is None
        return is_plain and len(self.ids) <= _SHORT_PROMPT

    def is_worth_moving(self) -> bool:
        return len(self.ids) + len(self.made) <= _WORTH * min(self.left, _FAR)

    def took(self, token: int, ends: Sequence[int], reason: Reason = "") -> Step:
        """Return the step for a new token; `ends` are the tokens that end a text."""
        self.made.append(token)
        reason = "stop" if token in ends else reason or ("length" if self.left <= 0 else "")
        text = "" if token in ends else self._stream.decode(token)
        prompt, self.prompt = self.prompt, None
        return Step(self.number, text, 1, reason, prompt=prompt)


class _Group(Protocol):
    requests: list[_Request]

    def step(self) -> list[Step]: ...
    def cancel(self, request: _Request) -> None: ...


class OrtLanguageModel:
    """A model of ONNX Runtime GenAI."""

    def __init__(self, how: Opening) -> None:
        folder = Path(how.file).parent
        options = {"intra_op_num_threads": how.threads, "inter_op_num_threads": 1}
        overlay = {"model": {"decoder": {"session_options": options}}}
        self._model, self.fallback = _opened(str(folder), json.dumps(overlay))
        described = json.loads(Path(how.file).read_bytes())["model"]
        self.context = min(how.context, int(described.get("context_length", how.context)))
        self._kind = str(self._model.type)
        self._tokenizer = og.Tokenizer(self._model)
        self._ends = tuple(int(each) for each in self._tokenizer.eos_token_ids)
        self.takes_pictures = "vision" in described
        self._processor = self._model.create_multimodal_processor() if self.takes_pictures else None
        self.has_template = self._has_template()
        self.has_tools = self.has_template and any("tools" in text for text in _templates(folder))
        self._most = how.most
        self._waiting: list[_Request] = []
        self._groups: list[_Group] = []
        self._kept: list[_Kept] = []

    def _has_template(self) -> bool:
        try:
            return bool(self._tokenizer.apply_chat_template(_PROBE))
        except RuntimeError:
            return False

    # -- requests ----------------------------------------------------------------------------------------------------

    def begin(self, number: int, wanted: Generation) -> int:
        prompt = self._formatted(wanted) if wanted.messages else wanted.prompt
        inputs = None
        try:
            if self._processor is not None:
                images = og.Images.open_bytes(*map(_whole, wanted.pictures)) if wanted.pictures else None
                inputs = self._processor(prompt, images=images)
                ids: list[int] = inputs["input_ids"].as_numpy().ravel().tolist() if _has_ids(inputs) else []
            else:
                ids = [int(each) for each in self._tokenizer.encode(prompt)]
        except RuntimeError as error:
            raise InvalidInput(f"the prompt cannot be used: {one_line(error)}") from error
        if not ids and inputs is None:
            raise InvalidInput("the prompt is empty; send at least one character")
        if len(ids) >= self.context:
            raise InvalidInput(
                f"the prompt has {len(ids)} tokens, and prompt and answer may have {self.context} together; shorten it,"
                " or raise the model's setting language.context"
            )
        request = _Request(number, ids, wanted, self._tokenizer.create_stream(), inputs)
        if wanted.sampling.guidance:  # an invalid grammar must be refused now
            self._groups.append(self._alone(request))
        else:
            self._waiting.append(request)
        return len(ids)

    def _formatted(self, wanted: Generation) -> str:
        messages, count = json.loads(wanted.messages), 0
        for message in messages:
            if isinstance(message.get("content"), list):
                text = ""
                for part in message["content"]:
                    count += part["type"] == "image"
                    text += self._mark(count) if part["type"] == "image" else part["text"]
                message["content"] = text
        try:
            tools = {"tools": wanted.tools} if wanted.tools else {}
            return str(self._tokenizer.apply_chat_template(json.dumps(messages), **tools))
        except RuntimeError as error:
            raise InvalidInput(f"the model's chat template refuses the messages: {one_line(error)}") from error

    def _mark(self, number: int) -> str:
        mark = _MARKS.get(self._kind)
        if mark is None:
            raise InvalidInput(f"it is not known how a prompt of a model of type {self._kind!r} names a picture")
        return mark.format(number)

    def cancel(self, number: int) -> None:
        self._waiting = [each for each in self._waiting if each.number != number]
        for group in self._groups:
            for request in group.requests:
                if request.number == number:
                    group.cancel(request)
                    group.requests.remove(request)
                    break
        self._groups = [group for group in self._groups if group.requests]

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting or self._groups)

    # -- work --------------------------------------------------------------------------------------------------------

    def step(self) -> list[Step]:
        steps: list[Step] = []
        while self._waiting:
            steps += self._start()
        for group in self._groups:
            try:
                steps += group.step()
            except RuntimeError as error:
                steps += [Step(each.number, error=one_line(error)) for each in group.requests]
        ended = {step.number for step in steps if step.reason or step.error}
        if ended:
            for group in self._groups:
                self._keep(group, ended)
                group.requests = [each for each in group.requests if each.number not in ended]
            self._groups = [group for group in self._groups if group.requests]
        return steps

    def _start(self) -> list[Step]:
        """Start waiting requests: as a batch if there are several, or if running ones can join; otherwise one alone."""
        joining = [each for each in self._waiting if each.may_share][: self._most]
        movable = [
            each
            for group in self._groups
            if isinstance(group, _Batch) or (isinstance(group, _Alone) and group.is_reading_done)
            for each in group.requests
            if each.may_share
        ]
        # A batch moves as a whole, or not at all.
        free = self._most - len(joining)
        moved = movable if joining and len(movable) <= free and all(map(_Request.is_worth_moving, movable)) else []
        together = [*moved, *joining]
        try:
            if len(together) > 1:
                batch = _Batch(self._model, together, self._ends, self.context)
                for group in self._groups:
                    for each in [each for each in group.requests if each in moved]:
                        group.cancel(each)
                        group.requests.remove(each)
                self._groups = [group for group in self._groups if group.requests]
                self._groups.append(batch)
                self._waiting = [each for each in self._waiting if each not in joining]
                return []
            request = self._waiting.pop(0)
            together = [request]
            self._groups.append(self._alone(request))
        except (RuntimeError, ValueError, TypeError, InvalidInput) as error:
            self._waiting = [each for each in self._waiting if each not in together]
            return [Step(each.number, error=one_line(error)) for each in together if each not in moved]
        return []

    def _alone(self, request: _Request) -> _Alone:
        if request.inputs is None and request.wanted.sampling.seed is None:
            found = max(self._kept, key=lambda kept: kept.shared(request), default=None)
            if found is not None and found.shared(request) >= _LEAST_SHARE * len(request.ids):
                self._kept.remove(found)
                try:
                    return _Alone(found.generator, request, self._ends, found.rewound(request))
                except RuntimeError:  # not every model can go back
                    pass
        parameters = og.GeneratorParams(self._model)
        _set(parameters, request.wanted.sampling, self.context)
        try:
            return _Alone(og.Generator(self._model, parameters), request, self._ends)
        except RuntimeError as error:
            if request.wanted.sampling.guidance:
                raise InvalidInput(
                    f"the {request.wanted.sampling.guidance} cannot be used: {one_line(error)}"
                ) from None
            raise

    def _keep(self, group: _Group, ended: set[int]) -> None:
        """Keep the generator of an ended request, within the number of requests whose memory is planned for."""
        if not isinstance(group, _Alone) or not any(each.number in ended for each in group.requests):
            return
        (request,) = group.requests
        if request.inputs is None and request.wanted.sampling.seed is None and group.is_reading_done:
            self._kept.append(_Kept(group.generator, [*request.ids, *request.made[:-1]], request.wanted.sampling))
        running = sum(len(each.requests) for each in self._groups)
        del self._kept[: max(0, len(self._kept) - min(_KEPT, max(1, self._most - running)))]


class _Kept:
    """The generator of an ended request, and the tokens that it knows."""

    def __init__(self, generator: Any, ids: list[int], sampling: Sampling) -> None:
        self.generator, self._ids, self._sampling = generator, ids, sampling

    def shared(self, request: _Request) -> int:
        """Return how many tokens of a request it knows. The last one is always read again, which gives the scores."""
        if request.wanted.sampling != self._sampling:
            return 0
        most = min(len(self._ids), len(request.ids) - 1)
        return next((i for i in range(most) if self._ids[i] != request.ids[i]), most)

    def rewound(self, request: _Request) -> int:
        known = self.shared(request)
        self.generator.rewind_to(known)
        return known


class _Alone:
    """A request with a generator of its own."""

    def __init__(self, generator: Any, request: _Request, ends: Sequence[int], known: int = 0) -> None:
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

    def cancel(self, request: _Request) -> None:
        """Nothing to do: a generator works only when it is asked to."""


class _Batch:
    """Requests that are computed together."""

    def __init__(self, model: Any, requests: list[_Request], ends: Sequence[int], context: int) -> None:
        self.requests, self._ends = list(requests), ends
        self._engine = og.Engine(model)
        self._events = self._engine.create_event_buffer(64)
        self._turns: list[tuple[Any, int, _Request]] = []
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
            return [Step(each.number, error="the engine has lost the request") for each in self.requests]
        steps = []
        for event in self._engine.run(self._events):
            request = next((request for turn, _, request in self._turns if turn == event.request), None)
            if request is None or request not in self.requests:
                continue
            flags, reason = int(event.flags.value), _REASONS.get(event.finish_reason.name, "")
            if flags & int(og.EngineEventFlags.FAILED.value):
                steps.append(Step(request.number, error=f"the engine failed: {event.error_code.name}"))
            elif flags & int(og.EngineEventFlags.TOKEN.value):
                steps.append(request.took(int(event.token), self._ends, reason))
            elif reason:
                steps.append(Step(request.number, reason=reason))
        return steps

    def cancel(self, request: _Request) -> None:
        for turn_of, turn, other in self._turns:
            if other is request:
                turn_of.cancel_turn(turn)


_REASONS: dict[str, Reason] = {
    "EOS": "stop",
    "STOP_STRING": "stop",
    "MAX_GENERATED_TOKENS": "length",
    "MAX_SESSION_TOKENS": "length",
}


def _set(parameters: Any, sampling: Sampling, context: int) -> None:
    options: dict[str, Any] = {"max_length": context, "do_sample": sampling.temperature > 0}
    if sampling.temperature > 0:
        options |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    if sampling.seed is not None:
        options["random_seed"] = sampling.seed
    parameters.set_search_options(**options)
    if sampling.guidance:
        parameters.set_guidance(sampling.guidance, _compact(sampling))


def _compact(sampling: Sampling) -> str:
    """Return the grammar. In JSON no spaces may be generated, of which a model could make any number."""
    if sampling.guidance != "json_schema":
        return sampling.grammar
    schema = json.loads(sampling.grammar)
    return json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}}) if isinstance(schema, dict) else "{}"


def _opened(folder: str, overlay: str) -> tuple[Any, str]:
    """Open a model on the devices of its configuration, or on the CPU if that fails. Return it, and why it is not on
    those devices."""
    config = og.Config(folder)
    config.overlay(overlay)
    try:
        return og.Model(config), ""
    except RuntimeError as error:
        config = og.Config(folder)
        config.clear_providers()
        config.overlay(overlay)
        return og.Model(config), one_line(error)


def _templates(folder: Path) -> list[str]:
    found = []
    for name in ("tokenizer_config.json", "chat_template.jinja", "chat_template.json"):
        try:
            found.append((folder / name).read_text("utf-8", "replace"))
        except OSError:
            continue
    return found


def _whole(picture: bytes) -> bytes:
    """Return a picture that is complete: the runtime's decoder ends the process at a damaged JPEG. Raises
    InvalidImage."""
    from edged.vision import draw, image  # OpenCV, which few models need

    return draw.encode_jpeg(image.decode(picture), quality=95)


def _has_ids(inputs: Any) -> bool:
    return "input_ids" in inputs.keys()  # noqa: SIM118 - it is not a mapping
