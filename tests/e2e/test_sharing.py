"""Identical requests in flight, and clients that go away."""

import concurrent.futures
import http.client
import json
import time

from gateway_process import chat

PATH = "/v1/chat/completions"


def test_fifty_identical_requests_run_once(gateway):
    request = chat("Fifty people ask this at once.", max_tokens=24)
    misses = gateway.metric("verbatim_requests_total", cache="miss")
    tokens = gateway.metric("verbatim_tokens_total", kind="generated")
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: gateway.ask("POST", PATH, request), range(50)))
    assert {a.status for a in answers} == {200}
    assert len({a.body for a in answers}) == 1
    caches = [a.cache for a in answers]
    assert caches.count("miss") == 1, caches
    assert set(caches) <= {"miss", "shared", "hit"}
    assert "shared" in caches
    assert len({a.headers["x-request-id"] for a in answers}) == 50
    assert gateway.metric("verbatim_requests_total", cache="miss") == misses + 1
    generated = gateway.metric("verbatim_tokens_total", kind="generated") - tokens
    # The answer's tokens and at most the end-of-text token: one run, not fifty.
    assert 0 <= generated - answers[0].json["usage"]["completion_tokens"] <= 1


def test_streams_and_plain_answers_share_a_run(gateway):
    request = chat("Some of us stream this.", max_tokens=24)
    misses = gateway.metric("verbatim_requests_total", cache="miss")
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(
                lambda i: gateway.ask("POST", PATH, {**request, "stream": i % 2 == 0}), range(12)
            )
        )
    assert {a.status for a in answers} == {200}
    assert len({a.body for a in answers[0::2]}) == 1
    assert len({a.body for a in answers[1::2]}) == 1
    assert gateway.metric("verbatim_requests_total", cache="miss") == misses + 1
    streamed = [json.loads(e) for e in answers[0].events()[:-1]]
    text = "".join(e["choices"][0]["delta"].get("content") or "" for e in streamed if e["choices"])
    assert text == answers[1].json["choices"][0]["message"]["content"]


def test_the_first_one_hanging_up_changes_nothing_for_others(gateway):
    request = chat("Who began this will leave.", max_tokens=60, stream=True)
    leader = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    leader.request("POST", PATH, json.dumps(request), {"content-type": "application/json"})
    response = leader.getresponse()
    response.read(10)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        others = [pool.submit(gateway.ask, "POST", PATH, request) for _ in range(3)]
        time.sleep(0.05)
        response.close()
        leader.close()
        answers = [f.result() for f in others]
    assert {(a.status, a.whole) for a in answers} == {(200, True)}
    assert len({a.body for a in answers}) == 1
    assert answers[0].events()[-1] == "[DONE]"
    again = gateway.ask("POST", PATH, request)
    assert (again.cache, again.body) == ("hit", answers[0].body)


def test_a_run_that_nobody_waits_for_is_not_kept(gateway):
    request = chat("Nobody waits for this long answer.", max_tokens=400, stream=True)
    client = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
    client.request("POST", PATH, json.dumps(request), {"content-type": "application/json"})
    response = client.getresponse()
    response.read(10)
    response.close()
    client.close()
    deadline = time.monotonic() + 10
    while gateway.metric("verbatim_runs_in_flight") > 0:
        assert time.monotonic() < deadline, "the run goes on although its only client hung up"
        time.sleep(0.1)
    assert gateway.ask("POST", PATH, chat("Nobody waits for this long answer.", max_tokens=400, stream=True)).cache == "miss"
