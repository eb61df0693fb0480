"""Tiny language models with known answers: folders of ONNX Runtime GenAI, with and without pictures, and GGUF files.

The models follow a table of successors. Asked anything, they answer `The camera sees a COLOUR door.`; COLOUR is the one
that the prompt names or the picture shows, and grey without one. If the prompt has the word ` story`, the sentence
repeats without end. A GGUF model knows only the table: its colour is always grey.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_PICTURE = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")
_SPECIAL = (END, START, STOP, *_PICTURE)
COLOURS = ("red", "green", "blue", "grey")
_WORDS = ("The", " camera", " sees", " a", *(f" {colour}" for colour in COLOURS), " door", ".", " The", " story", "\n")
_FEATURES = (*COLOURS, "story")
ANSWER = "The camera sees a {} door."
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONTEXT = 512
_CODES, _MEAN = 24, 32  # where the features of a token begin in its vector, and those of the whole prompt
_SIZE = 48
_HEADS, _SHARED_HEADS, _HEAD = 2, 1, 16


def _printable() -> dict[int, str]:
    """Return the characters that stand for bytes in a byte-level vocabulary, as GPT-2 defined them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the tokens with their numbers, and the merges that make words of bytes."""
    printable = _printable()
    tokens = [*_SPECIAL, *(printable[byte] for byte in range(256))]
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        parts = [printable[byte] for byte in word.encode()]
        whole = parts[0]
        for part in parts[1:]:
            if (whole, part) not in merges:
                merges.append((whole, part))
                tokens.append(whole + part)
            whole += part
    return {token: number for number, token in enumerate(tokens)}, merges


def _number(tokens: dict[str, int], word: str) -> int:
    printable = _printable()
    return tokens.get(word, tokens.get("".join(printable[byte] for byte in word.encode()), -1))


def _successors(tokens: dict[str, int]) -> dict[str, tuple[str, ...]]:
    colours = tuple(f" {colour}" for colour in COLOURS)
    table = {"\n": ("The",), "The": (" camera",), " The": (" camera",), " camera": (" sees",), " sees": (" a",)}
    return {**table, " a": colours, **dict.fromkeys(colours, (" door",)), " door": (".",), ".": (STOP, " The")}


def _embedding(tokens: dict[str, int]) -> NDArray[np.float32]:
    """Return a vector for each token: its code, if the table has it, and its features."""
    found = np.zeros((len(tokens), _SIZE), np.float32)
    for code, word in enumerate(_WORDS):
        found[_number(tokens, word), code] = 1
    for place, feature in enumerate(_FEATURES):
        found[_number(tokens, f" {feature}"), _CODES + place] = 1
    return found


def _head(tokens: dict[str, int]) -> NDArray[np.float32]:
    """Return the matrix that gives each token its score."""
    found = np.zeros((_SIZE, len(tokens)), np.float32)
    for word, following in _successors(tokens).items():
        for each in following:
            found[_WORDS.index(word), _number(tokens, each)] = 40
    for place, colour in enumerate(COLOURS):
        found[_MEAN + place, _number(tokens, f" {colour}")] = 8
    found[_WORDS.index(" a"), _number(tokens, " grey")] += 2  # without a colour
    found[_WORDS.index("."), _number(tokens, STOP)] += 4
    found[_MEAN + _FEATURES.index("story"), _number(tokens, " The")] = 8
    return found


def _attention(slow: int) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return the nodes from `embedded` to `hidden`: the mean of the features of all tokens is added."""
    width, shared = _HEADS * _HEAD, _SHARED_HEADS * _HEAD
    values = np.zeros((_SIZE, shared), np.float32)
    back = np.zeros((width, _SIZE), np.float32)
    for place in range(len(_FEATURES)):
        values[_CODES + place, place] = 1
        back[place, _MEAN + place] = 5000  # one word in a long prompt is enough
    weights = {
        "zero_queries": np.zeros((_SIZE, width), np.float32),
        "zero_keys": np.zeros((_SIZE, shared), np.float32),
        "values": values,
        "back": back,
        "one": np.array([1], np.int64),
        "int_one": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["lengths"], keepdims=0),
        helper.make_node("Sub", ["lengths", "int_one"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32),
        helper.make_node("Shape", ["attention_mask"], ["mask_shape"]),
        helper.make_node("Gather", ["mask_shape", "int_one"], ["total"]),
        helper.make_node("Squeeze", ["total"], ["total_scalar"]),
        helper.make_node("Cast", ["total_scalar"], ["total_length"], to=TensorProto.INT32),
        helper.make_node("MatMul", ["embedded", "zero_queries"], ["q"]),
        helper.make_node("MatMul", ["embedded", "zero_keys"], ["k"]),
        helper.make_node("MatMul", ["embedded", "values"], ["v"]),
        helper.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "past_key_values.0.key", "past_key_values.0.value", "seqlens_k", "total_length"],
            ["attended", "present.0.key", "present.0.value"],
            domain="com.microsoft",
            num_heads=_HEADS,
            kv_num_heads=_SHARED_HEADS,
        ),
        helper.make_node("MatMul", ["attended", "back"], ["means"]),
        helper.make_node("Tanh", ["means"], ["features"]),
        helper.make_node("Add", ["embedded", "features"], ["hidden_0"]),
    ]
    for turn in range(slow):  # work without an effect on the answer
        weights["wide"] = np.zeros((_SIZE, 4096), np.float32)
        weights["narrow"] = np.zeros((4096, _SIZE), np.float32)
        nodes += [
            helper.make_node("MatMul", [f"hidden_{turn}", "wide"], [f"wide_{turn}"]),
            helper.make_node("MatMul", [f"wide_{turn}", "narrow"], [f"narrow_{turn}"]),
            helper.make_node("Add", [f"hidden_{turn}", f"narrow_{turn}"], [f"hidden_{turn + 1}"]),
        ]
    nodes.append(helper.make_node("Identity", [f"hidden_{slow}"], ["hidden"]))
    return nodes, [numpy_helper.from_array(value, name) for name, value in weights.items()]


def _value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _save(path: Path, nodes: list[onnx.NodeProto], inputs: Any, outputs: Any, weights: list[onnx.TensorProto]) -> None:
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


def _save_decoder(path: Path, tokens: dict[str, int], *, slow: int, pictures: bool) -> None:
    nodes, weights = _attention(slow)
    weights.append(numpy_helper.from_array(_head(tokens), "head"))
    if pictures:
        first = _value("inputs_embeds", TensorProto.FLOAT, "batch", "length", _SIZE)
        nodes.insert(0, helper.make_node("Identity", ["inputs_embeds"], ["embedded"]))
    else:
        first = _value("input_ids", TensorProto.INT64, "batch", "length")
        weights.append(numpy_helper.from_array(_embedding(tokens), "embedding"))
        nodes.insert(0, helper.make_node("Gather", ["embedding", "input_ids"], ["embedded"]))
    nodes.append(helper.make_node("MatMul", ["hidden", "head"], ["logits"]))
    cache = ("batch", _SHARED_HEADS, "past", _HEAD), ("batch", _SHARED_HEADS, "total", _HEAD)
    _save(
        path,
        nodes,
        [
            first,
            _value("attention_mask", TensorProto.INT64, "batch", "all"),
            *(_value(f"past_key_values.0.{each}", TensorProto.FLOAT, *cache[0]) for each in ("key", "value")),
        ],
        [
            _value("logits", TensorProto.FLOAT, "batch", "length", len(tokens)),
            *(_value(f"present.0.{each}", TensorProto.FLOAT, *cache[1]) for each in ("key", "value")),
        ],
        weights,
    )


_PIXELS, _PICTURE_TOKENS = 28, 256


def _save_vision(path: Path) -> None:
    """Save the model that makes 256 equal vectors of a picture: the shares of red, green and blue above the mean."""
    colours = np.zeros((3, _SIZE), np.float32)
    for place in range(3):
        colours[:, _CODES + place] = -0.5
        colours[place, _CODES + place] = 1
    shape = np.array([1, _PICTURE_TOKENS, 1], np.int64)
    weights = {"colours": colours, "shape": shape, "axes": np.array([2, 3], np.int64)}
    weights |= {"one": np.array([1], np.int64), "flat": np.array([-1, _SIZE], np.int64)}
    nodes = [
        helper.make_node("ReduceMean", ["pixel_values", "axes"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "colours"], ["mixed"]),
        helper.make_node("Relu", ["mixed"], ["shares"]),
        helper.make_node("Unsqueeze", ["shares", "one"], ["single"]),
        helper.make_node("Tile", ["single", "shape"], ["tiled"]),
        helper.make_node("Reshape", ["tiled", "flat"], ["image_features"]),
    ]
    _save(
        path,
        nodes,
        [_value("pixel_values", TensorProto.FLOAT, "pictures", 3, _PIXELS, _PIXELS)],
        [_value("image_features", TensorProto.FLOAT, "tokens", _SIZE)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )


def _save_embedding(path: Path, tokens: dict[str, int]) -> None:
    """Save the model that puts the vectors of pictures in the place of their tokens."""
    weights = {
        "embedding": _embedding(tokens),
        "soft": np.array(tokens["<image_soft_token>"], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["words"]),
        helper.make_node("Equal", ["input_ids", "soft"], ["is_picture"]),
        helper.make_node("NonZero", ["is_picture"], ["found"]),
        helper.make_node("Transpose", ["found"], ["places"], perm=[1, 0]),
        helper.make_node("ScatterND", ["words", "places", "image_features"], ["inputs_embeds"]),
    ]
    _save(
        path,
        nodes,
        [
            _value("input_ids", TensorProto.INT64, "batch", "length"),
            _value("image_features", TensorProto.FLOAT, "tokens", _SIZE),
        ],
        [_value("inputs_embeds", TensorProto.FLOAT, "batch", "length", _SIZE)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )


def _write_tokenizer(folder: Path, template: str | None) -> dict[str, int]:
    tokens, merges = vocabulary()
    special = [
        {"id": tokens[each], "content": each, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": True}
        for each in _SPECIAL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    described = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": tokens, "merges": [" ".join(pair) for pair in merges], "unk_token": None},
    }
    (folder / "tokenizer.json").write_text(json.dumps(described))
    config: dict[str, Any] = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": END,
        "eos_token": STOP,
        "pad_token": END,
        "add_prefix_space": False,
        "add_bos_token": False,
        "model_max_length": CONTEXT,
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokens


def write_genai(
    folder: Path, *, slow: int = 0, pictures: bool = False, template: str | None = TEMPLATE, context: int = CONTEXT
) -> Path:
    """Write a folder of ONNX Runtime GenAI and return it. `slow`: how often each token does work without an effect,
    about 0.1 ms each. `pictures`: it takes pictures, with the token <start_of_image> for each in the prompt."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = _write_tokenizer(folder, template)
    _save_decoder(folder / "decoder.onnx", tokens, slow=slow, pictures=pictures)
    names = {"key": "past_key_values.%d.key", "value": "past_key_values.%d.value"}
    inputs = {"attention_mask": "attention_mask", "past_key_names": names["key"], "past_value_names": names["value"]}
    first = "inputs_embeds" if pictures else "input_ids"
    model: dict[str, Any] = {
        "bos_token_id": tokens[END],
        "eos_token_id": tokens[STOP],
        "pad_token_id": tokens[END],
        "context_length": context,
        "type": "gemma3" if pictures else "llama",
        "vocab_size": len(tokens),
        "decoder": {
            "session_options": {"log_id": "tiny", "provider_options": []},
            "filename": "decoder.onnx",
            "head_size": _HEAD,
            "hidden_size": _SIZE,
            "num_attention_heads": _HEADS,
            "num_hidden_layers": 1,
            "num_key_value_heads": _SHARED_HEADS,
            "inputs": {first: first, **inputs},
            "outputs": {
                "logits": "logits",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
        },
    }
    if pictures:
        _save_vision(folder / "vision.onnx")
        _save_embedding(folder / "embedding.onnx", tokens)
        steps: list[tuple[str, dict[str, Any]]] = [
            ("DecodeImage", {"color_space": "RGB"}),
            ("Resize", {"width": _PIXELS, "height": _PIXELS, "keep_aspect_ratio": 0}),
            ("Rescale", {"rescale_factor": 1 / 255}),
            ("Permute3D", {"dims": [2, 0, 1]}),
        ]
        transforms = [{"operation": {"name": kind.lower(), "type": kind, "attrs": values}} for kind, values in steps]
        described = {"processor": {"name": "tiny", "transforms": transforms}}
        (folder / "processor_config.json").write_text(json.dumps(described))
        model["vision"] = {
            "filename": "vision.onnx",
            "config_filename": "processor_config.json",
            "inputs": {"pixel_values": "pixel_values"},
            "outputs": {"image_features": "image_features"},
        }
        model["embedding"] = {
            "filename": "embedding.onnx",
            "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
            "outputs": {"inputs_embeds": "inputs_embeds"},
        }
    search = {"do_sample": False, "max_length": context, "past_present_share_buffer": True}
    (folder / "genai_config.json").write_text(json.dumps({"model": model, "search": search}, indent=1))
    return folder


# Numbers of GGUF, version 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
_U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5
_ALIGNMENT = 32


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(key: str, value: object) -> bytes:
    head = _text(key)
    if isinstance(value, bool):
        return head + struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return head + struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return head + struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return head + struct.pack("<I", _STRING) + _text(value)
    assert isinstance(value, Sequence)
    if isinstance(value[0], str):
        return head + struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
    return head + struct.pack("<IIQ", _ARRAY, _I32, len(value)) + struct.pack(f"<{len(value)}i", *value)


def write_gguf(path: Path) -> Path:
    """Write a GGUF file of the architecture llama and return its path."""
    tokens, merges = vocabulary()
    heads, feed = 2, 64
    size = 64
    embedding = np.zeros((len(tokens), size), np.float32)
    embedding[:, :_SIZE] = _embedding(tokens)
    embedding[:, _CODES:] = 0
    embedding[:, size - 1] = 0.1  # so that the vector of no token is zero
    output = np.zeros((len(tokens), size), np.float32)
    output[:, :_SIZE] = _head(tokens).T
    one = np.ones(size, np.float32)
    tensors: dict[str, NDArray[np.float32]] = {
        "token_embd.weight": embedding,
        "output_norm.weight": one,
        "output.weight": output,
        "blk.0.attn_norm.weight": one,
        "blk.0.ffn_norm.weight": one,
        **{f"blk.0.attn_{each}.weight": np.zeros((size, size), np.float32) for each in ("q", "k", "v", "output")},
        "blk.0.ffn_gate.weight": np.zeros((feed, size), np.float32),
        "blk.0.ffn_up.weight": np.zeros((feed, size), np.float32),
        "blk.0.ffn_down.weight": np.zeros((size, feed), np.float32),
    }
    entries = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": 1,
        "llama.block_count": 1,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": size,
        "llama.feed_forward_length": feed,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": size // heads,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [3 if token in _SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": tokens[END],
        "tokenizer.ggml.eos_token_id": tokens[STOP],
        "tokenizer.ggml.padding_token_id": tokens[END],
        "tokenizer.ggml.unknown_token_id": tokens[END],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries))
    head += b"".join(_entry(key, value) for key, value in entries.items())
    offset, data = 0, b""
    for name, tensor in tensors.items():
        half = tensor.ndim > 1
        raw = (tensor.astype(np.float16) if half else tensor).tobytes()
        head += _text(name) + struct.pack("<I", tensor.ndim)
        head += b"".join(struct.pack("<Q", length) for length in reversed(tensor.shape))
        head += struct.pack("<IQ", 1 if half else 0, offset)
        raw += bytes(-len(raw) % _ALIGNMENT)
        data, offset = data + raw, offset + len(raw)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)
    return path
