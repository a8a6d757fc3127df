"""Entries and hit traces together equal the requests received, whatever upstream and clients do."""

import collections
import concurrent.futures
import http.client
import json
import random
import socket
import time

import pytest

import gateway_process
from scripted_gateway import ScriptedGateway
from scripted_upstream import ScriptedUpstream, chat_answer, chat_events, fails, reset, streams
from scripted_upstream import whole

REQUESTS = 400
CONFIG = """\
upstreams:
  vendor:
    url: {url}/v1
    models: ["m"]
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  primary:
    url: {url}/primary
    models: ["p-1"]
    timeouts: {{first_byte_ms: 200}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
    fallbacks: [backup]
  backup:
    url: {url}/backup
    models: {{"p*": "b*"}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  retrying:
    url: {url}/v1
    models: ["r-1"]
    retries: {{attempts: 3, base_ms: 1, max_ms: 5}}
    breaker: {{failures: 0}}
{more}"""

# Kinds of entries that are the end of one request, but for those that verify another.
ENDS = {"generated", "failed", "refused", "cancelled"}


def misbehave(seed):
    """A step that draws what an upstream may do."""

    def step(handler, seen):
        rng = random.Random(f"{seed} {seen.body} {seen.number} {seen.path}")
        time.sleep(rng.choice([0, 0, 0, 0.01, 0.03]))
        if seen.json.get("stream"):
            events = chat_events(*["abc"] * rng.randint(1, 6))
            good = streams(events, pause=rng.choice([0, 0, 0.01]))
        else:
            good = whole(chat_answer("x" * rng.randint(1, 5000)))
        cut = chat_events("a", "b")[: rng.randint(0, 3)]
        choices = {
            good: 10,
            fails(rng.choice([400, 429, 500, 503])): 2,
            reset: 2,
            streams(cut, ends=rng.choice(["well", "reset"])): 2,
            lambda h, s: (time.sleep(0.3), good(h, s)): 2,
            whole(b""): 2,
        }
        (chosen,) = rng.choices(list(choices), list(choices.values()))
        chosen(handler, seen)

    return step


def ask(port, seed, number):
    """One request of a client that may leave at any time. What came of it."""
    rng = random.Random(f"{seed} {number}")
    body = {
        "model": rng.choice(["m", "m", "p-1", "r-1"]),
        "messages": [{"role": "user", "content": f"word{rng.randint(0, 25)}"}],
        "temperature": 0,
        "stream": rng.random() < 0.5,
    }
    data = json.dumps(body).encode()
    controls = ["no-cache", "no-store", "max-age=0", "only-if-cached"]
    control = f"cache-control: {rng.choice(controls)}\r\n" if rng.random() < 0.2 else ""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"content-type: application/json\r\n{control}content-length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(head.encode() + data)
        if rng.random() < 0.25:
            time.sleep(rng.choice([0, 0.002, 0.01, 0.05]))
            return "left"
        response = http.client.HTTPResponse(client)
        response.begin()
        try:
            body = response.read()
        except http.client.IncompleteRead:
            return "cut"
        assert body, response.status
        return response.status


def counted(leaves):
    kinds = collections.Counter()
    for leaf in leaves:
        if any(r["relation"] == "verifies" for r in leaf.get("references", [])):
            continue
        batch = leaf.get("detail", {}).get("hits", {}).get("count", 1)
        kinds[leaf["kind"]] += batch
    return kinds


@pytest.mark.parametrize("seed", [1, 2])
def test_every_request_has_one_end_in_the_ledger(tmp_path, seed):
    with ScriptedUpstream() as upstream:
        for word in range(26):
            upstream.script(f"word{word}", misbehave(seed))
        gateway = ScriptedGateway(tmp_path, upstream, CONFIG).start()
        try:
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                results = pool.map(lambda i: ask(gateway.port, seed, i), range(REQUESTS))
                outcomes = collections.Counter(results)
            deadline = time.monotonic() + 10
            while True:
                kinds = counted(gateway.leaves())
                # "hit": a fallback's recorded answer, which has an entry of its own.
                ends = {*ENDS, "hits", "hit"}
                total = sum(n for kind, n in kinds.items() if kind in ends)
                if total == REQUESTS or time.monotonic() > deadline:
                    break
                time.sleep(0.2)
            assert total == REQUESTS, (kinds, outcomes)
            assert {200, 502, "left"} <= set(outcomes)
            assert all(kinds[kind] for kind in [*ENDS, "hits"]), kinds
            assert gateway.metric("verbatim_runs_in_flight") == 0
            assert gateway.metric("verbatim_ledger_open_intents") == 0
            assert gateway.stop() == 0
        finally:
            if gateway.process.poll() is None:
                gateway.kill()
        code, out, err = gateway_process.run("fsck", "--data", gateway.data, "--deep")
        assert code == 0, (out, err)
