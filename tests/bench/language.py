"""How fast a language model is through edged, compared with its runtime alone, as ratios.

python -m tests.bench.language [FOLDER_OR_GGUF] [--rounds N] [--tokens N]

Without a model it measures a tiny one with much work for each token. The runtime alone runs in its own process with as
many threads. `interleaved`: four requests take turns in the runtime alone, a token each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edged.models import language
from edged.shapes import MODEL_PATH, Scene
from tests.integration.daemon import Daemon, wait_for
from tests.tiny_language import write_genai

_STORIES = [f"Tell a long story about {each}." for each in ("a red door", "a green car", "a blue dog", "a grey house")]
_BARE = """
import json, sys, time
from edged.backends.language import registry
from edged.backends.language.contract import Opening
runtime, file, threads, tokens, stories = json.loads(sys.argv[1])
registry.load(runtime)  # sets the environment of the runtime
def chat(text): return [{"role": "user", "content": text}]
if runtime == "onnxruntime_genai":
    import onnxruntime_genai as og
    config = og.Config(file.rpartition("/")[0])
    options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = og.Model(config); tokenizer = og.Tokenizer(model)
    def run(stories):
        made = []
        for story in stories:
            ids = tokenizer.encode(tokenizer.apply_chat_template(json.dumps(chat(story))))
            parameters = og.GeneratorParams(model)
            parameters.set_search_options(max_length=len(ids) + tokens, do_sample=False)
            made.append(og.Generator(model, parameters)); made[-1].append_tokens(ids)
        count = 0
        for _ in range(tokens):
            for each in made:
                if not each.is_done():
                    each.generate_next_token(); count += 1
        return count
else:
    import openvino_genai as ov
    scheduler = ov.SchedulerConfig()
    pipeline = ov.ContinuousBatchingPipeline(file, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    tokenizer = pipeline.get_tokenizer()
    def run(stories):
        count = 0
        for number, story in enumerate(stories):  # alone, one after the other
            config = ov.GenerationConfig(); config.max_new_tokens = tokens; config.apply_chat_template = False
            config.eos_token_id = tokenizer.get_eos_token_id()
            ids = tokenizer.encode(tokenizer.apply_chat_template(chat(story), True), add_special_tokens=False).input_ids
            handle = pipeline.add_request(number, ids, config)
            while pipeline.has_non_finished_requests(): pipeline.step()
            count += len(handle.read_all()[0].generated_ids)
        return count
run(stories[:1])
for line in sys.stdin:
    began = time.monotonic()
    count = run(stories[: int(line)])
    print(count / (time.monotonic() - began), flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eb-") as folder:
        source = arguments.model or write_genai(Path(folder) / "tiny", slow=200)
        main_file = language.main_file(source.absolute())
        if main_file is None:
            parser.error(f"{source} is not a language model")
        daemon = Daemon("--model", f"chat={main_file if source.is_file() else source.absolute()}", builds=False)
        daemon.models.joinpath("shapes.onnx").write_bytes(MODEL_PATH.read_bytes())
        with daemon, daemon.client() as client:
            wait_for("the model", lambda: any(each.state == "ready" for each in client.language_models()), 300)
            measure(daemon, client, main_file, arguments.rounds, arguments.tokens)


def measure(daemon: Daemon, client: Any, file: Path, rounds: int, tokens: int) -> None:
    (served,) = client.language_models()
    threads = max(1, (os.cpu_count() or 1) - 1)
    given = json.dumps([served.runtime, str(file), threads, tokens, _STORIES])
    command = [sys.executable, "-c", _BARE, given]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bare:
        assert bare.stdin is not None
        assert bare.stdout is not None

        def alone(count: int) -> float:
            assert bare.stdin is not None
            assert bare.stdout is not None
            bare.stdin.write(f"{count}\n")
            bare.stdin.flush()
            return float(bare.stdout.readline())

        edged = lambda count: rate(client, _STORIES[:count], tokens)  # noqa: E731
        edged(1)
        alone(1)
        print(f"{served.runtime} {served.runtime_version}, {threads} threads, {tokens} tokens, {rounds} rounds")
        show("one request: edged / the runtime alone", [edged(1) / alone(1) for _ in range(rounds)])
        show("four at once: edged / interleaved alone", [edged(4) / alone(4) for _ in range(rounds)])
        bare.stdin.close()
    show("tokens after a request is closed", [closed(daemon, client) for _ in range(rounds)])
    show("p99 of frames with a chat / without", frames(daemon, rounds))


def rate(client: Any, stories: Sequence[str], tokens: int) -> float:
    """Return the tokens per second of answers at once."""
    counts = [0] * len(stories)

    def ask(place: int) -> None:
        counts[place] = list(client.chat("chat", stories[place], max_tokens=tokens, temperature=0.0))[-1].tokens

    began = time.monotonic()
    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(stories))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(counts) / (time.monotonic() - began)


def closed(daemon: Daemon, client: Any) -> float:
    """Return by how many tokens' time an answer is delayed by a request that was closed just before."""

    number = iter(range(1000))

    def first() -> float:
        began = time.monotonic()
        with client.chat("chat", f"{next(number):03} colours, please.", max_tokens=1) as texts:
            next(iter(texts))
        return time.monotonic() - began

    usual = statistics.median(first() for _ in range(5))
    texts = client.chat("chat", _STORIES[0], max_tokens=200)
    times = []
    for _, _ in zip(range(12), texts, strict=False):
        times.append(time.monotonic())
    token = statistics.median(b - a for a, b in itertools.pairwise(times[2:]))
    texts.close()
    return max(0.0, first() - usual) / token


def frames(daemon: Daemon, rounds: int, model: str = "chat") -> list[float]:
    """Return the p99 of frames while a chat runs, over that without one, for each round."""
    picture, stop = Scene(3).frame(0)[0], threading.Event()
    daemon.ready("shapes")

    def chat() -> None:
        with daemon.client() as client:
            while not stop.is_set():
                with client.chat(model, _STORIES[0], max_tokens=200) as texts:
                    for _ in texts:
                        if stop.is_set():
                            return

    def p99(client: Any) -> float:
        times = []
        for _ in range(300):
            began = time.monotonic()
            client.infer("shapes", picture)
            times.append(time.monotonic() - began)
            time.sleep(0.02)
        return sorted(times)[-4]

    found = []
    with daemon.client() as client:
        p99(client)
        for _ in range(rounds):
            quiet = p99(client)
            stop.clear()
            chatting = threading.Thread(target=chat)
            chatting.start()
            time.sleep(0.5)
            found.append(p99(client) / quiet)
            stop.set()
            chatting.join()
    return found


def show(what: str, ratios: Sequence[float]) -> None:
    print(f"{what:45} {statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


if __name__ == "__main__":
    main()
