"""The official Anthropic client, unchanged but for its base URL."""

import json

import anthropic
import pytest

from gateway_process import MODEL_NAME

PATH = "/v1/messages"


@pytest.fixture(scope="module")
def client(gateway):
    return anthropic.Anthropic(base_url=gateway.url, api_key="unused", max_retries=0, timeout=120)


def request(text, **fields):
    body = {
        "model": MODEL_NAME,
        "max_tokens": 10,
        "messages": [{"role": "user", "content": text}],
        "extra_body": {"temperature": 0},
    }
    body.update(fields)
    return body


def body_of(text, **fields):
    """The same as the client sends it."""
    body = request(text, **fields)
    body.update(body.pop("extra_body"))
    return body


def test_create(client):
    message = client.messages.create(**request("What is a ledger?", system="Be brief."))
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL_NAME)
    assert message.id.startswith("msg_")
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert message.usage.output_tokens == 10
    assert message.usage.input_tokens > 5


@pytest.mark.parametrize("first", ["plain", "streamed"])
def test_stream_helper_gives_the_same_message(client, first):
    asked = request(f"Name a colour ({first}).", max_tokens=24)
    kinds = []

    def streamed():
        with client.messages.stream(**asked) as stream:
            texts = []
            for event in stream:
                kinds.append(event.type)
                if event.type == "text":
                    texts.append(event.text)
            message = stream.get_final_message()
        assert "".join(texts) == message.content[0].text == stream.get_final_text()
        return message

    def plain():
        return client.messages.create(**asked)

    got = [plain(), streamed()] if first == "plain" else [streamed(), plain()]
    # The helper adds members that are None.
    assert got[0].to_dict(exclude_none=True) == got[1].to_dict(exclude_none=True)
    assert [k for k in kinds if k not in ("content_block_delta", "text")] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_raw_stream(client):
    events = list(client.messages.create(stream=True, **request("Say hello.", max_tokens=5)))
    assert events[0].type == "message_start"
    assert events[0].message.usage.input_tokens > 0
    assert sum(e.type == "content_block_delta" for e in events) == 5
    assert events[-2].delta.stop_reason == "max_tokens"
    assert events[-2].usage.output_tokens == 5
    assert events[-1].type == "message_stop"


def test_stop_sequences_are_named(client):
    whole = client.messages.create(**request("Count from one to nine.", max_tokens=24))
    text = whole.content[0].text
    stop = text[5:9]
    cut = client.messages.create(
        **request("Count from one to nine.", max_tokens=24, stop_sequences=["\x00none", stop])
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert cut.content[0].text == text[: text.index(stop)]


def test_text_blocks_and_turns(client):
    """Blocks of text are one text: the same prompt, so the same answer."""
    turns = [("user", "My name is Ada."), ("assistant", "Hello Ada."), ("user", "Who am I?")]
    plain = [{"role": role, "content": text} for role, text in turns]
    blocks = [
        {"role": role, "content": [{"type": "text", "text": part} for part in (text[:5], text[5:])]}
        for role, text in turns
    ]
    answers = [
        client.messages.create(**request("", messages=m, system=s))
        for m, s in ((plain, "Be kind."), (blocks, [{"type": "text", "text": "Be kind."}]))
    ]
    assert answers[0].content == answers[1].content
    assert answers[0].usage == answers[1].usage


def test_count_tokens(client):
    asked = dict(model=MODEL_NAME, messages=[{"role": "user", "content": "What is a ledger?"}])
    count = client.messages.count_tokens(**asked)
    message = client.messages.create(max_tokens=1, **asked)
    assert count.input_tokens == message.usage.input_tokens
    system = client.messages.count_tokens(system="Be brief. " * 40, **asked)
    assert system.input_tokens > count.input_tokens + 80


def test_hits_have_the_same_bytes(gateway):
    for asked in (
        body_of("Say it again."),
        body_of("Stream it again.", stream=True),
    ):
        first, second = (gateway.ask("POST", PATH, asked) for _ in range(2))
        assert (first.status, first.cache, second.cache) == (200, "miss", "hit")
        assert first.body == second.body
        assert first.headers["content-type"] == second.headers["content-type"]
    count = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "How many?"}]}
    first, second = (gateway.ask("POST", PATH + "/count_tokens", count) for _ in range(2))
    assert (first.status, first.cache, second.cache) == (200, "miss", "hit")
    assert first.body == second.body
    assert list(first.json) == ["input_tokens"]


def test_a_converted_hit_is_what_a_run_would_give(gateway):
    streamed = gateway.ask("POST", PATH, body_of("Convert this.", stream=True))
    plain = gateway.ask("POST", PATH, body_of("Convert this."))
    again = gateway.ask("POST", PATH, body_of("Convert this."), {"cache-control": "no-cache"})
    assert plain.cache == "hit; converted"
    assert again.cache == "miss"
    assert plain.body == again.body
    text = "".join(
        event["delta"]["text"] for event in events(streamed) if event["type"] == "content_block_delta"
    )
    assert text == plain.json["content"][0]["text"]


def events(answer):
    """Every event's data; its name says what it is, as this client needs it."""
    found = []
    for event in answer.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), event
        found.append(json.loads(data.removeprefix("data: ")))
        assert found[-1]["type"] == name.removeprefix("event: ")
    return found


@pytest.mark.parametrize(
    "error, kind, fields",
    [
        (anthropic.NotFoundError, "not_found_error", {"model": "claude-99"}),
        (anthropic.BadRequestError, "invalid_request_error", {"extra_body": {"temperature": 2}}),
        (anthropic.BadRequestError, "invalid_request_error", {"messages": []}),
        (
            anthropic.BadRequestError,
            "invalid_request_error",
            {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
        ),
        (
            anthropic.BadRequestError,
            "invalid_request_error",
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        ),
        (
            anthropic.BadRequestError,
            "invalid_request_error",
            {
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "I would say"},
                ]
            },
        ),
    ],
)
def test_errors(client, error, kind, fields):
    with pytest.raises(error) as e:
        client.messages.create(**request("Hello", **fields))
    assert e.value.body["type"] == "error"
    assert e.value.body["error"]["type"] == kind
    assert e.value.body["error"]["message"]
    assert e.value.body["request_id"] == e.value.request_id
    assert e.value.request_id.startswith("req_")


def test_the_servers_own_errors_have_the_clients_form(gateway):
    for answer, status in (
        (gateway.ask("GET", PATH), 405),
        (gateway.ask("POST", PATH, b"{", {}), 400),
        (gateway.ask("POST", PATH, b"a=b", {"content-type": "text/plain"}), 415),
        (gateway.ask("POST", PATH + "/count_tokens", b"[]"), 400),
        (gateway.ask("POST", PATH + "/batches", b"{}"), 404),
    ):
        assert answer.status == status, answer
        assert answer.json["type"] == "error", answer
        assert set(answer.json["error"]) == {"type", "message"}
        assert answer.json["request_id"] == answer.headers["x-request-id"]
    assert set(gateway.ask("GET", "/v1/none").json) == {"error"}


def test_models(client):
    assert [m.id for m in client.models.list()] == [MODEL_NAME]
    assert client.models.retrieve(MODEL_NAME).id == MODEL_NAME
