"""Recorded answers of many vendors through the gateway: seen as they came, served again as hits.

The upstream is vector_upstream.py; skipped where the recordings are absent."""

import json

import pytest

import gateway_process
import vector_upstream

RECORDINGS = vector_upstream.stream_recordings()
EVENT_STREAMS = vector_upstream.event_streams()
STREAMED = [r for r in RECORDINGS.values() if r.streamed]
PLAIN = [r for r in RECORDINGS.values() if not r.streamed]
# Two messages spliced into one stream: nobody can say which one a plain answer would hold.
NO_PLAIN_FORM = {"ai-anthropic-spliced-message-start"}

pytestmark = pytest.mark.skipif(not RECORDINGS, reason="recorded answers are absent")

CONFIG = """
server: {{access_log: "off"}}
upstreams:
  vendors:
    kind: openai
    url: {url}/v1
    models: [{openai}]
    credentials: {{from: none}}
    retries: {{attempts: 3, base_ms: 1, max_ms: 5}}
    breaker: {{failures: 0}}
  messages:
    kind: anthropic
    url: {url}/v1
    models: [{anthropic}]
    credentials: {{from: none}}
    retries: {{attempts: 3, base_ms: 1, max_ms: 5}}
    breaker: {{failures: 0}}
policy:
  hits:
    finish_reasons: [stop, length, tool_calls, end_turn, max_tokens, tool_use, completed, refusal]
"""


class UpstreamGateway(gateway_process.Gateway):
    """One without a model of its own."""

    def __init__(self, folder, config):
        super().__init__(folder / "data", model="none")
        file = folder / "config.yaml"
        file.write_text(config)
        at = self.command.index("--model")
        del self.command[at : at + 2]
        self.command += ["--config", str(file)]


@pytest.fixture(scope="module")
def upstream():
    with vector_upstream.VectorUpstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(upstream, tmp_path_factory):
    messages = [r.name for r in RECORDINGS.values() if r.path.startswith("/v1/messages")]
    others = [name for name in RECORDINGS if name not in messages] + ["sse-"]
    config = CONFIG.format(
        url=upstream.url,
        openai=", ".join(f'"{name}*"' for name in others),
        anthropic=", ".join(f'"{name}*"' for name in messages),
    )
    server = UpstreamGateway(tmp_path_factory.mktemp("vectors"), config).start()
    yield server
    assert server.stop() == 0, server.errors[-10:]


def request_for(recording, mode="", stream=None, **fields):
    """A request that the gateway may serve again: temperature 0."""
    stream = recording.streamed if stream is None else stream
    body = {"model": recording.name + (f"@{mode}" if mode else ""), "temperature": 0}
    if recording.api == "responses":
        body["input"] = "hi"
    elif recording.api == "completions":
        body["prompt"] = "hi"
    else:
        body["messages"] = [{"role": "user", "content": "hi"}]
    if recording.api in ("messages", "count_tokens"):
        body["max_tokens"] = 1000
    if recording.api == "count_tokens":
        del body["max_tokens"], body["temperature"]
    if recording.choices > 1:
        body["n"] = recording.choices
    if stream:
        body["stream"] = True
        if recording.api in ("chat", "completions"):
            body["stream_options"] = {"include_usage": True}
    body.update(fields)
    return body


def ask(gateway, recording, body):
    headers = {}
    if recording.path.startswith("/v1/messages"):
        headers["anthropic-version"] = "2023-06-01"
    return gateway.ask("POST", recording.path, body, headers, limit=60)


def names(recordings):
    return {"argvalues": recordings, "ids": [r.name for r in recordings]}


@pytest.mark.parametrize("mode", ["whole", "random", "crlf", "gzip"])
@pytest.mark.parametrize("recording", **names(STREAMED))
def test_streams_come_as_they_were_recorded_and_again_as_hits(gateway, upstream, recording, mode):
    want = recording.body.replace(b"\n", b"\r\n") if mode == "crlf" else recording.body
    body = request_for(recording, mode)
    first = ask(gateway, recording, body)
    assert (first.status, first.body, first.whole) == (200, want, True)
    assert first.headers["content-type"].startswith("text/event-stream")
    assert "content-encoding" not in first.headers
    assert first.cache == "miss"
    second = ask(gateway, recording, body)
    assert (second.status, second.body, second.whole) == (200, want, True)
    assert second.cache == ("hit" if recording.cacheable else "miss")
    assert upstream.calls[body["model"]] == (1 if recording.cacheable else 2)


def test_byte_by_byte(gateway, upstream):
    for recording in STREAMED:
        if len(recording.body) > 6000:
            continue
        answer = ask(gateway, recording, request_for(recording, "bytes"))
        assert answer.body == recording.body, recording.name
        again = ask(gateway, recording, request_for(recording, "bytes"))
        assert again.body == recording.body, recording.name
        assert again.cache == ("hit" if recording.cacheable else "miss"), recording.name


def text_of_chat(choice):
    message = choice.get("message", choice)
    content = message.get("content", message.get("text")) or ""
    return content if isinstance(content, str) else json.dumps(content)


def check_assembled(recording, answer):
    """A plain answer says what the recording's clients assembled from its events."""
    want = recording.assembled
    for name, value in (want.get("usage") or {}).items():
        assert answer["usage"][name] == value
    for index, choice in want.get("choices", {}).items():
        got = answer["choices"][int(index)]
        message = got.get("message", {})
        assert text_of_chat(got) == choice["content"]
        assert got.get("finish_reason") == choice["finish_reason"]
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        assert reasoning == choice.get("reasoning", "")
        assert (message.get("refusal") or "") == choice.get("refusal", "")
        tools = [
            {"id": t["id"], **t["function"]} for t in message.get("tool_calls") or []
        ]
        assert tools == list((choice.get("tool_calls") or {}).values())
    for key, text in want.get("blocks", {}).items():
        index, kind = key.split(":")
        block = answer["content"][int(index)]
        if kind == "text_delta":
            assert block["text"] == text
        elif kind == "thinking_delta":
            assert block["thinking"] == text
        elif kind == "input_json_delta":
            assert block["input"] == json.loads(text or "{}")
    if "output_text" in want:
        parts = [
            part["text"]
            for item in answer["output"]
            if item["type"] == "message"
            for part in item["content"]
            if part["type"] == "output_text"
        ]
        assert "".join(parts) == want["output_text"]


@pytest.mark.parametrize("recording", **names([r for r in STREAMED if r.cacheable]))
def test_a_plain_client_gets_the_same_content_in_one_body(gateway, upstream, recording):
    mode = "random.plain"
    assert ask(gateway, recording, request_for(recording, mode)).cache == "miss"
    plain = ask(gateway, recording, request_for(recording, mode, stream=False))
    if recording.name in NO_PLAIN_FORM:
        assert plain.cache == "miss"
        return
    assert (plain.status, plain.cache) == (200, "hit; converted")
    assert plain.headers["content-type"].startswith("application/json")
    check_assembled(recording, plain.json)
    assert upstream.calls[recording.name + "@" + mode] == 1


@pytest.mark.parametrize("mode", ["cut", "short"])
@pytest.mark.parametrize("recording", **names(STREAMED))
def test_cut_streams_reach_the_client_and_are_never_hits(gateway, upstream, recording, mode):
    for seed in range(4):
        body = request_for(recording, f"{mode}.{seed}")
        for call in (1, 2):
            answer = ask(gateway, recording, body)
            if answer.status == 200:
                assert recording.body.startswith(answer.body)
                assert answer.cache == "miss"
                assert mode == "short" or not answer.whole
            else:  # nothing of a body came: another attempt, then an error
                assert answer.status in (502, 504), answer.body
            assert upstream.calls[body["model"]] >= call


def test_usage_is_asked_for_and_kept_from_who_did_not_ask(gateway, upstream):
    recording = RECORDINGS["openai-moderation-stream"]
    body = request_for(recording, "whole.usage")
    del body["stream_options"]
    events = {}
    for cache in ("miss", "hit"):
        answer = ask(gateway, recording, body)
        assert answer.cache == cache
        events[cache] = answer.body
        chunks = [json.loads(e) for e in answer.events()[:-1]]
        assert all("usage" not in chunk for chunk in chunks)
        assert any("moderation" in chunk for chunk in chunks)
    assert events["miss"] == events["hit"]
    (seen,) = upstream.seen(body["model"])
    assert seen.json["stream_options"] == {"include_usage": True}
    # Who asks for it gets all of it, from the same record.
    body["stream_options"] = {"include_usage": True}
    answer = ask(gateway, recording, body)
    assert (answer.cache, answer.body) == ("hit", recording.body)


@pytest.mark.parametrize("name", list(EVENT_STREAMS))
def test_event_streams_of_any_kind_pass_as_they_are(gateway, upstream, name):
    case = EVENT_STREAMS[name]
    whole = b"".join(case.chunks)
    modes = {"whole": whole, "random": whole}
    if len(whole) < 2000:
        modes["bytes"] = whole
    if b"\r" not in whole:
        modes["crlf"] = whole.replace(b"\n", b"\r\n")
    for mode, want in modes.items():
        body = {
            "model": f"{name}@{mode}",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
        }
        # One case is whole: it ends with a finish reason and [DONE].
        whole_answer = case.name == "data after [DONE]"
        for call in (1, 2):
            answer = gateway.ask("POST", "/v1/chat/completions", body)
            assert (answer.status, answer.body) == (200, want), case.name
            assert answer.cache == ("hit" if whole_answer and call == 2 else "miss"), case.name


@pytest.mark.parametrize("recording", **names(PLAIN))
def test_plain_answers_and_errors_pass_as_they_are(gateway, upstream, recording):
    body = request_for(recording)
    for call in (1, 2):
        answer = ask(gateway, recording, body)
        assert (answer.status, answer.body) == (recording.status, recording.body)
        if recording.status == 200:
            assert answer.cache == ("hit" if call == 2 else "miss")
    retried = 3 if recording.status == 429 else 1
    calls = 1 if recording.status == 200 else 2 * retried
    assert upstream.calls[recording.name] == calls


def test_a_streaming_client_of_a_plain_record(gateway, upstream):
    recording = RECORDINGS.get("gemini-openai-compat")
    if recording is None:
        pytest.skip("this recording is absent")
    body = request_for(recording, fields_differ=1)
    assert ask(gateway, recording, body).cache == "miss"
    answer = ask(gateway, recording, {**body, "stream": True})
    assert (answer.status, answer.cache) == (200, "hit; converted")
    events = answer.events()
    assert events[-1] == "[DONE]"
    call = json.loads(events[0])["choices"][0]["delta"]["tool_calls"][0]
    assert call["index"] == 0
    want = recording.body and json.loads(recording.body)["choices"][0]["message"]["tool_calls"][0]
    assert call["function"] == want["function"]


def test_failures_before_the_answer_are_tried_again(gateway, upstream):
    recording = RECORDINGS["anthropic-plain-stream"]
    body = request_for(recording, "whole.retry")
    upstream.fail(body["model"], (529, {}), (503, {"retry-after-ms": "1"}))
    answer = ask(gateway, recording, body)
    assert (answer.status, answer.body) == (200, recording.body)
    assert upstream.calls[body["model"]] == 3
    sent = upstream.seen(body["model"])
    assert sent[0].body == sent[2].body, "equal requests go out as equal bytes"
    assert ask(gateway, recording, body).cache == "hit"


@pytest.mark.parametrize("recording", **names(STREAMED))
def test_every_call_has_its_entry_with_what_it_used(gateway, recording):
    """Also the ones that were no complete answer, under their own kind and with the reason."""
    answer = ask(gateway, recording, request_for(recording, "random.ledger"))
    receipt = gateway.ask("GET", f"/verbatim/v1/receipts/{answer.headers['x-request-id']}").json
    entry = gateway.ask("GET", f"/verbatim/v1/entries/{receipt['entry']}").json
    assert receipt["kind"] == ("generated" if recording.cacheable else "failed")
    assert bool(entry["record"].get("serves_hits")) == recording.cacheable
    assert ("incomplete" in entry["record"]["extra"]) == (not recording.cacheable)
    reported = entry["record"]["usage"].get("reported", {})
    for name, value in (recording.assembled.get("usage") or {}).items():
        assert reported[name] == value
