"""Which of upstreams' answers serve whom: by form, by fallback, by size, and with secrets in them."""

import gzip
import json

import pytest

from scripted_gateway import module_gateway, secret
from scripted_upstream import (
    chat_answer,
    chat_events,
    chunk,
    event,
    fails,
    streams,
    whole,
)

CONFIG = """\
upstreams:
  vendor:
    url: {url}/v1
    models: ["m", "m-*"]
    credentials: {{value: env:ANSWERS_KEY}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
    limits: {{reply_bytes: 4096}}
  breaking:
    url: {url}/v1
    models: ["x-*"]
    retries: {{attempts: 1}}
    breaker: {{failures: 2, window_ms: 30000, open_ms: 60000}}
  primary:
    url: {url}/primary
    models: ["p-*"]
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
    fallbacks: [backup]
  backup:
    url: {url}/backup
    models: {{"*": "b-1"}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
access:
  keys:
    - {{id: root, secret: "file:root", tenant: a, roles: [client, operator, auditor]}}
    - {{id: one, secret: "file:one", tenant: a, models: ["m"]}}
{more}"""
NAMES = ("root", "one")
VENDOR_KEY = "sk-vendor-0badcafe99"
gateway = module_gateway(CONFIG, NAMES, {"ANSWERS_KEY": VENDOR_KEY})


# Deltas of a member that nobody knows how to put together.
UNKNOWN = [
    chunk({"role": "assistant", "content": "x", "weird": {"a": 1}}),
    chunk({"weird": {"b": 2}}),
    chunk({}, "stop"),
    event(b"[DONE]"),
]


def by_form(stream, plain):
    def step(handler, seen):
        (stream if seen.json.get("stream") else plain)(handler, seen)

    return step


def test_a_stream_that_cannot_be_converted_leaves_room_for_a_plain_answer(gateway, upstream):
    upstream.script("weird", by_form(streams(UNKNOWN), whole(chat_answer("plain"))))
    stream = gateway.chat("weird", stream=True)
    plain = [gateway.chat("weird") for _ in range(3)]
    assert [a.cache for a in (stream, *plain)] == ["miss", "miss", "hit", "hit"]
    assert {a.body for a in plain} == {plain[0].body}
    again = gateway.chat("weird", stream=True)
    assert (again.cache, again.body) == ("hit", stream.body)
    assert upstream.count("weird") == 2
    entry = gateway.entry_of(plain[0])
    assert entry["record"]["fingerprint"] == stream.headers["verbatim-fingerprint"]
    assert entry["record"]["extra"]["variant"] == "plain"


def test_a_plain_answer_that_cannot_be_a_stream_leaves_room_for_one(gateway, upstream):
    odd = chat_answer("x")
    odd["choices"][0]["message"] = ["no", "object"]
    upstream.script("odd", by_form(streams(chat_events("streamed")), whole(odd)))
    plain = gateway.chat("odd")
    streamed = [gateway.chat("odd", stream=True) for _ in range(2)]
    if streamed[0].cache.startswith("hit"):
        pytest.fail("the conversion was meant to be impossible")
    assert [a.cache for a in (plain, *streamed)] == ["miss", "miss", "hit"]
    assert (gateway.chat("odd").body, upstream.count("odd")) == (plain.body, 2)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_what_a_fallback_answered_before_is_its_hit(gateway, upstream, stream):
    word = f"stand-{stream}"
    first, other = chat_answer("of the backup"), chat_answer("again")
    upstream.script(word, fails(503), whole(first), fails(503), whole(other))
    made = gateway.chat(word, model="p-1")
    assert (made.cache, made.headers["verbatim-upstream"]) == ("miss", "backup")
    hit = gateway.chat(word, model="p-1", stream=stream)
    assert hit.cache == ("hit; converted" if stream else "hit")
    if not stream:
        assert hit.body == made.body
    for name in ("verbatim-upstream", "verbatim-fingerprint", "verbatim-entry"):
        assert hit.headers[name] == made.headers[name], name
    # The primary was asked, and nobody else.
    assert [s.path.split("/")[1] for s in upstream.seen(word)] == ["primary", "backup", "primary"]
    entry = gateway.entry_of(hit)
    leaf, record = entry["leaf_json"], entry["record"]
    assert leaf["kind"] == "hit"
    assert record["extra"]["result"] == int(made.headers["verbatim-entry"])
    assert record["fingerprint"] == made.headers["verbatim-fingerprint"]
    (tried,) = record["backend"]["stands_in_for"]
    assert tried["upstream"] == "primary"
    receipt = gateway.receipt_of(hit)
    assert receipt["kind"] == "hit"
    # Whoever asks for no hit asks the fallback, too.
    again = gateway.chat(word, {"cache-control": "no-cache"}, model="p-1")
    assert again.cache == "miss" and upstream.count(word) > 3


def test_a_redirection_is_an_answer(gateway, upstream):
    moved = whole({"moved": True}, 307, {"location": "https://elsewhere.example/v1"})
    upstream.script("moved", moved)
    for _ in range(2):
        answer = gateway.chat("moved", model="p-1")
        assert (answer.status, answer.json) == (307, {"moved": True})
        assert answer.headers["location"] == "https://elsewhere.example/v1"
        assert gateway.reason_of(answer) == ("refused", "upstream_307")
    assert {s.path.split("/")[1] for s in upstream.seen("moved")} == {"primary"}
    assert upstream.count("moved") == 2


def test_what_is_too_large_is_not_asked_for_again(gateway, upstream):
    upstream.script("large", whole(chat_answer("x" * 5000)))
    answer = gateway.chat("large")
    assert (answer.status, answer.headers["x-should-retry"]) == (502, "false")
    assert answer.json["error"]["code"] == "upstream_too_large"
    assert "limits.reply_bytes" in answer.json["error"]["message"]
    assert gateway.reason_of(answer) == ("failed", "too_large")
    upstream.script("larges", streams(chat_events(*["y" * 1000] * 6)))
    answer = gateway.chat("larges", stream=True)
    assert answer.status == 200 and not answer.whole
    assert b"upstream_too_large" in answer.body


def test_attempts_are_timed(gateway, upstream):
    name = "gen_ai_client_operation_duration_seconds_count"
    labels = {"gen_ai_provider_name": "vendor", "gen_ai_request_model": "m"}
    before = gateway.metric(name, **labels)
    gateway.chat("timed")
    assert gateway.metric(name, **labels) == before + 1


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_an_answer_that_repeats_a_secret_is_kept_without_it(gateway, upstream, stream):
    word = f"echo-{stream}"
    said = f"your key is {VENDOR_KEY}, thanks"
    upstream.script(word, streams(chat_events("well", said)) if stream else whole(chat_answer(said)))
    answers = [gateway.chat(word, stream=stream) for _ in range(2)]
    assert [a.cache for a in answers] == ["miss", "miss"]
    assert VENDOR_KEY.encode() not in answers[0].body
    assert b"your key is [redacted], thanks" in answers[0].body
    entry = gateway.entry_of(answers[0], payload=True)
    assert entry["record"]["extra"]["redaction_rules"] == ["credentials"]
    assert VENDOR_KEY not in json.dumps(entry)


def test_a_reload_keeps_circuits_of_upstreams_that_did_not_change(gateway, upstream):
    upstream.script("dead", fails(503))
    try:
        for i in range(2):
            gateway.chat("dead", model="x-1", seed=i)
        assert gateway.metric("verbatim_upstream_breaker_state", upstream="breaking") == 2
        gateway.reload()
        assert gateway.metric("verbatim_upstream_breaker_state", upstream="breaking") == 2
        gateway.template = CONFIG.replace("failures: 2", "failures: 3")
        gateway.reload()
        assert gateway.metric("verbatim_upstream_breaker_state", upstream="breaking") == 0
    finally:
        gateway.template = CONFIG
        gateway.reload()
    assert gateway.chat("alive", model="x-1").status == 200


# --- What passes through --------------------------------------------------------------------------


@pytest.fixture
def passing(gateway):
    gateway.reload("policy: {pass_through: vendor, verify: {rate: 0}}\n")
    yield gateway
    gateway.reload()


def test_every_method_and_spelling_passes(passing, upstream):
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        before = upstream.count("")
        upstream.script("", whole({"done": method}))
        body = None if method in ("GET", "DELETE") else {"a": 1}
        answer = passing.ask(method, "/v1/files/a%2Fb%20c", body)
        assert (answer.status, answer.json) == (200, {"done": method})
        seen = upstream.seen("")[before:]
        assert [s.path for s in seen] == ["/v1/files/a%2Fb%20c"]
        assert seen[0].headers["x-method"] == method
    for path in ("/v1/chat%2Fcompletions", "/v1/files/..%2fchat/completions"):
        assert passing.ask("DELETE", path).status == 404
    assert passing.ask("DELETE", "/v1/chat/completions").status == 405


def test_lists_of_models_hold_for_what_passes(passing, upstream):
    upstream.script("", whole({"ok": True}))
    key = {"authorization": f"Bearer {secret('one')}"}
    speech = "/v1/audio/speech"
    assert passing.ask("POST", speech, {"model": "m"}, key).status == 200
    assert passing.ask("POST", speech, {"voice": "v"}, key).status == 200
    refused = passing.ask("POST", speech, {"model": "m-2"}, key)
    assert (refused.status, refused.json["error"]["code"]) == (404, "model_not_found")
    twice = passing.ask("POST", speech, b'{"model":"m","model":"m-2"}', key)
    assert twice.status == 400
    # Nor in a spelling that this server does not read and the vendor may.
    for hidden in (b'\xef\xbb\xbf{"model":"m-2"}', '{"model":"m-2"}'.encode("utf-16")):
        assert passing.ask("POST", speech, hidden, key).status == 400
    packed = gzip.compress(b'{"model":"m-2"}')
    coded = {**key, "content-encoding": "gzip"}
    assert passing.ask("POST", speech, packed, coded).status in (400, 415)
    assert passing.ask("POST", speech, {"model": "m-2"}).status == 200, "whose key has no list"


def test_nothing_passes_where_only_records_answer(gateway, upstream):
    gateway.reload("policy: {pass_through: vendor, mode: replay}\n")
    try:
        answer = gateway.ask("GET", "/v1/files")
        assert (answer.status, answer.headers["x-should-retry"]) == (504, "false")
    finally:
        gateway.reload()


# --- Lists of models ------------------------------------------------------------------------------


def test_models_in_the_form_that_the_client_reads(gateway):
    names = [m["id"] for m in gateway.ask("GET", "/v1/models").json["data"]]
    assert names == ["m"]
    for path in ("/openai/v1/models", "/openai/models?api-version=2024-10-21"):
        assert [m["id"] for m in gateway.ask("GET", path).json["data"]] == names
    assert gateway.ask("GET", "/openai/v1/models/m").json["object"] == "model"
    version = {"anthropic-version": "2023-06-01"}
    page = gateway.ask("GET", "/v1/models", headers=version).json
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "m", "m")
    (model,) = page["data"]
    assert (model["type"], model["id"], model["display_name"]) == ("model", "m", "m")
    assert model["created_at"].endswith("Z")
    assert gateway.ask("GET", "/v1/models/m", headers=version).json == model
    missing = gateway.ask("GET", "/v1/models/none", headers=version)
    assert (missing.status, missing.json["type"]) == (404, "error")
    assert missing.json["error"]["type"] == "not_found_error"


def test_many_unknown_members_are_soon_read(gateway, upstream):
    body = {"model": "m", "messages": [{"role": "user", "content": "many"}], "temperature": 0}
    body.update((f"u{i}", i) for i in range(200_000))
    assert gateway.raw(json.dumps(body)).cache == "miss"
    assert gateway.raw(json.dumps(body)).cache == "hit"
