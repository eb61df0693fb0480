"""OpenVINO GenAI: folders with openvino_model.xml, and GGUF files. It batches requests by itself at each step, and
keeps the beginnings of prompts that several requests share."""

from __future__ import annotations

import json
import sys
from typing import Any

# As in `backends/openvino.py`: without the package there is no telemetry.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None is how an import is blocked

import openvino_genai as ov

from edged.backends.contract import one_line
from edged.backends.language.contract import Generation, Opening, Prompt, Reason, Step
from edged.errors import EngineUnusable, InvalidInput

_PROBE = [{"role": "user", "content": "x"}]
_REASONS: dict[str, Reason] = {"STOP": "stop", "LENGTH": "length"}
_BLOCK = 32  # tokens, on a CPU


class _Runtime:
    def version(self) -> str:
        # The library's version has a build number: 2026.4.1.0-3117-f2e80cb.
        return str(ov.__version__).partition("-")[0]

    def open(self, how: Opening) -> OpenvinoLanguageModel:
        try:
            return OpenvinoLanguageModel(how)
        except (RuntimeError, ValueError, OSError) as error:
            raise EngineUnusable(f"OpenVINO GenAI refuses the model: {one_line(error)}") from error


RUNTIME = _Runtime()


class _Request:
    """A request, its handle, and the text that was decoded since the last look."""

    def __init__(self, number: int, handle: Any, tokenizer: Any, tokens: int) -> None:
        self.number, self.handle, self.prompt = number, handle, Prompt(tokens)
        self.is_new = True
        self._text = ""
        self._streamer = ov.TextStreamer(tokenizer, self._take)

    def _take(self, text: str) -> ov.StreamingStatus:
        self._text += text
        return ov.StreamingStatus.RUNNING

    def decode(self, ids: list[int], is_last: bool) -> str:
        for each in ids:
            self._streamer.write(each)
        if is_last:
            self._streamer.end()
        text, self._text = self._text, ""
        return text


class OpenvinoLanguageModel:
    """A model of OpenVINO GenAI."""

    takes_pictures = False

    def __init__(self, how: Opening) -> None:
        scheduler = ov.SchedulerConfig()
        scheduler.max_num_seqs = how.most
        scheduler.enable_prefix_caching = True
        # One request more, for the beginnings that are kept.
        scheduler.num_kv_blocks = -(-how.context // _BLOCK) * (how.most + 1)
        path = how.file if how.file.endswith(".gguf") else how.file.rpartition("/")[0]
        properties = {"INFERENCE_NUM_THREADS": how.threads}
        self._pipeline = ov.ContinuousBatchingPipeline(path, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._ends = {self._tokenizer.get_eos_token_id(), *self._pipeline.get_config().stop_token_ids}
        template = str(self._tokenizer.get_original_chat_template())
        self.context = how.context
        self.has_template = bool(template)
        self.has_tools = "tools" in template
        self._requests: dict[int, _Request] = {}

    def begin(self, number: int, wanted: Generation) -> int:
        if wanted.pictures:
            raise InvalidInput("the model takes no pictures; use a vision-language model")
        prompt = self._formatted(wanted) if wanted.messages else wanted.prompt
        ids = self._tokenizer.encode(prompt, add_special_tokens=not wanted.messages).input_ids
        tokens = int(ids.shape[1])
        if not tokens:
            raise InvalidInput("the prompt is empty; send at least one character")
        if tokens >= self.context:
            raise InvalidInput(
                f"the prompt has {tokens} tokens, and prompt and answer may have {self.context} together; shorten it,"
                " or raise the model's setting language.context"
            )
        try:
            config = self._config(wanted, self.context - tokens)
            handle = self._pipeline.add_request(number, ids, config)
        except (RuntimeError, ValueError) as error:
            raise InvalidInput(f"the request cannot be used: {one_line(error)}") from error
        self._requests[number] = _Request(number, handle, self._tokenizer, tokens)
        return tokens

    def _formatted(self, wanted: Generation) -> str:
        messages = json.loads(wanted.messages)
        for message in messages:
            if isinstance(message.get("content"), list):
                message["content"] = "".join(part["text"] for part in message["content"])
        tools = {"tools": json.loads(wanted.tools)} if wanted.tools else {}
        try:
            return str(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, **tools))
        except (RuntimeError, ValueError) as error:
            raise InvalidInput(f"the model's chat template refuses the messages: {one_line(error)}") from error

    def _config(self, wanted: Generation, room: int) -> Any:
        sampling = wanted.sampling
        config = ov.GenerationConfig()
        config.eos_token_id, config.stop_token_ids = self._tokenizer.get_eos_token_id(), self._ends
        config.max_new_tokens = min(wanted.most_tokens, room)
        config.apply_chat_template = False
        config.do_sample = sampling.temperature > 0
        if config.do_sample:
            config.temperature, config.top_p, config.top_k = sampling.temperature, sampling.top_p, 0
        if sampling.seed is not None:
            config.rng_seed = sampling.seed
        if sampling.guidance == "json_schema":
            config.structured_output_config = ov.StructuredOutputConfig(json_schema=sampling.grammar)
        elif sampling.guidance == "regex":
            config.structured_output_config = ov.StructuredOutputConfig(regex=sampling.grammar)
        config.validate()
        return config

    def cancel(self, number: int) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            request.handle.cancel()

    @property
    def is_busy(self) -> bool:
        return bool(self._requests)

    def step(self) -> list[Step]:
        if self._pipeline.has_non_finished_requests():
            try:
                self._pipeline.step()
            except RuntimeError as error:  # the pipeline cannot be used any more
                raise EngineUnusable(f"OpenVINO GenAI failed: {one_line(error)}") from error
        steps = []
        for number, request in list(self._requests.items()):
            if request.handle.can_read():
                (output,) = request.handle.read().values()
                reason = _REASONS.get(output.finish_reason.name, "")
                ids = [each for each in output.generated_ids if each not in self._ends]
                text = request.decode(ids, bool(reason))
                prompt = request.prompt if request.is_new else None
                request.is_new = False
                steps.append(Step(number, text, len(output.generated_ids), reason, prompt=prompt))
                if reason:
                    del self._requests[number]
            elif request.handle.get_status().name not in ("RUNNING", "FINISHED"):
                del self._requests[number]
                steps.append(Step(number, error=f"the runtime ended the request: {request.handle.get_status().name}"))
        return steps
