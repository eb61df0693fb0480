"""Requests to language models: grammars, schemas as expressions, calls of tools, stops, and turns."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as some

from edged.api.language import generate, grammar, tools
from edged.api.language.requests import ChatMessage, ChatRequest, generation
from edged.api.language.schema_regex import regex_of
from edged.errors import InvalidInput, NotReady, Overloaded
from edged.host.language import StopFinder
from edged.language.turns import Turns
from edged.models.entries import ModelEntry
from edged.models.language import LanguageFiles, LanguageSettings
from edged.proto import open_inference_pb2 as pb

_PERSON = {
    "type": "object",
    "properties": {"person": {"type": "boolean"}, "where": {"type": "string", "maxLength": 12}},
    "required": ["person", "where"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "schema",
    [
        _PERSON,
        {"type": "object"},
        {"anyOf": [{"const": 1}, {"type": "null"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"type": "integer"}}}},
        {"type": ["string", "null"]},
        {"type": "string", "pattern": "[a-z]{2,4}"},
    ],
)
def test_check_schema_accepts_what_runtimes_understand(schema: dict[str, Any]) -> None:
    assert grammar.check_schema(json.dumps(schema)) == schema


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"type": "nonsense"}',
        '{"properties": {"a": 5}}',
        '{"properties": []}',
        '{"required": "a"}',
        '{"enum": []}',
        '{"maxLength": "5"}',
        '{"$ref": "#/$defs/missing"}',
        '{"$ref": "https://example.org/schema"}',
        '{"pattern": "((("}',
        '{"maxLength": 2.5}',
        '{"maxLength": -1}',
        '{"maxItems": 1000000000}',
        '{"minLength": 5, "maxLength": 3}',
        '{"minimum": 10, "maximum": 5}',
        '{"type": 5}',
        '{"type": [[1]]}',
        '{"required": [{}]}',
        '{"anyOf": 5}',
        '{"anyOf": []}',
        '{"$defs": [1]}',
        '{"patternProperties": {"(((": {}}}',
        json.dumps({"type": "string", "description": "x" * 70_000}),
    ],
)
def test_check_schema_refuses_what_may_end_a_runtime(text: str) -> None:
    with pytest.raises(InvalidInput):
        grammar.check_schema(text)


def test_check_schema_refuses_one_that_is_too_deep() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidInput):
        grammar.check_schema(json.dumps(schema))


@pytest.mark.parametrize("text", ["yes|no", "[0-9]{4}-[0-9]{2}", "(?:a|b)+", r"\d+\.\d*", r"[^\]\-x]?", "é ü"])
def test_check_regex_accepts_plain_expressions(text: str) -> None:
    grammar.check_regex(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "(((",
            "[",
            "a)",
            "(?=a)",
            r"(a)\1",
            "(?P<x>a)",
            "x" * 70_000,
            "a{,5}",
            r"\N{BULLET}",
            "(|)",
            "a||b",
            "()",
        ),
        *("\0", r"\x00", "a**", "a{5,3}", "*a", "[z-a]", "[]", "a{99999}", "((a{1000}){1000}){1000}", "^a$", "(" * 50),
    ],
)
def test_check_regex_refuses_what_no_runtime_has(text: str) -> None:
    with pytest.raises(InvalidInput):
        grammar.check_regex(text)


@pytest.mark.parametrize(
    ("text", "remedy"), [("a{0}", "leave out"), ("a{0,0}", "leave out"), ("a{0,}", r"write \*"), ("a{5,3}", "at most")]
)
def test_check_regex_repetition_that_is_refused_has_its_remedy(text: str, remedy: str) -> None:
    grammar.check_regex("a{0,5}")
    with pytest.raises(InvalidInput, match=remedy):
        grammar.check_regex(text)


_LEAF: some.SearchStrategy[dict[str, Any]] = some.sampled_from(
    [
        {"type": "boolean"},
        {"type": "null"},
        {"type": "integer"},
        {"type": "integer", "minimum": 0, "maximum": 9},
        {"type": "number"},
        {"type": "string"},
        {"type": "string", "minLength": 1, "maxLength": 5},
        {"enum": ["a", 'quote"', "b.c", 3, None]},
        {"const": "x+y"},
    ]
)


def _nested(inner: some.SearchStrategy[dict[str, Any]]) -> some.SearchStrategy[dict[str, Any]]:
    arrays = some.builds(
        lambda item, low, more: {"type": "array", "items": item, "minItems": low, "maxItems": low + more},
        *(inner, some.integers(0, 2), some.integers(0, 2)),
    )
    objects = some.builds(
        lambda values, needed: {
            "type": "object",
            "properties": values,
            "required": sorted(values)[:needed],
            "additionalProperties": False,
        },
        *(some.dictionaries(some.sampled_from("abcd"), inner, min_size=1), some.integers(0, 3)),
    )
    return some.one_of(arrays, objects)


@given(some.recursive(_LEAF, _nested, max_leaves=5), some.data())
def test_texts_that_match_the_expression_of_a_schema_are_valid(schema: dict[str, Any], data: some.DataObject) -> None:
    found = regex_of(schema)
    if found is None:
        return
    text = data.draw(some.from_regex(re.compile(found, re.ASCII), fullmatch=True))
    jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("value", [{"person": True, "where": "gate"}, {"person": False, "where": '"\\\n'}])
def test_expression_of_a_schema_matches_usual_values(value: Any) -> None:
    found = regex_of(_PERSON)
    assert found is not None
    assert re.fullmatch(found, json.dumps(value))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"allOf": [{"type": "string"}]},
        {"type": "string", "pattern": "a"},
        {"type": "integer", "minimum": 5},
        {"type": "array"},
        {"$ref": "#", "type": "object", "properties": {"a": {"$ref": "#"}}},
        {"$ref": "#/$defs/a", "maxLength": 5, "$defs": {"a": {"type": "string"}}},
        {"type": "object", "required": ["a"], "anyOf": [{"type": "object", "properties": {"a": {"type": "null"}}}]},
        {"enum": ["a", "b"], "const": "a"},
        {"type": "string", "const": 1},
        {"enum": ["a", "bc"], "maxLength": 1},
        {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "maxProperties": 1},
        {"type": "object", "properties": {"a": {"type": "null"}}, "propertyNames": {"maxLength": 0}},
        {"type": "object", "properties": {"a": {"type": "null"}}, "dependencies": {"a": ["b"]}},
    ],
)
def test_schema_without_an_expression_is_left_to_the_runtime(schema: dict[str, Any]) -> None:
    assert regex_of(schema) is None


def test_schema_with_a_title_or_type_next_to_an_enumeration_has_an_expression() -> None:
    assert regex_of({"enum": ["a", "b"], "type": "string", "title": "Letter", "default": "a"}) == '("a"|"b")'
    assert regex_of({"oneOf": [{"const": 1}], "discriminator": {"propertyName": "kind"}}) == "((1))"


@pytest.mark.parametrize(
    ("kind", "found"),
    [("integer", "(1|3000000000000)"), ("number", "(1|3000000000000|0\\.5)"), (["null", "boolean"], "(true|null)")],
)
def test_type_limits_an_enumeration(kind: str | list[str], found: str) -> None:
    assert regex_of({"type": kind, "enum": ["a", 1, True, 3_000_000_000_000, None, 0.5, [], {}]}) == found


@pytest.mark.parametrize(
    ("usual", "request_", "sent"),
    [
        ((0.7, 0.9), {}, (0.7, 0.9)),
        ((0.7, 0.0), {}, (0.0, 1.0)),
        ((0.7, 0.9), {"top_p": 0.0}, (0.0, 1.0)),
        ((0.7, 0.9), {"top_p": 0.0, "temperature": 2.0}, (0.0, 1.0)),
        ((0.0, 1.0), {"top_p": 0.5, "temperature": 2.0}, (2.0, 0.5)),
    ],
)
def test_top_p_of_0_takes_always_the_most_likely_token(
    usual: tuple[float, float], request_: dict[str, float], sent: tuple[float, float]
) -> None:
    found = generation(ChatRequest(prompt="x", **request_), planned(*usual))  # type: ignore[arg-type]
    assert (found.sampling.temperature, found.sampling.top_p) == sent


def planned(temperature: float, top_p: float) -> Any:
    """Return a stand-in for a model that has no host yet."""
    files = LanguageFiles((), "", 0, 0, 0, True, False, temperature, top_p)
    entry = ModelEntry("chat", "1", "chat.gguf", {}, "")
    return SimpleNamespace(entry=entry, settings=LanguageSettings(), files=files, host=None, context=0)


def test_request_with_messages_and_a_prompt_is_refused_as_such() -> None:
    message = ChatMessage("user", "x")
    with pytest.raises(InvalidInput, match="one of"):
        generation(ChatRequest((message,), "x"), planned(0.0, 1.0))


def test_numbers_in_the_parameters_of_triton_may_be_texts() -> None:
    text = '{"temperature": "0.1", "top_p": "0.95", "max_tokens": "100", "stop": "null", "seed": 7}'
    found = generate._parameters(text)
    assert (found.temperature, found.top_p, found.max_tokens) == (0.1, 0.95, 100)
    assert (found.stop, found.seed) == ("null", 7)
    with pytest.raises(InvalidInput, match="max_tokens"):
        generate._parameters('{"max_tokens": "many"}')


def test_request_of_triton_with_more_raw_contents_than_inputs_is_refused() -> None:
    message = pb.ModelInferRequest()
    message.inputs.add(name="text_input", datatype="BYTES", shape=(1,))
    request: Any = SimpleNamespace(message=message, raw=[b"\1\0\0\0a"])
    assert generate._read(request).prompt == "a"
    request.raw *= 2
    with pytest.raises(InvalidInput, match="too many"):
        generate._read(request)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "look", "arguments": {"camera": "gate"}}',
        '<tool_call>\n{"name": "look", "arguments": {"camera": "gate"}}\n</tool_call>',
        '[TOOL_CALLS] [{"name": "look", "arguments": {"camera": "gate"}}]',
        '{"name": "look", "parameters": {"camera": "gate"}}',
    ],
)
def test_find_calls_reads_the_forms_of_models(text: str) -> None:
    (call,) = tools.find_calls(text, ["look"])
    assert (call.name, json.loads(call.arguments)) == ("look", {"camera": "gate"})


@pytest.mark.parametrize(
    "text", ["", "look at the gate", '{"name": "other", "arguments": {}}', '{"name": "look"', '{"a": 1}', "[" * 10_000]
)
def test_find_calls_of_text_finds_none(text: str) -> None:
    assert tools.find_calls(text, ["look"]) == []


def test_find_calls_reads_several() -> None:
    one = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    assert len(tools.find_calls(one + "\n" + one, ["look"])) == 2


@pytest.mark.parametrize(
    ("pieces", "sent"),
    [
        (["He", "llo"], "Hello"),
        (["<", "b> is bold"], "<b> is bold"),
        (["{", '"name": 1}'], ""),
        ([" ", "<tool_call>"], ""),
    ],
)
def test_held_text_gives_out_what_is_no_call(pieces: list[str], sent: str) -> None:
    held = tools.HeldText()
    assert "".join(map(held.take, pieces)) == sent
    assert sent + held.rest() == "".join(pieces)


def test_schema_with_exponential_references_costs_little() -> None:
    levels = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 100} for n in range(5)}
    schema = {"$defs": {**levels, "d5": {"type": "null"}}, "$ref": "#/$defs/d0"}
    began = time.process_time()
    assert regex_of(grammar.check_schema(json.dumps(schema))) is None
    assert time.process_time() - began < 5  # not minutes


def test_schema_of_tools_moves_their_references() -> None:
    inner = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "required": ["a"],
        "$defs": {"A": {"enum": [1]}},
    }
    given_tools = [{"type": "function", "function": {"name": name, "parameters": inner}} for name in ("f", "g")]
    schema = grammar.check_schema(json.dumps(tools.schema_of(given_tools)))
    jsonschema.validate({"name": "g", "arguments": {"a": 1}}, schema)
    found = regex_of(schema)
    assert found is not None
    assert re.fullmatch(found, '{"name": "f", "arguments": {"a": 1}}')


@given(some.lists(some.text("abc", max_size=4), max_size=8), some.lists(some.text("abc", min_size=1), max_size=3))
def test_stop_finder_ends_before_the_first_stop(pieces: list[str], stops: list[str]) -> None:
    finder, text, is_stopped = StopFinder(stops), "", False
    for piece in pieces:
        more, is_stopped = finder.take(piece)
        text += more
        if is_stopped:
            break
    whole = "".join(pieces)
    places = [whole.find(stop) for stop in stops if stop in whole]
    if is_stopped:
        assert text == whole[: len(text)]
        assert any(whole[len(text) :].startswith(stop) for stop in stops)
    else:
        assert not places
        assert text + finder.rest() == whole


def test_turns_alternate_between_clients_and_low_ones_come_last() -> None:
    async def scenario() -> list[str]:
        turns, order = Turns(most=1, waiting=10), list[str]()

        async def ask(client: str, *, is_low: bool = False) -> None:
            async with turns.turn(client, "m", is_low=is_low):
                order.append(client)
                await asyncio.sleep(0)

        async with turns.turn("first", "m"):
            tasks = [asyncio.ensure_future(ask("rule", is_low=True))]
            tasks += [asyncio.ensure_future(ask(client)) for client in ("a", "a", "a", "b")]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert turns.running == turns.queued == 0
        return order

    assert asyncio.run(scenario()) == ["a", "b", "a", "a", "rule"]


def test_turns_refuse_beyond_their_limit_and_forget_cancelled_ones() -> None:
    async def scenario() -> None:
        turns = Turns(most=1, waiting=2)

        async def ask() -> None:
            async with turns.turn("a", "m"):
                await asyncio.sleep(0)

        async with turns.turn("first", "m"):
            tasks = [asyncio.ensure_future(ask()) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await ask()
            tasks[0].cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert turns.running == turns.queued == 0
        await ask()

    asyncio.run(scenario())


def test_turns_refuse_ends_those_that_wait() -> None:
    async def scenario() -> None:
        turns = Turns(most=1, waiting=2)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(turns.turn("a", "m"))
            waiting = asyncio.ensure_future(stack.enter_async_context(turns.turn("b", "m")))
            await asyncio.sleep(0)
            turns.refuse(NotReady("gone"))
            with pytest.raises(NotReady):
                await waiting

    asyncio.run(scenario())
