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
    assert gateway.ask("POST", "/v1/none", {}).status == 404
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


def test_chat_stream_helper(client):
    # Without a bound: the helper raises where the length ends an answer.
    request = dict(model=MODEL_NAME, messages=messages("Name a river."), temperature=0)
    with client.chat.completions.stream(**request) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    plain = client.chat.completions.create(**request)
    assert "".join(texts) == final.choices[0].message.content == plain.choices[0].message.content
    assert (final.id, final.created) == (plain.id, plain.created)


def respond(text, **fields):
    return {"model": MODEL_NAME, "input": text, "temperature": 0, "max_output_tokens": 10, **fields}


def test_responses_plain(client):
    response = client.responses.create(
        **respond("What is a ledger?", instructions="Be brief.", metadata={"a": "b"}, user="u")
    )
    assert response.object == "response"
    assert response.id.startswith("resp_")
    assert response.output_text == response.output[0].content[0].text
    assert response.output[0].id == "msg_" + response.id.removeprefix("resp_")
    # Ten tokens were all that it might use.
    assert response.status == response.output[0].status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage.output_tokens == 10
    assert response.usage.total_tokens == response.usage.input_tokens + 10
    # It repeats what was asked for.
    assert (response.instructions, response.metadata, response.user) == ("Be brief.", {"a": "b"}, "u")
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0, 1, 10)


@pytest.mark.parametrize("first", ["plain", "streamed"])
def test_responses_stream_helper_gives_the_same_response(client, first):
    # Long enough for the model to come to its end: the helper knows no other one.
    request = respond(f"Reply with one word ({first}).", max_output_tokens=400)
    kinds = []

    def streamed():
        with client.responses.stream(**request) as stream:
            texts = []
            for number, event in enumerate(stream):
                assert event.sequence_number == number
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    texts.append(event.delta)
                    assert event.snapshot == "".join(texts)
            final = stream.get_final_response()
        assert final.output_text == "".join(texts)
        return final

    def plain():
        return client.responses.create(**request)

    got = [plain(), streamed()] if first == "plain" else [streamed(), plain()]
    assert got[0].status == "completed"
    same = [r.to_dict() for r in got]
    for r in same:  # the helper's own addition
        r["output"][0]["content"][0].pop("parsed", None)
    assert same[0] == same[1]
    assert [k for k in kinds if k != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_responses_raw_stream_that_ends_by_length(client):
    events = list(client.responses.create(stream=True, **respond("Tell me a long story.")))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[-1].type == "response.incomplete"
    plain = client.responses.create(**respond("Tell me a long story."))
    assert events[-1].response == plain


def test_responses_input_items(client):
    turns = [("user", "My name is Ada."), ("assistant", "Hello Ada."), ("user", "Who am I?")]
    plain = [{"role": role, "content": text} for role, text in turns]
    parts = [
        {
            "type": "message",
            "role": role,
            "content": [
                {"type": "output_text" if role == "assistant" else "input_text", "text": text}
            ],
        }
        for role, text in turns
    ]
    answers = [client.responses.create(**respond(items)) for items in (plain, parts)]
    assert answers[0].output_text == answers[1].output_text
    # And what chat completions say to it.
    chat_answer = client.chat.completions.create(
        model=MODEL_NAME, messages=plain, max_tokens=10, temperature=0
    )
    assert chat_answer.choices[0].message.content == answers[0].output_text


def test_responses_hits_have_the_same_bytes(gateway):
    for stream in (False, True):
        request = respond(f"Say it again ({stream}).", stream=stream)
        first, second = (gateway.ask("POST", "/v1/responses", request) for _ in range(2))
        assert (first.status, first.cache, second.cache) == (200, "miss", "hit")
        assert first.body == second.body
    converted = gateway.ask("POST", "/v1/responses", respond("Say it again (True)."))
    again = gateway.ask(
        "POST", "/v1/responses", respond("Say it again (True)."), {"cache-control": "no-cache"}
    )
    assert (converted.cache, again.cache) == ("hit; converted", "miss")
    # Only the second in which it was made differs, where it does.
    assert {**converted.json, "created_at": 0} == {**again.json, "created_at": 0}


def test_a_language_model_has_no_embeddings(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.embeddings.create(model=MODEL_NAME, input="Hello")
    assert e.value.code == "unsupported_endpoint"
    assert MODEL_NAME in e.value.message
