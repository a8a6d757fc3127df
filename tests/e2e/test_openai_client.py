"""The official OpenAI client, unchanged but for its base URL."""

import openai
import pytest

from gateway_process import MODEL_NAME, chat


@pytest.fixture(scope="module")
def client(gateway):
    return openai.OpenAI(
        base_url=gateway.url + "/v1", api_key="unused", max_retries=0, timeout=120
    )


def messages(text):
    return [{"role": "user", "content": text}]


def test_models(client):
    assert [m.id for m in client.models.list()] == [MODEL_NAME]
    model = client.models.retrieve(MODEL_NAME)
    assert (model.id, model.object) == (MODEL_NAME, "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_chat_plain(client):
    answer = client.chat.completions.create(
        model=MODEL_NAME, messages=messages("What is a ledger?"), max_tokens=12, temperature=0
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL_NAME
    assert answer.system_fingerprint
    choice = answer.choices[0]
    assert choice.index == 0
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert 0 < usage.completion_tokens <= 12
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@pytest.mark.parametrize("first", ["plain", "streamed"])
def test_chat_streamed_and_plain_are_the_same_answer(client, first):
    request = dict(
        model=MODEL_NAME, messages=messages(f"Name a colour ({first})."), max_tokens=10, temperature=0
    )

    def plain():
        answer = client.chat.completions.create(**request)
        return answer.id, answer.created, answer.choices[0].message.content, answer.choices[0].finish_reason

    def streamed():
        chunks = list(client.chat.completions.create(stream=True, **request))
        assert len({(c.id, c.created) for c in chunks}) == 1
        assert chunks[0].object == "chat.completion.chunk"
        assert chunks[0].choices[0].delta.role == "assistant"
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        finish = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
        assert len(finish) == 1
        return chunks[0].id, chunks[0].created, text, finish[0]

    got = [plain(), streamed()] if first == "plain" else [streamed(), plain()]
    assert got[0] == got[1]


def test_usage_is_streamed_where_asked_for(client):
    chunks = list(
        client.chat.completions.create(
            model=MODEL_NAME, messages=messages("Count to three."), max_tokens=6, temperature=0,
            stream=True, stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].usage.completion_tokens > 0
    assert chunks[-1].choices == []


def test_completions(client):
    request = dict(model=MODEL_NAME, prompt="The capital of France is", max_tokens=5, temperature=0)
    plain = client.completions.create(**request)
    assert plain.object == "text_completion"
    assert plain.choices[0].text
    chunks = list(client.completions.create(stream=True, **request))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == plain.choices[0].text


def test_seeds(client):
    request = dict(
        model=MODEL_NAME, messages=messages("Tell me something."), max_tokens=8, temperature=1.0
    )
    first = client.chat.completions.create(seed=1, **request)
    assert client.chat.completions.create(seed=1, **request) == first
    other = client.chat.completions.create(seed=2, **request)
    assert other.choices[0].message.content != first.choices[0].message.content
    # Without a seed the request's own fingerprint gives it.
    assert client.chat.completions.create(**request) == client.chat.completions.create(**request)


def test_a_second_request_is_a_hit_with_the_same_bytes(client):
    request = dict(
        model=MODEL_NAME, messages=messages("Say hello."), max_tokens=8, temperature=0,
        extra_body={"deterministic": True},
    )
    first = client.chat.completions.with_raw_response.create(**request)
    second = client.chat.completions.with_raw_response.create(**request)
    assert first.headers["verbatim-cache"] == "miss"
    assert second.headers["verbatim-cache"] == "hit"
    for header in ("verbatim-fingerprint", "verbatim-output-digest", "verbatim-entry", "verbatim-manifest"):
        assert first.headers[header] == second.headers[header], header
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.content == second.content
    assert first.parse().choices[0].message.content


BAD_PARAMETERS = [
    ("temperature", {"temperature": 3}),
    ("temperature", {"temperature": "warm"}),
    ("top_p", {"top_p": -0.1}),
    ("max_tokens", {"max_tokens": 0}),
    ("n", {"n": 0}),
    ("seed", {"seed": 1.5}),
    ("stop", {"stop": 7}),
    ("stream", {"extra_body": {"stream": "yes"}}),
    ("messages", {"messages": "hello"}),
    ("messages", {"messages": []}),
]


@pytest.mark.parametrize("param,fields", BAD_PARAMETERS)
def test_bad_parameters_are_named(client, param, fields):
    request = dict(model=MODEL_NAME, messages=messages("Hello"), max_tokens=4)
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(**{**request, **fields})
    assert e.value.param.startswith(param), e.value
    assert e.value.type == "invalid_request_error"
    assert e.value.request_id.startswith("req_")


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-99", messages=messages("Hello"))
    assert e.value.code == "model_not_found"


def test_a_prompt_beyond_the_context(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model=MODEL_NAME, messages=messages("word " * 20000))
    assert e.value.code == "context_length_exceeded"


def test_malformed_bodies(gateway):
    for body in (b"", b"{", b"[]", b'"text"', b'{"model":1,"model":2}', b"\xff\xfe", b"{}" * 2):
        answer = gateway.ask("POST", "/v1/chat/completions", body)
        assert answer.status == 400, (body, answer)
        assert answer.json["error"]["type"] == "invalid_request_error"
    assert gateway.ask("POST", "/v1/embeddings", {}).status == 404
    assert gateway.ask("GET", "/v1/chat/completions").status == 405
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert gateway.ask("POST", "/v1/chat/completions", b"a=b", form).status == 415


def test_streamed_hits_have_the_same_bytes(gateway):
    request = chat("Stream this.", stream=True)
    first = gateway.ask("POST", "/v1/chat/completions", request)
    second = gateway.ask("POST", "/v1/chat/completions", request)
    assert (first.cache, second.cache) == ("miss", "hit")
    assert first.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert first.body == second.body
    assert first.events()[-1] == "[DONE]"
