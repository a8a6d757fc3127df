"""What a gateway holds of upstreams' replies, by its own count: for clients that stop reading, and
for all of them together."""

import http.client
import json
import socket
import threading

from scripted_gateway import module_gateway, wait_for
from scripted_upstream import EVENTS, chat_answer, chat_events, whole

CONFIG = """\
server:
  limits: {{stream_buffer_bytes: 65536, replies_total_bytes: 33554432}}
upstreams:
  vendor:
    url: {url}/v1
    models: [m]
    credentials: {{from: none}}
    timeouts: {{idle_ms: 500}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
{more}"""
TOTAL = 32 << 20
HELD = "verbatim_replies_held_bytes"
gateway = module_gateway(CONFIG)


def ask_and_read_nothing(gateway, word):
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": word}], "stream": True}
    )
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
    client.settimeout(20)
    client.connect(("127.0.0.1", gateway.port))
    client.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body.encode())
    )
    gateway.asked.append(None)
    return client


def counted(parts, written, stop=None, gate=None):
    """As streams; says how many it got rid of, and waits for `gate` before the part `stop`."""

    def step(handler, _):
        handler.send_response(200)
        for name, value in EVENTS.items():
            handler.send_header(name, value)
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        for number, part in enumerate(parts):
            if number == stop:
                gate.wait(30)
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            written.append(len(part))
        handler.wfile.write(b"0\r\n\r\n")

    return step


def stands_still(read):
    """Once the value has not changed for a while."""
    seen = []

    def still():
        seen.append(read())
        return len(seen) >= 20 and seen[-20] == seen[-1] and seen[-1] > 0

    wait_for(still, 20)
    return seen[-1]


def test_a_client_that_stops_reading_stops_its_upstream(gateway, upstream):
    # More than the kernel keeps for a connection, however much it lets it grow.
    parts = chat_events(*["x" * 20_000] * 1200)
    written = []
    upstream.script("stall", counted(parts, written))
    client = ask_and_read_nothing(gateway, "stall")
    # For longer than idle_ms: that nothing is read is no fault of the upstream's.
    held = stands_still(lambda: gateway.metric(HELD))
    assert held < 800_000
    assert len(written) < len(parts)
    # Nobody else waits, and once it reads on it gets all of it.
    assert gateway.chat("quick").status == 200
    response = http.client.HTTPResponse(client)
    response.begin()
    body = response.read()
    assert response.status == 200 and body.endswith(b"data: [DONE]\n\n")
    assert body.count(b"x" * 20_000) == 1200
    client.close()
    assert wait_for(lambda: gateway.metric(HELD) == 0)


def test_a_client_that_stops_reading_and_leaves_ends_its_run(gateway, upstream):
    written = []
    parts = chat_events(*["y" * 20_000] * 1200)
    upstream.script("leaves", counted(parts, written))
    before = len(gateway.leaves())
    client = ask_and_read_nothing(gateway, "leaves")
    stands_still(lambda: len(written))
    client.close()
    assert wait_for(lambda: gateway.metric("verbatim_runs_in_flight") == 0)
    left = [leaf["outcome"] for leaf in gateway.leaves(before) if leaf["kind"] == "cancelled"]
    assert left == ["client_gone"]
    assert gateway.metric(HELD) == 0


def test_beyond_the_bound_of_all_replies_new_runs_and_then_the_largest_end(gateway, upstream):
    end = threading.Event()
    large = "z" * (TOTAL // 16)
    upstream.script("large", counted(chat_events(*[large] * 20), [], 14, end))
    upstream.script("kept", whole(chat_answer("a")))
    assert gateway.chat("kept").status == 200
    answers = []
    asks = threading.Thread(target=lambda: answers.append(gateway.chat("large", stream=True)))
    asks.start()
    wait_for(lambda: gateway.metric(HELD) > TOTAL * 3 // 4)

    refused = gateway.chat("new")
    assert (refused.status, refused.json["error"]["code"]) == (503, "replies_full")
    assert refused.headers["retry-after"] == "1"
    assert upstream.count("new") == 0
    assert gateway.reason_of(refused) == ("refused", "replies_full")
    hit = gateway.chat("kept")
    assert (hit.status, hit.cache) == (200, "hit")

    end.set()
    asks.join()
    (ended,) = answers
    assert not ended.whole and b"replies_full" in ended.body and b"[DONE]" not in ended.body
    assert gateway.reason_of(ended) == ("failed", "replies_full")
    wait_for(lambda: gateway.metric(HELD) == 0)
    assert gateway.chat("new").status == 200
