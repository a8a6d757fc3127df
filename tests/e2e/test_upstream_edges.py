"""Where two callers meet in one call, and what of a call that nobody asked for is in the ledger."""

import concurrent.futures
import threading
import time

from scripted_gateway import module_gateway, secret, wait_for
from scripted_upstream import chat_answer, chat_events, fails, own_answer, whole

CONFIG = """\
server: {{access_log: access.log}}
upstreams:
  vendor:
    url: {url}/v1
    models: ["m*"]
    credentials: {{from: none}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  breaking:
    url: {url}/v1
    models: ["c-*"]
    credentials: {{from: none}}
    retries: {{attempts: 1}}
    breaker: {{failures: 2, window_ms: 30000, open_ms: 500}}
  own:
    url: {url}/v1
    models: ["o-*"]
    credentials: {{from: client}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
access:
  keys:
    - {{id: root, secret: "file:root", tenant: a, roles: [client, operator, auditor]}}
    - {{id: small, secret: "file:small", tenant: a, limits: {{tokens_per_minute: 60}}}}
    - {{id: few, secret: "file:few", tenant: b, limits: {{requests_per_minute: 1}}}}
{more}"""
NAMES = ("root", "small", "few")
gateway = module_gateway(CONFIG, NAMES)


def test_nobody_gets_the_refusal_of_another_key(gateway):
    """Of callers with equal requests, those over their own limit are refused, and no others."""
    for turn in range(12):

        def ask(i):
            key = secret("small") if i % 2 == 0 else secret("root")
            return gateway.chat(f"race{turn}", key=key, max_tokens=100)

        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(ask, range(10)))
        assert {a.status for a in answers[1::2]} == {200}
        assert {a.status for a in answers[::2]} <= {200, 429}


def test_nobody_gets_the_refusal_of_anothers_credentials(gateway, upstream):
    end = threading.Event()

    def step(handler, seen):
        end.wait(20)
        good = seen.headers.get("x-api-key") == "good"
        (own_answer if good else fails(401))(handler, seen)

    upstream.script("creds", step)

    def ask(value):
        headers = {"authorization": f"Bearer {gateway.key}", "x-api-key": value}
        return gateway.chat("creds", headers, model="o-1")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        bad = pool.submit(ask, "bad")
        wait_for(lambda: upstream.count("creds") == 1)
        good = pool.submit(ask, "good")
        wait_for(lambda: gateway.metric("verbatim_requests_running") == 3)
        end.set()
        assert bad.result().status == 401
        assert good.result().status == 200


def test_keys_of_this_server_never_go_upstream(gateway, upstream):
    key = secret("root")
    for number, headers in enumerate(
        (
            {"authorization": f"Bearer {key}", "x-api-key": "sk-vendor"},
            {"authorization": "Bearer sk-vendor", "x-api-key": key},
            {"authorization": f"Bearer {key}", "api-key": key},
        )
    ):
        assert gateway.chat(f"leak{number}", headers, model="o-1").status == 200
        sent = upstream.seen(f"leak{number}")[0].headers
        assert key not in str(sent), headers
        assert ("sk-vendor" in str(sent)) == (number < 2)


def test_a_stream_ends_with_the_protocols_end_though_its_body_goes_on(gateway, upstream):
    end = threading.Event()
    events = chat_events("all", "said")

    def step(handler, _):
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for part in events:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        end.wait(20)

    upstream.script("open", step)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    try:
        began = time.monotonic()
        answer = gateway.chat("open", **options)
        assert time.monotonic() - began < 8
    finally:
        end.set()
    assert (answer.body, answer.whole) == (b"".join(events), True)
    assert gateway.chat("open", **options).cache == "hit"


def test_circuits_and_limits_are_metrics(gateway, upstream):
    state = "verbatim_upstream_breaker_state"
    assert gateway.metric(state, upstream="breaking") == 0
    upstream.script("circuit", fails(500))
    assert [gateway.chat("circuit", model="c-1").status for _ in range(3)] == [500, 500, 503]
    assert gateway.metric(state, upstream="breaking") == 2
    wait_for(lambda: gateway.metric(state, upstream="breaking") == 1)
    upstream.script("circuit", own_answer)
    assert gateway.chat("circuit", model="c-1").status == 200
    assert gateway.metric(state, upstream="breaking") == 0
    before = gateway.metric("verbatim_rate_limited_total")
    assert [gateway.chat("few", key=secret("few")).status for _ in range(3)] == [200, 429, 429]
    assert gateway.metric("verbatim_rate_limited_total") - before == 2


def test_only_what_may_be_equal_is_asked_again(gateway, upstream):
    try:
        gateway.reload("policy: {verify: {rate: 1}}\n")
        before = gateway.metric("verbatim_ledger_entries")
        assert gateway.chat("again-sampled", temperature=1).status == 200
        assert gateway.chat("again-search", web_search_options={}).status == 200
        upstream.script("again", whole(chat_answer("same")))
        assert gateway.chat("again").status == 200
        kinds = wait_for(lambda: ends(gateway, int(before), "verified", "diverged"))
        assert kinds == ["verified"]
        assert upstream.count("again-sampled") == upstream.count("again-search") == 1
    finally:
        gateway.reload()


def test_a_verification_has_its_own_intent_and_end(gateway, upstream):
    """Whatever goes to an upstream is in the ledger before it does, and so is how it ended."""
    try:
        gateway.reload("policy: {verify: {rate: 1}}\n")
        for word, second, end in (
            ("twice", whole(chat_answer("same")), "verified"),
            ("twice-fails", fails(503), "failed"),
        ):
            before = int(gateway.metric("verbatim_ledger_entries"))
            upstream.script(word, whole(chat_answer("same")), second)
            assert gateway.chat(word).status == 200
            wait_for(lambda: ends(gateway, before, end))
            leaves = gateway.leaves(before)
            assert [leaf["kind"] for leaf in leaves] == ["intent", "generated", "intent", end]
            closed = [r["entry"] for r in leaves[3]["references"] if r["relation"] == "intent"]
            assert closed == [before + 2]
            verified = [r["entry"] for r in leaves[3]["references"] if r["relation"] == "verifies"]
            assert verified == [before + 1]
    finally:
        gateway.reload()


def ends(gateway, since, *kinds):
    found = [leaf["kind"] for leaf in gateway.leaves(since)]
    return [kind for kind in found if kind in kinds]
