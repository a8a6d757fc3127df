"""What a gateway does between clients and an upstream that fails, hangs, lies or is fine: the cases
that users of other gateways reported. The upstream is scripted_upstream.py."""

import concurrent.futures
import gzip
import http.client
import json
import pathlib
import re
import socket
import threading
import time

import anthropic
import openai
import pytest

import gateway_process
from scripted_gateway import ScriptedGateway, wait_for
from scripted_upstream import (
    after,
    chat_answer,
    chat_events,
    chunk,
    event,
    fails,
    reset,
    streams,
    whole,
)

CONFIG = """\
server: {{access_log: access.log}}
upstreams:
  vendor:
    url: {url}/v1
    models: ["m*"]
    credentials: {{value: env:VENDOR_KEY}}
    headers: {{forward: [x-variant, x-trace], not_semantic: [x-trace]}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  primary:
    url: {url}/primary
    models: ["p-*"]
    timeouts: {{first_byte_ms: 300}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
    fallbacks: [backup]
  backup:
    url: {url}/backup
    models: {{"p*": "b*"}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  nowhere:
    url: http://127.0.0.1:9/v1
    models: ["n-*"]
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
    fallbacks: [nobody, backup2]
  nobody:
    url: http://127.0.0.1:9/v1
    models: ["n*"]
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  backup2:
    url: {url}/backup2
    models: {{"*": "b2"}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  breaking:
    url: {url}/v1
    models: ["c-*"]
    retries: {{attempts: 1}}
    breaker: {{failures: 2, window_ms: 30000, open_ms: 700}}
  retrying:
    url: {url}/v1
    models: ["r-*"]
    retries: {{attempts: 3, base_ms: 1, max_ms: 1500}}
    breaker: {{failures: 0}}
  own:
    url: {url}/v1
    models: ["o-*"]
    credentials: {{from: client}}
    breaker: {{failures: 0}}
  rotating:
    url: {url}/v1
    models: ["t-*"]
    credentials: {{value: file:token}}
    breaker: {{failures: 0}}
  azure:
    kind: azure
    url: {url}
    api_version: 2024-10-21
    models: {{"az-*": "dep-*"}}
    credentials: {{value: env:AZURE_KEY}}
    breaker: {{failures: 0}}
  anthropic:
    kind: anthropic
    url: {url}/v1
    models: ["claude-*"]
    credentials: {{value: env:ANTHROPIC_UPSTREAM_KEY}}
    breaker: {{failures: 0}}
{more}"""

SECRETS = {
    "VENDOR_KEY": "sk-vendor-6f1c2d",
    "AZURE_KEY": "az-key-77aa01",
    "ANTHROPIC_UPSTREAM_KEY": "sk-ant-3b9e55",
}
CLIENT_SECRET = "sk-client-c0ffee42"
TOKENS = ("rotating-token-one", "rotating-token-two")


@pytest.fixture(scope="module")
def environment():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def gateway(upstream, environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("upstream")
    (folder / "token").write_text(TOKENS[0] + "\n")
    server = ScriptedGateway(folder, upstream, CONFIG).start()
    yield server
    if server.process.poll() is None:
        assert server.stop() == 0, server.errors[-10:]


def text(answer):
    assert answer.status == 200, answer.body
    return answer.json["choices"][0]["message"]["content"]


def together(gateway, count, ask):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return [f.result() for f in [pool.submit(ask, i) for i in range(count)]]


# --- Fallbacks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word, step",
    [
        ("f500", fails(500)),
        ("f503", fails(503)),
        ("f529", fails(529)),
        ("f429", fails(429)),
        ("f408", fails(408)),
        ("freset", reset),
        ("ftime", after(1.0, whole(chat_answer("late")))),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_fallback_answers_under_its_own_fingerprint(gateway, upstream, word, step, stream):
    word += "s" if stream else ""
    other = gateway.chat(word + "-fp", model="p-1")  # an answer of the primary's own
    backup, own = whole(chat_answer("of the backup")), whole(chat_answer("its own"))
    if stream:
        backup, own = streams(chat_events("of the backup")), streams(chat_events("its own"))
    by_path = lambda handler, seen: (step if "primary" in seen.path else backup)(handler, seen)
    upstream.script(word, by_path)
    first = gateway.chat(word, model="p-1", stream=stream)
    assert first.status == 200 and b"of the backup" in first.body
    assert first.headers["verbatim-upstream"] == "backup"
    assert first.cache == "miss"
    paths = [s.path for s in upstream.seen(word)]
    # A kept connection that breaks is no answer: the request goes out once more on a new one.
    assert len(paths) == (2 if step is not reset else len(paths))
    assert set(paths[:-1]) == {"/primary/chat/completions"}
    assert paths[-1] == "/backup/chat/completions"
    assert upstream.seen(word)[-1].json["model"] == "b-1"
    # Up again: its own answer, and no hit.
    upstream.script(word, own)
    second = gateway.chat(word, model="p-1", stream=stream)
    assert b"its own" in second.body
    assert (second.cache, second.headers["verbatim-upstream"]) == ("miss", "primary")
    assert second.headers["verbatim-fingerprint"] != first.headers["verbatim-fingerprint"]
    third = gateway.chat(word, model="p-1", stream=stream)
    assert (third.cache, third.body) == ("hit", second.body)
    assert other.headers["verbatim-upstream"] == "primary"
    entry = gateway.entry_of(first)
    assert entry["leaf_json"]["kind"] == "generated"
    assert entry["record"]["fingerprint"] == first.headers["verbatim-fingerprint"]
    (tried,) = entry["record"]["backend"]["stands_in_for"]
    assert len(tried["attempts"]) == 1


def test_the_primary_is_asked_before_a_fallbacks_recorded_answer_serves(gateway, upstream):
    first, own = whole(chat_answer("x")), whole(chat_answer("y"))
    upstream.script("fdown", fails(503), first, fails(503), own)
    assert text(gateway.chat("fdown", model="p-2")) == "x"
    again = gateway.chat("fdown", model="p-2")
    assert (text(again), again.cache) == ("x", "hit")
    assert again.headers["verbatim-upstream"] == "backup"
    up = gateway.chat("fdown", model="p-2")
    assert (text(up), up.cache, up.headers["verbatim-upstream"]) == ("y", "miss", "primary")
    assert upstream.count("fdown") == 4


def test_errors_that_hold_everywhere_ask_no_fallback(gateway, upstream):
    for status in (400, 401, 404, 422):
        word = f"fno{status}"
        upstream.script(word, fails(status))
        answer = gateway.chat(word, model="p-1")
        assert (answer.status, answer.json["error"]["message"]) == (status, f"scripted {status}")
        assert upstream.count(word) == 1
        kind, reason = gateway.reason_of(answer)
        assert (kind, reason) == ("refused", f"upstream_{status}")


def test_fallbacks_are_asked_in_order_and_the_last_failure_is_told(gateway, upstream):
    answer = gateway.chat("order", model="n-1")
    assert (text(answer), answer.headers["verbatim-upstream"]) == ("order 1", "backup2")
    tried = gateway.entry_of(answer)["record"]["backend"]["stands_in_for"]
    assert [t["attempts"][0]["cause"] for t in tried] == ["connect_failed"] * 2
    upstream.script("orderbad", fails(503))
    answer = gateway.chat("orderbad", model="n-1")
    assert answer.status == 503
    assert gateway.reason_of(answer) == ("failed", "upstream_503")


def test_no_fallback_once_a_stream_has_begun(gateway, upstream):
    upstream.script("fcut", streams(chat_events("one", "two")[:2], ends="reset"))
    answer = gateway.chat("fcut", model="p-1", stream=True)
    assert answer.status == 200 and b"one" in answer.body and not answer.whole
    assert upstream.count("fcut") == 1
    assert gateway.reason_of(answer)[0] == "failed"


# --- Retries and the circuit ----------------------------------------------------------------------


def test_retry_after_ms_and_retry_after_are_honoured(gateway, upstream):
    for word, headers, least in (
        ("ra-ms", {"retry_after_ms": "250"}, 0.25),
        ("ra-s", {"retry_after": "1"}, 1.0),
    ):
        upstream.script(word, fails(429, **headers), whole(chat_answer("ok")))
        assert text(gateway.chat(word, model="r-1")) == "ok"
        first, second = upstream.seen(word)
        assert second.at - first.at >= least
        assert first.body == second.body


def test_whoever_asks_for_a_long_wait_is_not_waited_for(gateway, upstream):
    upstream.script("ra-long", fails(429, retry_after="30"))
    began = time.monotonic()
    answer = gateway.chat("ra-long", model="r-1")
    assert (answer.status, answer.headers["retry-after"]) == (429, "30")
    assert time.monotonic() - began < 10
    assert upstream.count("ra-long") == 1


def test_x_should_retry_decides_either_way(gateway, upstream):
    upstream.script("xsr-no", fails(500, x_should_retry="false"))
    answer = gateway.chat("xsr-no", model="r-1")
    assert (answer.status, answer.headers["x-should-retry"]) == (500, "false")
    assert upstream.count("xsr-no") == 1
    upstream.script("xsr-yes", fails(400, x_should_retry="true"), whole(chat_answer("ok")))
    assert text(gateway.chat("xsr-yes", model="r-1")) == "ok"
    assert upstream.count("xsr-yes") == 2


def test_a_stream_that_has_begun_is_never_repeated(gateway, upstream):
    for word, step in (
        ("nr-reset", streams(chat_events("a", "b")[:1], ends="reset")),
        ("nr-short", streams(chat_events("a", "b")[:2])),
        ("nr-none", streams([b": ping\n\n"], ends="reset")),
    ):
        upstream.script(word, step)
        answer = gateway.chat(word, model="r-1", stream=True)
        assert upstream.count(word) == 1, word
        assert gateway.reason_of(answer)[0] == "failed", word


def test_a_reset_before_the_first_byte_is_tried_again_then_502(gateway, upstream):
    upstream.script("rst", reset)
    answer = gateway.chat("rst", model="r-1")
    assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_broken")
    assert upstream.count("rst") in (3, 4)  # one more where the first connection was a kept one
    assert gateway.reason_of(answer) == ("failed", "upstream_broken")
    upstream.script("rst2", reset, whole(chat_answer("ok")))
    assert text(gateway.chat("rst2", model="r-1")) == "ok"


def test_the_circuit_opens_is_tried_once_and_closes(gateway, upstream):
    upstream.script("cb", fails(500))
    for _ in range(2):
        assert gateway.chat("cb", model="c-1").status == 500
    answer = gateway.chat("cb", model="c-1")
    assert (answer.status, answer.json["error"]["code"]) == (503, "upstream_unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    assert upstream.count("cb") == 2
    assert gateway.reason_of(answer) == ("failed", "upstream_unavailable")
    # Half open: one that fails closes it again for as long.
    time.sleep(0.8)
    assert gateway.chat("cb", model="c-1").status == 500
    assert gateway.chat("cb", model="c-1").status == 503
    assert upstream.count("cb") == 3
    # One alone tries; the others wait for what it finds.
    time.sleep(0.8)
    end = threading.Event()
    upstream.script("cb-probe", after(end, whole(chat_answer("up"))))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        probe = pool.submit(gateway.chat, "cb-probe", model="c-1")
        wait_for(lambda: upstream.count("cb-probe"))
        assert gateway.chat("cb-other", model="c-1").status == 503
        end.set()
        assert text(probe.result()) == "up"
    assert text(gateway.chat("cb-other", model="c-1")) == "cb-other 1"


# --- What makes a request another one -------------------------------------------------------------

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
BASE = {"model": "m", "temperature": 0}


def pair(word, **fields):
    return {**BASE, "messages": [{"role": "user", "content": word}], **fields}


def dump(value):
    return json.dumps(value).encode()


def raw_pair(word, more):
    body = '{"model":"m","temperature":0,"messages":[{"role":"user","content":"%s"}],%s}'
    return (body % (word, more)).encode()


def tool_turn(word, id="call_1", arguments="{}"):
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return pair(
        word,
        messages=[
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": id, "content": "r"},
            {"role": "user", "content": word},
        ],
    )


DIFFER = {
    "num_ctx": lambda w: (dump(pair(w, num_ctx=2048)), dump(pair(w, num_ctx=8192))),
    "options": lambda w: (
        dump(pair(w, options={"num_ctx": 2048})),
        dump(pair(w, options={"num_ctx": 8192})),
    ),
    "tool_choice": lambda w: (
        dump(pair(w, tools=[TOOL], tool_choice="auto")),
        dump(pair(w, tools=[TOOL], tool_choice="none")),
    ),
    "tools": lambda w: (dump(pair(w)), dump(pair(w, tools=[TOOL]))),
    "response_format": lambda w: (
        dump(pair(w)),
        dump(pair(w, response_format={"type": "json_object"})),
    ),
    "tool_call_id": lambda w: (dump(tool_turn(w, "call_1")), dump(tool_turn(w, "call_2"))),
    "arguments": lambda w: (
        dump(tool_turn(w, arguments='{"id": 2512292042121000001}')),
        dump(tool_turn(w, arguments='{"id": 2512292042121000000}')),
    ),
    "system": lambda w: (
        dump(pair(w)),
        dump(
            pair(
                w,
                messages=[
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": w},
                ],
            )
        ),
    ),
    "big_integer": lambda w: (
        raw_pair(w, '"x":2512292042121000001'),
        raw_pair(w, '"x":2512292042121000000'),
    ),
    "long_fraction": lambda w: (
        raw_pair(w, '"x":0.1000000000000000055'),
        raw_pair(w, '"x":0.1'),
    ),
    "huge": lambda w: (raw_pair(w, '"x":1e400'), raw_pair(w, '"x":1e401')),
    "seed_text": lambda w: (dump(pair(w, seed=1)), dump(pair(w, seed="1"))),
    "stop": lambda w: (dump(pair(w, stop=["a"])), dump(pair(w, stop="['a']"))),
    "user_seed": lambda w: (
        dump(pair(w, safety_identifier="u", seed=1)),
        dump(pair(w, safety_identifier="useed: 1")),
    ),
    "min_p": lambda w: (dump(pair(w, min_p=0.1)), dump(pair(w, min_p=0.2))),
    "guided_json": lambda w: (dump(pair(w, guided_json={})), dump(pair(w))),
    "extra_body": lambda w: (
        dump(pair(w, extra_body={"top_k": 1})),
        dump(pair(w, extra_body={"top_k": 2})),
    ),
    "null": lambda w: (dump(pair(w, logit_bias=None)), dump(pair(w))),
    "model": lambda w: (dump(pair(w)), dump(pair(w, model="m2"))),
    "surrogate": lambda w: (raw_pair(w, r'"x":"\ud800"'), raw_pair(w, r'"x":"\ud801"')),
    "order_of_messages": lambda w: (
        dump(
            pair(
                w,
                messages=[
                    {"role": "user", "content": "a"},
                    {"role": "user", "content": "b"},
                    {"role": "user", "content": w},
                ],
            )
        ),
        dump(
            pair(
                w,
                messages=[
                    {"role": "user", "content": "b"},
                    {"role": "user", "content": "a"},
                    {"role": "user", "content": w},
                ],
            )
        ),
    ),
}


@pytest.mark.parametrize("name", list(DIFFER))
def test_requests_that_differ_never_share_an_answer(gateway, upstream, name):
    word = f"differ-{name}"
    first, second = DIFFER[name](word)
    answers = [gateway.raw(body) for body in (first, second, first, second)]
    assert [a.cache for a in answers] == ["miss", "miss", "hit", "hit"], name
    assert answers[0].body == answers[2].body
    assert answers[1].body == answers[3].body
    assert upstream.count(word) == 2
    prints = [a.headers["verbatim-fingerprint"] for a in answers]
    assert prints[0] == prints[2] != prints[1] == prints[3]


SAME = {
    "key_order": lambda w: (dump(pair(w, top_p=1, n=1)), dump({"n": 1, **pair(w, top_p=1)})),
    "deep_key_order": lambda w: (
        raw_pair(w, '"x":{"a":1,"b":{"c":2,"d":3}}'),
        raw_pair(w, '"x":{"b":{"d":3,"c":2},"a":1}'),
    ),
    "number_texts": lambda w: (raw_pair(w, '"top_p":1'), raw_pair(w, '"top_p":1.0')),
    "exponents": lambda w: (raw_pair(w, '"x":100'), raw_pair(w, '"x":1e2')),
    "zeros": lambda w: (
        raw_pair(w, '"presence_penalty":0'),
        raw_pair(w, '"presence_penalty":-0.0'),
    ),
    "escapes": lambda w: (raw_pair(w, '"x":"\\u00e9/"'), raw_pair(w, '"x":"é\\/"')),
    "space": lambda w: (
        dump(pair(w)),
        json.dumps(pair(w), indent=3).encode() + b"\n\r\t ",
    ),
    "user": lambda w: (dump(pair(w, user="a")), dump(pair(w, user="b"))),
}


@pytest.mark.parametrize("name", list(SAME))
def test_requests_that_say_the_same_are_one(gateway, upstream, name):
    word = f"same-{name}"
    first, second = (gateway.raw(body) for body in SAME[name](word))
    assert (first.cache, second.cache) == ("miss", "hit"), name
    assert first.body == second.body
    assert upstream.count(word) == 1


def test_stream_and_its_options_make_no_other_request(gateway, upstream):
    plain = gateway.chat("same-stream")
    streamed = gateway.chat("same-stream", stream=True)
    usage = gateway.chat("same-stream", stream=True, stream_options={"include_usage": True})
    assert plain.cache == "miss"
    assert streamed.cache == usage.cache == "hit; converted"
    assert upstream.count("same-stream") == 1
    assert b'"usage":{' not in streamed.body and b'"usage":{' in usage.body
    # And from a stream.
    streamed = gateway.chat("same-stream2", stream=True)
    plain = gateway.chat("same-stream2")
    assert (streamed.cache, plain.cache) == ("miss", "hit; converted")
    assert text(plain) == "same-stream2 1"


def test_headers_that_count_and_those_that_do_not(gateway, upstream):
    for name, counts in (
        ("x-variant", True),
        ("anthropic-beta", True),
        ("openai-beta", True),
        ("x-trace", False),
        ("x-request-id", False),
        ("x-stainless-retry-count", False),
        ("user-agent", False),
        ("traceparent", False),
    ):
        word = f"head-{name}"
        values = ("a", "b")
        caches = [gateway.chat(word, {name: v}).cache for v in values + values]
        assert caches == (
            ["miss", "miss", "hit", "hit"] if counts else ["miss", "hit", "hit", "hit"]
        ), name
    assert upstream.seen("head-x-trace")[0].headers["x-trace"] == "a"


def test_api_version_counts(gateway, upstream):
    caches = []
    for version in ("2024-10-21", "2025-01-01", "2024-10-21", "2025-01-01"):
        answer = gateway.ask(
            "POST",
            f"/openai/deployments/az-1/chat/completions?api-version={version}",
            {"messages": [{"role": "user", "content": "azv"}], "temperature": 0},
        )
        caches.append(answer.cache)
    assert caches == ["miss", "miss", "hit", "hit"]


# --- What serves as a hit, and what does not ------------------------------------------------------

SAMPLED = {
    "sampled": {"temperature": 1},
    "unsaid": {"temperature": None},
}
STATEFUL = {
    "file_id": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "WORD"},
                    {"type": "file", "file": {"file_id": "file-1"}},
                ],
            }
        ]
    },
    "image_url": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "WORD"},
                    {"type": "image_url", "image_url": {"url": "https://a.example/i.png"}},
                ],
            }
        ]
    },
    "web_search": {"web_search_options": {}},
    "hosted_tool": {"tools": [{"type": "web_search_preview"}]},
}


def caches_of(gateway, word, fields, times=2):
    fields = json.loads(json.dumps(fields).replace("WORD", word))
    if "messages" in fields:
        body = {"model": "m", "temperature": 0, **fields}
        return [
            gateway.ask("POST", "/v1/chat/completions", body).cache for _ in range(times)
        ]
    return [gateway.chat(word, **fields).cache for _ in range(times)]


def responses_caches(gateway, word, **fields):
    body = {"model": "m", "input": word, "temperature": 0, **fields}
    return [gateway.ask("POST", "/v1/responses", body).cache for _ in range(2)]


def response_object(word):
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": word, "annotations": []}],
            }
        ],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    }


def test_sampled_and_stateful_requests_are_recorded_and_no_hits(gateway, upstream):
    for name, fields in {**SAMPLED, **STATEFUL}.items():
        assert caches_of(gateway, f"sam-{name}", fields) == ["miss", "miss"], name
    assert caches_of(gateway, "sam-seed", {"temperature": 1, "seed": 7}) == ["miss", "hit"]
    data = "data:image/png;base64,iVBORw0KGgo="
    inline = json.loads(json.dumps(STATEFUL["image_url"]).replace("https://a.example/i.png", data))
    assert caches_of(gateway, "sam-data", inline) == ["miss", "hit"]
    assert caches_of(gateway, "sam-tool", {"tools": [TOOL]}) == ["miss", "hit"]
    for name, fields in {
        "prev": {"previous_response_id": "resp_0"},
        "conv": {"conversation": "conv_1"},
        "tool": {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]},
        "stored": {"prompt": {"id": "pmpt_1"}},
    }.items():
        upstream.script(f"sam-r-{name}", whole(response_object("x")))
        assert responses_caches(gateway, f"sam-r-{name}", **fields) == ["miss", "miss"], name
    upstream.script("sam-r-plain", whole(response_object("x")))
    assert responses_caches(gateway, "sam-r-plain") == ["miss", "hit"]


def test_policy_makes_them_hits(gateway):
    try:
        gateway.reload("policy: {hits: {sampled: true, stateful: true}}\n")
        for name, fields in {**SAMPLED, **STATEFUL}.items():
            assert caches_of(gateway, f"pol-{name}", fields) == ["miss", "hit"], name
        gateway.reload("policy: {hits: {sampled: true}}\n")
        assert caches_of(gateway, "pol-sampled", SAMPLED["sampled"]) == ["hit", "hit"]
        assert caches_of(gateway, "pol2-hosted", STATEFUL["hosted_tool"]) == ["miss", "miss"]
    finally:
        gateway.reload()


def test_content_that_was_refused_is_recorded_and_no_hit(gateway, upstream):
    upstream.script("filter", whole(chat_answer("no", finish_reason="content_filter")))
    answers = [gateway.chat("filter") for _ in range(2)]
    assert [a.cache for a in answers] == ["miss", "miss"]
    entry = gateway.entry_of(answers[0])
    assert entry["leaf_json"]["kind"] == "generated"
    assert entry["record"]["backend"]["reported"]["finish_reasons"] == ["content_filter"]
    try:
        gateway.reload("policy: {hits: {finish_reasons: [stop, content_filter]}}\n")
        assert [gateway.chat("filter2").cache for _ in range(2)] == ["miss", "hit"]
        upstream.script("filter3", whole(chat_answer("no", finish_reason="content_filter")))
        assert [gateway.chat("filter3").cache for _ in range(2)] == ["miss", "hit"]
    finally:
        gateway.reload()


def test_old_answers_run_again(gateway, upstream):
    assert [gateway.chat("age").cache for _ in range(2)] == ["miss", "hit"]
    time.sleep(2.1)
    assert gateway.chat("age", {"cache-control": "max-age=1"}).cache == "miss"
    assert gateway.chat("age", {"cache-control": "max-age=60"}).cache == "hit"
    try:
        gateway.reload("policy: {hits: {max_age_seconds: 1}}\n")
        renewed = gateway.chat("age")
        assert (renewed.cache, text(renewed)) == ("miss", "age 3")
        again = gateway.chat("age")
        assert (again.cache, again.body) == ("hit", renewed.body)
    finally:
        gateway.reload()


def test_cache_control(gateway, upstream):
    first = gateway.chat("cc")
    again = gateway.chat("cc", {"cache-control": "no-cache"})
    assert (again.cache, text(again)) == ("miss", "cc 2")
    hit = gateway.chat("cc")
    assert (hit.cache, hit.body) == ("hit", first.body), "hits serve the first complete result"
    kept = gateway.chat("cc-ns", {"cache-control": "no-store"})
    assert kept.cache == "miss"
    assert gateway.chat("cc-ns").cache == "miss"
    entry = gateway.entry_of(kept, payload=True)
    assert (entry["request"], entry["response"]) == ("", "")
    assert gateway.chat("cc", {"cache-control": "only-if-cached"}).cache == "hit"
    missing = gateway.chat("cc-none", {"cache-control": "Only-If-Cached"})
    assert (missing.status, missing.headers["x-should-retry"]) == (504, "false")
    assert upstream.count("cc-none") == 0
    assert gateway.reason_of(missing)[0] == "refused"


def test_modes(gateway, upstream):
    recorded = gateway.chat("mode", num_ctx=2048, tools=[TOOL])
    entry = gateway.receipt_of(recorded)["entry"]
    try:
        gateway.reload("policy: {mode: observe}\n")
        answers = [gateway.chat("mode-o") for _ in range(2)]
        assert [a.cache for a in answers] == ["observed", "observed"]
        assert [text(a) for a in answers] == ["mode-o 1", "mode-o 2"]

        gateway.reload("policy: {mode: replay}\n")
        hit = gateway.chat("mode", num_ctx=2048, tools=[TOOL])
        assert (hit.cache, hit.body) == ("hit", recorded.body)
        assert gateway.chat("mode-o").cache == "hit", "observed answers serve later"
        miss = gateway.chat("mode", num_ctx=8192, tools=[TOOL], seed=1)
        assert (miss.status, miss.headers["x-should-retry"]) == (504, "false")
        message = miss.json["error"]["message"]
        assert f"entry {entry}" in message
        assert "/num_ctx" in message and "/seed" in message and "/tools" not in message
        assert gateway.reason_of(miss) == ("refused", miss.json["error"]["code"])
        assert upstream.count("mode") == 1

        gateway.reload("policy: {mode: bypass}\n")
        answers = [gateway.chat("mode") for _ in range(2)]
        assert [a.cache for a in answers] == ["bypass", "bypass"]
        bypassed = gateway.entry_of(answers[0], payload=True)
        assert (bypassed["request"], bypassed["response"]) == ("", "")

        gateway.reload("policy: {mode: verify}\n")
        before = len(gateway.leaves())
        hit = gateway.chat("mode", num_ctx=2048, tools=[TOOL])
        assert (hit.cache, hit.body) == ("hit", recorded.body)
        outcome = wait_for(lambda: [
            leaf for leaf in gateway.leaves(before) if leaf["kind"] in ("verified", "diverged")
        ])
        assert outcome[0]["kind"] == "diverged"
    finally:
        gateway.reload()


# --- Answers that are none ------------------------------------------------------------------------

ERROR_EVENT = event({"error": {"message": "overloaded", "type": "server_error", "code": 503}})
BROKEN = {
    "no_end": streams(chat_events("a", "b")[:2]),
    "no_finish": streams([chunk({"role": "assistant", "content": "a"}), event(b"[DONE]")]),
    "error_event": streams([chunk({"role": "assistant", "content": "a"}), ERROR_EVENT]),
    "error_then_done": streams(
        [chunk({"role": "assistant", "content": "a"}), ERROR_EVENT, event(b"[DONE]")]
    ),
    "error_alone": streams([ERROR_EVENT, event(b"[DONE]")]),
    "error_in_choice": streams(
        [chunk({"role": "assistant", "content": "a"}), chunk({}, "error"), event(b"[DONE]")]
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_streams_that_are_no_answers_pass_and_are_no_hits(gateway, upstream, name):
    upstream.script(f"bad-{name}", BROKEN[name])
    options = {"stream": True, "stream_options": {"include_usage": True}}
    direct = [gateway.chat(f"bad-{name}", **options) for _ in range(2)]
    assert all(a.status == 200 for a in direct)
    assert [a.cache for a in direct] == ["miss", "miss"]
    assert direct[0].body == direct[1].body != b""
    assert (b'"overloaded"' in direct[0].body) == ("error" in name and "choice" not in name)
    assert (b"[DONE]" in direct[0].body) == (name not in ("no_end", "error_event"))
    assert upstream.count(f"bad-{name}") == 2
    if name != "error_in_choice":
        kind, reason = gateway.reason_of(direct[0])
        assert kind == "failed" and reason not in ("", "ok"), reason


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_an_error_in_a_200_is_passed_on_and_kept_from_hits(gateway, upstream, stream):
    word = f"err200-{stream}"
    upstream.script(word, whole({"error": {"message": "out of memory", "code": 500}}))
    answers = [gateway.chat(word, stream=stream) for _ in range(2)]
    assert [a.cache for a in answers] == ["miss", "miss"]
    assert all(b"out of memory" in a.body for a in answers)
    assert gateway.reason_of(answers[0])[0] == "failed"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_an_empty_200_is_a_502(gateway, upstream, stream):
    for word, step in (
        (f"empty-{stream}", whole(b"")),
        (f"empty-rst-{stream}", reset),
        (f"empty-head-{stream}", streams([], ends="reset")),
        (f"empty-stream-{stream}", streams([])),
    ):
        upstream.script(word, step)
        answer = gateway.chat(word, stream=stream)
        assert answer.status == 502, (word, answer)
        assert answer.json["error"]["message"]
        assert gateway.reason_of(answer)[0] == "failed", word


def test_a_plain_body_that_is_shorter_than_announced(gateway, upstream):
    data = json.dumps(chat_answer("long " * 100)).encode()

    def short(handler, _):
        handler.send_response(200)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:-50])
        handler.close_connection = True

    upstream.script("short", short)
    answer = gateway.chat("short")
    assert answer.status == 502
    assert gateway.reason_of(answer)[0] == "failed"
    upstream.script("short", whole(data))
    assert gateway.chat("short").cache == "miss"


def test_a_body_that_is_no_json(gateway, upstream):
    html = whole(b"<html>gateway timeout</html>", headers={"content-type": "text/html"})
    upstream.script("html", html)
    for _ in range(2):
        answer = gateway.chat("html")
        assert answer.cache != "hit" and b"gateway timeout" in answer.body
    assert gateway.reason_of(answer)[0] == "failed"


# --- Many at once, and clients that leave ---------------------------------------------------------


def answers_at(end, said, stream):
    """A step: an answer, or all but its first event, once `end` is set."""
    return streams(chat_events(said), gate=end) if stream else after(end, whole(chat_answer(said)))


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_fifty_equal_requests_are_one_call(gateway, upstream, stream):
    word = f"fifty-{stream}"
    end = threading.Event()
    upstream.script(word, answers_at(end, "all", stream))
    timer = threading.Timer(1.0, end.set)
    timer.start()
    answers = together(gateway, 50, lambda _: gateway.chat(word, stream=stream))
    assert {a.status for a in answers} == {200}
    assert len({a.body for a in answers}) == 1
    assert upstream.count(word) == 1
    caches = [a.cache for a in answers]
    assert caches.count("miss") == 1 and set(caches) <= {"miss", "shared", "hit"}
    assert len({a.headers["x-request-id"] for a in answers}) == 50
    kinds = [gateway.receipt_of(a)["kind"] for a in answers if a.cache == "shared"][:3]
    assert set(kinds) <= {"hits"}, kinds


def test_streamed_and_plain_clients_join_one_call(gateway, upstream):
    for word, leads_streamed in (("join-s", True), ("join-p", False)):
        end = threading.Event()
        upstream.script(word, answers_at(end, "together", leads_streamed))

        def ask(i):
            if i:
                wait_for(lambda: upstream.count(word))
                time.sleep(0.1)
            return gateway.chat(word, stream=(i % 2 == 0) == leads_streamed)

        timer = threading.Timer(1.0, end.set)
        timer.start()
        answers = together(gateway, 8, ask)
        assert [a.cache for a in answers] == ["miss", *["shared; converted", "shared"] * 3,
                                              "shared; converted"]
        assert {a.body for a in answers[::2]} == {answers[0].body}
        assert len({a.body for a in answers[1::2]}) == 1
        plain = answers[1] if leads_streamed else answers[0]
        assert text(plain) == "together"
        assert upstream.count(word) == 1


def test_everyone_who_waits_gets_the_failure_or_the_fallbacks_answer(gateway, upstream):
    for word, model, steps in (
        ("all-503", "m", [fails(503)]),
        ("all-fb", "p-1", [fails(503), whole(chat_answer("backup"))]),
    ):
        end = threading.Event()
        upstream.script(word, after(end, steps[0]), *steps[1:])
        timer = threading.Timer(0.2, end.set)

        def ask(i):
            if i:
                wait_for(lambda: upstream.count(word))
            else:
                timer.start()
            return gateway.chat(word, model=model)

        answers = together(gateway, 6, ask)
        assert upstream.count(word) == len(steps)
        if model == "m":
            assert {a.status for a in answers} == {503}
            assert {gateway.reason_of(a)[0] for a in answers} == {"failed"}
        else:
            assert {text(a) for a in answers} == {"backup"}
            assert {a.headers["verbatim-upstream"] for a in answers} == {"backup"}
            assert len({a.headers["verbatim-fingerprint"] for a in answers}) == 1


HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    b"content-type: application/json\r\n"
)


def start_and_leave(gateway, word, stream, upstream):
    """Sends a request and hangs up once it is at the upstream."""
    body = dump(pair(word, stream=stream))
    client = socket.create_connection(("127.0.0.1", gateway.port))
    client.sendall(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))
    gateway.asked.append(None)
    wait_for(lambda: upstream.count(word))
    return client


def test_a_plain_client_who_leaves_alone_cancels_the_call_too(gateway, upstream):
    before = len(gateway.leaves())
    end = threading.Event()
    upstream.script("leave-p", after(end, whole(chat_answer("x"))))
    client = start_and_leave(gateway, "leave-p", False, upstream)
    client.close()
    wait_for(lambda: gateway.metric("verbatim_runs_in_flight") == 0)
    end.set()
    left = [leaf for leaf in gateway.leaves(before) if leaf["kind"] == "cancelled"]
    assert [leaf["outcome"] for leaf in left] == ["client_gone"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_followers_get_the_answer_of_a_leader_who_left(gateway, upstream, stream):
    word = f"leader-{stream}"
    end = threading.Event()
    upstream.script(word, answers_at(end, "late", stream))
    leader = start_and_leave(gateway, word, stream, upstream)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        followers = [pool.submit(gateway.chat, word, stream=stream) for _ in range(2)]
        # The one for metrics counts too.
        wait_for(lambda: gateway.metric("verbatim_requests_running") == 4)
        leader.close()
        wait_for(lambda: gateway.metric("verbatim_requests_running") == 3)
        end.set()
        answers = [f.result() for f in followers]
    assert [a.cache for a in answers] == ["shared", "shared"]
    assert all(a.status == 200 and a.whole and b"late" in a.body for a in answers)
    assert upstream.count(word) == 1
    assert gateway.chat(word, stream=stream).cache == "hit"


def test_a_client_who_leaves_alone_cancels_the_call_and_leaves_an_entry(gateway, upstream):
    before = gateway.leaves()
    upstream.script("leave", streams(chat_events(*["x" * 1000] * 400), pause=0.02))
    client = start_and_leave(gateway, "leave", True, upstream)
    assert b"200 OK" in client.recv(1000)
    client.close()
    wait_for(lambda: upstream.gone["leave"])
    assert gateway.metric("verbatim_runs_in_flight") == 0
    left = [leaf for leaf in gateway.leaves(len(before)) if leaf["kind"] == "cancelled"]
    assert [leaf["outcome"] for leaf in left] == ["client_gone"]
    # The slot is free: the next one runs by itself.
    upstream.script("leave", streams(chat_events("whole")))
    answer = gateway.chat("leave", stream=True)
    assert (answer.cache, answer.whole) == ("miss", True)


def test_a_reload_without_the_upstream_leaves_running_calls_alone(gateway, upstream):
    end = threading.Event()
    upstream.script("flying", answers_at(end, "landed", True))
    template = gateway.template
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(gateway.chat, "flying", stream=True)
            wait_for(lambda: upstream.count("flying"))
            gateway.template = (
                'server: {{access_log: access.log}}\n'
                'upstreams: {{other: {{url: "{url}/v1", models: ["other"]}}}}\n{more}'
            )
            gateway.reload()
            assert gateway.chat("flying2").status == 404
            end.set()
            answer = running.result()
        assert (answer.status, answer.whole, answer.cache) == (200, True, "miss")
    finally:
        gateway.template = template
        gateway.reload()
    assert gateway.chat("flying", stream=True).cache == "hit"


def test_requests_in_a_row_on_one_connection(gateway, upstream):
    body = dump(pair("row"))
    request = HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body)
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as client:
        client.sendall(request * 4)
        gateway.asked += [None] * 4
        caches = []
        for _ in range(4):
            response = http.client.HTTPResponse(client)
            # Reads no further than this answer's end.
            response.fp = client.makefile("rb", buffering=0)
            response.begin()
            assert json.loads(response.read())["choices"][0]["message"]["content"] == "row 1"
            caches.append(response.headers["verbatim-cache"])
    assert caches == ["miss", "hit", "hit", "hit"]


def test_who_reads_slowly_keeps_nobody_waiting(gateway, upstream):
    pieces = ["x" * 100_000] * 300
    upstream.script("slow", streams(chat_events(*pieces)))
    body = dump(pair("slow", stream=True))
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as client:
        client.sendall(HEAD + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        gateway.asked.append(None)
        wait_for(lambda: upstream.count("slow"))
        began = time.monotonic()
        assert gateway.chat("quick").status == 200
        assert time.monotonic() - began < 5
        # Who asks for the same is not held up either.
        fast = gateway.chat("slow", stream=True)
        assert fast.status == 200 and fast.whole and len(fast.body) > 30_000_000
        assert upstream.count("slow") == 1


# --- Bytes ----------------------------------------------------------------------------------------


def test_the_clients_own_texts_reach_the_upstream(gateway, upstream):
    body = (
        '{"model":"m","temperature":0.0,"messages":[{"role":"user","content":"bytes"}],'
        '"big":2512292042121000001,"fraction":0.10,"huge":1e400,'
        '"escaped":"\\u00e9\\ud83d\\ude00\\/","lone":"\\ud800","line":"\u2028",'
        '"tools":[{"type":"function","function":{"name":"f","parameters":'
        '{"default":{"id":2512292042121000001,"e":1E+2}}}}]}'
    )
    answer = gateway.raw(body)
    assert answer.status == 200
    sent = upstream.seen("bytes")[0].body.decode()
    names = "big|fraction|huge|escaped|lone|line|tools|temperature"
    for piece in re.findall(rf'"(?:{names})":[^,}}]+', body):
        assert piece in sent, piece
    assert '"e":1E+2' in sent
    # Again, but not served from here: equal bytes.
    gateway.raw(body, {"cache-control": "no-cache"})
    assert upstream.seen("bytes")[1].body.decode() == sent
    spaced = json.dumps(json.loads(body.replace("1e400", "1"), parse_float=str), indent=1)
    assert gateway.raw(spaced.replace('"bytes"', '"bytes2"')).status == 200


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_number_texts_of_answers_stay(gateway, upstream, stream):
    word = f"digits-{stream}"
    arguments = '{"id": 2512292042121000001, "x": 0.10, "y": 1e400}'
    call = {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    }
    extra = '"weight":0.10,"big":2512292042121000001,"huge":1e400'
    if stream:
        events = [
            chunk({"role": "assistant", "tool_calls": [call]}),
            chunk({}, "tool_calls").replace(b'"created": 1', b'"created": 1,' + extra.encode()),
            event(b"[DONE]"),
        ]
        want = b"".join(events)
        upstream.script(word, streams(events))
    else:
        want = json.dumps(
            chat_answer(None, finish_reason="tool_calls", tool_calls=[call])
        ).replace('"created": 1', '"created": 1,' + extra)
        want = want.encode()
        upstream.script(word, whole(want))
    for cache in ("miss", "hit"):
        answer = gateway.chat(word, stream=stream)
        assert (answer.cache, answer.body) == (cache, want)


def test_gzip_from_the_upstream(gateway, upstream):
    plain = json.dumps(chat_answer("zipped")).encode()
    upstream.script(
        "gz", whole(gzip.compress(plain), headers={"content-encoding": "gzip"})
    )
    for cache in ("miss", "hit"):
        answer = gateway.chat("gz", {"accept-encoding": "gzip"})
        assert (answer.cache, answer.body) == (cache, plain)
        assert "content-encoding" not in answer.headers
        assert "transfer-encoding" not in answer.headers
    bad = gzip.compress(plain)[:-12]
    upstream.script("gzbad", whole(bad, headers={"content-encoding": "gzip"}))
    answer = gateway.chat("gzbad")
    assert answer.status == 502
    assert gateway.reason_of(answer)[0] == "failed"


def brotli_stored(data):
    """RFC 7932: a window of 16 bits, one uncompressed meta-block, an empty last one."""
    assert 0 < len(data) <= 1 << 16
    return ((len(data) - 1) << 4 | 1 << 20).to_bytes(3, "little") + data + b"\x03"


def zstd_stored(data):
    """RFC 8878: a frame of one segment with its size in 4 bytes, and one raw block, the last."""
    header = b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little")
    return header + (len(data) << 3 | 1).to_bytes(3, "little") + data


@pytest.mark.parametrize("coding, encode", [("br", brotli_stored), ("zstd", zstd_stored)])
def test_brotli_and_zstandard_from_the_upstream(gateway, upstream, coding, encode):
    plain = json.dumps(chat_answer(coding)).encode()
    upstream.script(coding, whole(encode(plain), headers={"content-encoding": coding}))
    for cache in ("miss", "hit"):
        answer = gateway.chat(coding)
        assert (answer.cache, answer.body) == (cache, plain)
        assert "content-encoding" not in answer.headers
    events = b"".join(chat_events(coding, "!"))
    upstream.script(f"{coding}-s", streams([bytes([b]) for b in encode(events)],
                                           headers={"content-encoding": coding}))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for cache in ("miss", "hit"):
        answer = gateway.chat(f"{coding}-s", **options)
        assert (answer.cache, answer.body) == (cache, events)
    cut = whole(encode(plain)[:-3], headers={"content-encoding": coding})
    upstream.script(f"{coding}-cut", cut)
    assert gateway.chat(f"{coding}-cut").status == 502


def raw_reply(head, body=b"", close=False):
    """A step: these bytes."""

    def step(handler, _):
        handler.wfile.write(head.replace(b"\n", b"\r\n") + b"\r\n" + body)
        handler.close_connection = close

    return step


def test_replies_of_unusual_form(gateway, upstream):
    body = json.dumps(chat_answer("odd")).encode()
    length = b"content-length: %d\n" % len(body)
    kind = b"content-type: application/json; charset=utf-8\n"
    good = {
        "interim": raw_reply(b"HTTP/1.1 103 Early Hints\nlink: x\n\nHTTP/1.1 100 Continue\n\n"
                             b"HTTP/1.1 200 OK\n" + kind + length, body),
        "close": raw_reply(b"HTTP/1.0 200 OK\n" + kind, body, True),
        "untyped": raw_reply(b"HTTP/1.1 200 OK\n" + length, body),
        "no-reason": raw_reply(b"HTTP/1.1 200 \n" + kind + length, body),
    }
    for name, step in good.items():
        upstream.script(f"odd-{name}", step)
        answers = [gateway.chat(f"odd-{name}") for _ in range(2)]
        assert [(a.cache, a.body) for a in answers] == [("miss", body), ("hit", body)], name
    bad = {
        "no-content": raw_reply(b"HTTP/1.1 204 No Content\n"),
        "no-http": raw_reply(b"SSH-2.0-x\n", close=True),
        "two-lengths": raw_reply(
            b"HTTP/1.1 200 OK\n" + kind + length + b"content-length: 5\n", body
        ),
        "length-and-chunks": raw_reply(
            b"HTTP/1.1 200 OK\n" + kind + length + b"transfer-encoding: chunked\n",
            b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), True),
        "bad-chunk": raw_reply(b"HTTP/1.1 200 OK\n" + kind + b"transfer-encoding: chunked\n",
                               b"zz\r\n", True),
        "coding": whole(body, headers={"content-encoding": "compress"}),
    }
    for name, step in bad.items():
        upstream.script(f"odd-{name}", step)
        answer = gateway.chat(f"odd-{name}")
        assert answer.status == 502, (name, answer)
        assert gateway.reason_of(answer)[0] == "failed", name
    # Half of a body that the connection's end ends: as it came, and no answer.
    upstream.script("odd-half", raw_reply(b"HTTP/1.0 200 OK\n" + kind, body[:-9], True))
    half = gateway.chat("odd-half")
    assert half.status == 502 or half.body == body[:-9]
    assert gateway.reason_of(half)[0] == "failed"


def test_the_other_form_than_was_asked_for_is_no_hit(gateway, upstream):
    for word, step, stream in (
        ("form-plain", whole(chat_answer("x")), True),
        ("form-stream", streams(chat_events("x")), False),
    ):
        upstream.script(word, step)
        answers = [gateway.chat(word, stream=stream) for _ in range(2)]
        assert [(a.status, a.cache) for a in answers] == [(200, "miss")] * 2, word


def test_fewer_choices_than_asked_for_are_no_answer(gateway, upstream):
    upstream.script("choices", whole(chat_answer("one")))
    answers = [gateway.chat("choices", n=2) for _ in range(2)]
    assert [(a.status, a.cache) for a in answers] == [(200, "miss")] * 2
    assert gateway.reason_of(answers[0])[0] == "failed"


def test_headers_of_the_reply(gateway, upstream):
    headers = {"set-cookie": "a=b", "verbatim-cache": "hit", "x-request-id": "up-1",
               "openai-version": "v", "x-ratelimit-remaining-requests": "5", "via": "x"}
    upstream.script("reply-headers", whole(chat_answer("x"), headers=headers))
    miss, hit = (gateway.chat("reply-headers") for _ in range(2))
    assert (miss.cache, hit.cache) == ("miss", "hit")
    for answer in (miss, hit):
        assert not {"set-cookie", "via"} & set(answer.headers)
        assert answer.headers["openai-version"] == "v"
        assert answer.headers["x-request-id"] != "up-1"
    # What says something of that moment, and not of the answer.
    of_the_moment = {"x-ratelimit-remaining-requests": "5", "verbatim-upstream-request-id": "up-1"}
    for name, value in of_the_moment.items():
        assert miss.headers[name] == value
        assert name not in hit.headers


def test_bodies_that_are_no_requests_are_refused_with_entries(gateway, upstream):
    for body in (b"", b"[1]", b'{"model":"m","model":"m2","messages":[]}',
                 b'{"model":"m","messages":"\xff"}', b'{"messages":[]}', b'{"model":5}',
                 b'{"model":"m","a":' + b"[" * 300 + b"]" * 300 + b"}"):
        answer = gateway.raw(body)
        assert answer.status == 400, body[:40]
        assert gateway.reason_of(answer)[0] == "refused"
    answer = gateway.chat("promise", deterministic=True)
    assert (answer.status, answer.json["error"]["param"]) == (400, "deterministic")
    assert upstream.count("promise") == 0


def test_the_query_goes_upstream_and_counts(gateway, upstream):
    paths = ["/v1/chat/completions" + q for q in ("?a=1", "?a=2", "?a=1", "")]
    caches = [gateway.ask("POST", path, pair("query")).cache for path in paths]
    assert caches == ["miss", "miss", "hit", "miss"]
    assert [s.path for s in upstream.seen("query")] == [paths[0], paths[1], paths[3]]


def exchange(gateway, request, parts=()):
    """Raw bytes there, the answer back: (interim, status line and headers, body)."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=20) as client:
        client.sendall(request)
        reader = client.makefile("rb")
        interim = b""
        for part in parts:
            if part is None:
                interim = reader.readline() + reader.readline()
            else:
                client.sendall(part)
        gateway.asked.append(None)
        response = http.client.HTTPResponse(client)
        response.begin()
        return interim, response, response.read()


def test_expect_100_continue(gateway, upstream):
    body = dump(pair("expect"))
    head = HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body)
    interim, response, data = exchange(gateway, head, [None, body])
    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert response.status == 200 and b"expect 1" in data
    assert "expect" not in upstream.seen("expect")[0].headers


def test_a_chunked_request_in_small_packets(gateway, upstream):
    body = dump(pair("chunked", note="é" * 50))
    chunks = b"".join(b"%X;a=b\r\n%s\r\n" % (len(body[i : i + 7]), body[i : i + 7])
                      for i in range(0, len(body), 7)) + b"0\r\n\r\n"
    head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
    packets = [chunks[i : i + 5] for i in range(0, len(chunks), 5)]
    _, response, data = exchange(gateway, head, packets)
    assert response.status == 200 and b"chunked 1" in data
    seen = upstream.seen("chunked")[0]
    assert json.loads(seen.body) == json.loads(body)
    assert "transfer-encoding" not in seen.headers
    assert gateway.raw(body).cache == "hit"


def test_bodies_of_five_megabytes_both_ways(gateway, upstream):
    long = "0123456789abcdef" * (5 << 16)
    upstream.script("large", whole(chat_answer(long)))
    first = gateway.chat("large", padding=long)
    assert (first.status, first.cache, text(first)) == (200, "miss", long)
    second = gateway.chat("large", padding=long)
    assert (second.cache, second.body) == ("hit", first.body)
    assert upstream.seen("large")[0].json["padding"] == long
    upstream.script("large-s", streams(chat_events(*[long[: 1 << 20]] * 5)))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = gateway.chat("large-s", **options)
    assert streamed.body == b"".join(chat_events(*[long[: 1 << 20]] * 5))
    again = gateway.chat("large-s", **options)
    assert (again.cache, again.body) == ("hit", streamed.body)


def test_headers_of_twenty_kilobytes(gateway, upstream):
    long = "v" * 20_000
    upstream.script("headers", whole(chat_answer("x"), headers={"openai-model": "w" * 7000}))
    answer = gateway.chat("headers", {"x-variant": long})
    assert answer.status == 200
    assert upstream.seen("headers")[0].headers["x-variant"] == long
    assert answer.headers["openai-model"] == "w" * 7000
    assert gateway.chat("headers", {"x-variant": long}).cache == "hit"


def test_text_cut_inside_characters_and_unusual_ones(gateway, upstream):
    events = chat_events("é\u2028x")
    raw = chunk({"content": "raw"}).replace(b'"raw"', '"日本\u2028語😀\u2029"'.encode())
    lone = chunk({"content": "lone"}).replace(b'"lone"', b'"\\ud800 \\udc00\\ud800"')
    body = b"".join([events[0], raw, lone, *events[1:]])
    upstream.script("utf8", streams([body[i : i + 3] for i in range(0, len(body), 3)]))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for cache in ("miss", "hit"):
        answer = gateway.chat("utf8", **options)
        assert (answer.cache, answer.body) == (cache, body)
    plain = gateway.chat("utf8")
    assert plain.cache == "hit; converted"
    got = json.loads(plain.body)["choices"][0]["message"]["content"]
    assert got == "é\u2028x" + "日本\u2028語😀\u2029" + "\ud800 \udc00\ud800"


# --- Credentials ----------------------------------------------------------------------------------


def test_configured_credentials_replace_the_clients(gateway, upstream):
    headers = {
        "authorization": f"Bearer {CLIENT_SECRET}",
        "x-api-key": CLIENT_SECRET,
        "api-key": CLIENT_SECRET,
        "cookie": f"session={CLIENT_SECRET}",
        "openai-organization": "org-client",
    }
    assert gateway.chat("cred", headers).status == 200
    sent = upstream.seen("cred")[0].headers
    assert sent["authorization"] == f"Bearer {SECRETS['VENDOR_KEY']}"
    assert CLIENT_SECRET not in str(sent) and "openai-organization" not in sent
    assert gateway.chat("cred", {"authorization": "Bearer another"}).cache == "hit"


def test_the_clients_credentials_pass_where_configured(gateway, upstream):
    headers = {"authorization": f"Bearer {CLIENT_SECRET}", "openai-organization": "org-client"}
    assert gateway.chat("own", headers, model="o-1").status == 200
    sent = upstream.seen("own")[0].headers
    assert sent["authorization"] == f"Bearer {CLIENT_SECRET}"
    assert sent["openai-organization"] == "org-client"
    # An error that repeats the key does not carry it to client or store.
    path = f"/v1/chat/completions?api_key={CLIENT_SECRET}&b=1"
    assert gateway.ask("POST", path, pair("own-query", model="o-1")).status == 200
    assert upstream.seen("own-query")[0].path == path
    upstream.script(
        "ownerr", whole({"error": {"message": f"Incorrect API key: {CLIENT_SECRET}"}}, 401)
    )
    answer = gateway.chat("ownerr", headers, model="o-1")
    assert answer.status == 401 and CLIENT_SECRET not in answer.body.decode()
    assert "[redacted]" in answer.json["error"]["message"]


def test_a_tokens_file_that_rotates(gateway, upstream):
    assert gateway.chat("rot1", model="t-1").status == 200
    replacement = gateway.folder / "token.new"
    replacement.write_text(TOKENS[1])
    replacement.rename(gateway.folder / "token")

    def rotated():
        gateway.chat("rot2", {"cache-control": "no-cache"}, model="t-1")
        return upstream.seen("rot2")[-1].headers["authorization"] == f"Bearer {TOKENS[1]}"

    wait_for(rotated)
    assert upstream.seen("rot1")[0].headers["authorization"] == f"Bearer {TOKENS[0]}"


def test_azure_in_and_out(gateway, upstream):
    body = {"messages": [{"role": "user", "content": "azure"}], "temperature": 0}
    path = "/openai/deployments/az-gpt/chat/completions?api-version=2024-10-21"
    answer = gateway.ask("POST", path, body, {"api-key": CLIENT_SECRET})
    assert text(answer) == "azure 1"
    seen = upstream.seen("azure")[0]
    assert seen.path == "/openai/deployments/dep-gpt/chat/completions?api-version=2024-10-21"
    assert seen.headers["api-key"] == SECRETS["AZURE_KEY"]
    assert "authorization" not in seen.headers
    # The same, asked for by an OpenAI client: the configured version is the same one.
    assert gateway.chat("azure", model="az-gpt").cache == "hit"
    # Azure's path in, another vendor out.
    other = gateway.ask("POST", "/openai/deployments/m5/chat/completions?api-version=1", body)
    assert other.status == 200
    assert upstream.seen("azure")[-1].path.startswith("/v1/chat/completions")
    assert upstream.seen("azure")[-1].json["model"] == "m5"


def test_openais_client(gateway, upstream):
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=CLIENT_SECRET, max_retries=0)
    request = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "gpt"}]}
    gateway.asked += [None] * 10
    upstream.script("gpt", streams(chat_events("bon", "jour")))

    def streamed():
        with client.chat.completions.stream(**request) as stream:
            final = stream.get_final_completion()
            return stream._response.headers["verbatim-cache"], final.choices[0]

    for cache in ("miss", "hit", "hit"):
        got, choice = streamed()
        assert (got, choice.message.content, choice.finish_reason) == (cache, "bonjour", "stop")
    for _ in range(2):
        raw = client.chat.completions.with_raw_response.create(**request)
        assert raw.headers["verbatim-cache"] == "hit; converted"
        assert raw.parse().choices[0].message.content == "bonjour"
    assert upstream.count("gpt") == 1
    assert upstream.seen("gpt")[0].headers["authorization"] == f"Bearer {SECRETS['VENDOR_KEY']}"

    # The client asks for base64 and takes lists of numbers, too.
    vectors = [{"object": "embedding", "index": i, "embedding": [0.5, i]} for i in range(2)]
    usage = {"prompt_tokens": 4, "total_tokens": 4}
    upstream.script(
        "vec", whole({"object": "list", "model": "m", "data": vectors, "usage": usage})
    )
    for cache in ("miss", "hit"):
        raw = client.embeddings.with_raw_response.create(
            model="m", input=["vec", "two"], extra_body={"temperature": 0}
        )
        assert raw.headers["verbatim-cache"] == cache
        assert [e.embedding for e in raw.parse().data] == [[0.5, 0], [0.5, 1]]
    seen = upstream.seen("vec")
    assert [(s.path, s.json["input"]) for s in seen] == [("/v1/embeddings", ["vec", "two"])]

    upstream.script("gpt-err", whole({"error": {"message": "busy", "type": "server_error"}}, 503))
    request["messages"] = [{"role": "user", "content": "gpt-err"}]
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(**request)
    retrying = client.with_options(max_retries=1)
    with pytest.raises(openai.InternalServerError):
        retrying.chat.completions.create(**request)
    assert upstream.count("gpt-err") == 3


def test_anthropics_client(gateway, upstream):
    client = anthropic.Anthropic(base_url=gateway.url, api_key=CLIENT_SECRET, max_retries=0)
    request = {
        "model": "claude-x",
        "max_tokens": 100,
        "extra_body": {"temperature": 0},
        "messages": [{"role": "user", "content": "claude"}],
    }
    gateway.asked += [None] * 6

    def streamed(request):
        with client.messages.stream(**request) as stream:
            final = stream.get_final_message()
            return stream.response.headers["verbatim-cache"], final

    cache, message = streamed(request)
    assert (cache, message.content[0].text, message.stop_reason) == ("miss", "bonjour", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 2)
    cache, message = streamed(request)
    assert (cache, message.content[0].text) == ("hit", "bonjour")
    raw = client.messages.with_raw_response.create(**request)
    assert raw.headers["verbatim-cache"] == "hit; converted"
    assert raw.parse().content[0].text == "bonjour"
    # And the other way round.
    request["messages"] = [{"role": "user", "content": "claude-plain"}]
    raw = client.messages.with_raw_response.create(**request)
    assert raw.headers["verbatim-cache"] == "miss"
    cache, message = streamed(request)
    assert (cache, message.content[0].text) == ("hit; converted", "bonjour")
    seen = upstream.seen("claude")[0]
    assert seen.path == "/v1/messages"
    assert seen.headers["x-api-key"] == SECRETS["ANTHROPIC_UPSTREAM_KEY"]
    assert seen.headers["anthropic-version"] == anthropic_version(client)
    upstream.script(
        "claude-err",
        whole({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, 529,
              {"x-should-retry": "false"}),
    )
    request["messages"] = [{"role": "user", "content": "claude-err"}]
    with pytest.raises(anthropic.APIStatusError) as error:
        client.messages.create(**request)
    assert error.value.status_code == 529
    assert error.value.body["error"]["type"] == "overloaded_error"


def anthropic_version(client):
    return client.default_headers["anthropic-version"]


@pytest.mark.parametrize("name", ["anthropic-beta", "anthropic-version"])
def test_anthropics_headers_count(gateway, name):
    caches = []
    for value in ("2023-06-01", "b-2", "2023-06-01", "b-2"):
        body = {
            "model": "claude-x",
            "max_tokens": 10,
            "temperature": 0,
            "messages": [{"role": "user", "content": f"abeta-{name}"}],
        }
        headers = {"anthropic-version": "2023-06-01", name: value}
        caches.append(gateway.ask("POST", "/v1/messages", body, headers).cache)
    assert caches == ["miss", "miss", "hit", "hit"]


# --- Verification ---------------------------------------------------------------------------------


def test_verification_says_how_often_an_upstream_repeats_itself(gateway, upstream):
    try:
        gateway.reload("policy: {verify: {rate: 1}}\n")
        before = len(gateway.leaves())
        for i in range(3):
            upstream.script(f"ver-eq-{i}", whole(chat_answer("always", "m-eq")))
            assert gateway.chat(f"ver-eq-{i}", model="m-eq").cache == "miss"
        for i in range(2):
            assert gateway.chat(f"ver-ne-{i}", model="m-ne").cache == "miss"
        upstream.script("ver-st", streams(chat_events("one", "two")), whole(chat_answer("onetwo")))
        assert gateway.chat("ver-st", model="m-st", stream=True).cache == "miss"

        def outcomes():
            kinds = [leaf["kind"] for leaf in gateway.leaves(before)]
            kinds = [kind for kind in kinds if kind in ("verified", "diverged")]
            return kinds if len(kinds) >= 6 else None

        kinds = wait_for(outcomes, 20)
        assert sorted(kinds)[:2] == ["diverged"] * 2
        rates = gateway.ask("GET", "/verbatim/v1/reproducibility").json["upstreams"]
        rates = {r["model"]: r for r in rates if r["upstream"] == "vendor"}
        assert (rates["m-eq"]["equal"], rates["m-eq"]["diverged"]) == (3, 0)
        assert (rates["m-ne"]["equal"], rates["m-ne"]["diverged"]) == (0, 2)
        # Wilson's interval at 95 %, of 3 in 3: 1 / (1 + z^2 / n).
        z2 = 1.959963984540054**2
        assert rates["m-eq"]["rate"] == 1 and abs(rates["m-eq"]["high"] - 1) < 1e-6
        assert abs(rates["m-eq"]["low"] - 1 / (1 + z2 / 3)) < 2e-3
        assert rates["m-ne"]["rate"] == 0 and rates["m-ne"]["low"] < 1e-6
        assert abs(rates["m-ne"]["high"] - (1 - 1 / (1 + z2 / 2))) < 2e-3
    finally:
        gateway.reload()


# --- At the end -----------------------------------------------------------------------------------


def test_zz_entries_equal_requests_and_no_secret_is_anywhere(gateway, environment):
    """Last: every request that this file made has one end in the ledger; then the server stops."""
    ids = [id for id in gateway.asked if id]
    assert len(ids) == len(set(ids))
    leaves = wait_for(lambda: all_accounted(gateway), 10)
    opened = [n for n, leaf in enumerate(leaves) if leaf["kind"] == "intent"]
    closed = [r["entry"] for leaf in leaves for r in leaf.get("references", [])
              if r["relation"] == "intent"]
    assert sorted(closed) == opened
    kept = gateway.chat("kept")
    assert gateway.stop() == 0
    gateway.start()
    after_restart = gateway.chat("kept")
    assert (after_restart.cache, after_restart.body) == ("hit", kept.body)
    assert gateway.chat("filter").cache == "miss"
    assert gateway.stop() == 0
    code, out, err = gateway_process.run("fsck", "--data", gateway.data, "--deep")
    assert code == 0, (out, err)
    secrets = [*SECRETS.values(), CLIENT_SECRET, *TOKENS]
    for file in [*pathlib.Path(gateway.data).rglob("*"), gateway.folder / "access.log"]:
        if file.is_file():
            data = file.read_bytes()
            assert not [s for s in secrets if s.encode() in data], file
    assert not [line for line in gateway.errors for s in secrets if s in line]


# A hit with an entry of its own is a fallback's recorded answer.
REQUEST_ENDS = {"generated", "failed", "refused", "cancelled", "interrupted", "hit"}


def all_accounted(gateway):
    leaves = gateway.leaves()
    ends = 0
    for leaf in leaves:
        if any(r["relation"] == "verifies" for r in leaf.get("references", [])):
            continue
        if leaf["kind"] in REQUEST_ENDS:
            ends += leaf.get("detail", {}).get("count", 1)
        elif leaf["kind"] == "hits":
            ends += leaf["detail"]["hits"]["count"]
    return leaves if ends == len(gateway.asked) else None
