"""What requests to an upstream take of their caller's limits, and what the caller is told of them."""

import http.client
import json
import threading

from scripted_gateway import module_gateway, secret, wait_for
from scripted_upstream import chat_answer, chat_events, fails, streams, whole

CONFIG = """\
upstreams:
  vendor:
    url: {url}/v1
    models: ["m"]
    credentials: {{from: none}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
access:
  keys:
    - {{id: root, secret: "file:root", tenant: a, roles: [client, operator, auditor]}}
    - {{id: many, secret: "file:many", tenant: c, limits: {{requests_per_minute: 100}}}}
    - {{id: tokens, secret: "file:tokens", tenant: d, limits: {{tokens_per_minute: 1000}}}}
{more}"""
NAMES = ("root", "many", "tokens")
gateway = module_gateway(CONFIG, NAMES)


def test_limits_here_are_told_with_upstreams_errors_too(gateway, upstream):
    limits = {"x_ratelimit_remaining_requests": "0", "x_ratelimit_limit_requests": "7"}
    upstream.script("told", fails(429, retry_after="5", **limits))
    answer = gateway.chat("told", key=secret("many"))
    assert (answer.status, answer.headers["retry-after"]) == (429, "5")
    assert answer.headers["x-ratelimit-limit-requests"] == "100"
    assert answer.headers["x-ratelimit-remaining-requests"] == "99"


def test_what_reports_no_usage_takes_what_was_reserved(gateway, upstream):
    """Else who hangs up before a stream's last event, which has the usage, pays nothing."""
    silent = chat_answer("x")
    del silent["usage"]
    upstream.script("silent", whole(silent))
    assert gateway.chat("silent", key=secret("tokens"), max_tokens=400).status == 200
    left = gateway.chat("silent", key=secret("tokens"), max_tokens=400)
    assert left.cache == "hit"
    assert 400 <= int(left.headers["x-ratelimit-remaining-tokens"]) < 700

    end = threading.Event()
    upstream.script("leaver", streams(chat_events("a", "b"), gate=end))
    body = json.dumps(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "leaver"}],
            "temperature": 0,
            "stream": True,
            "max_tokens": 400,
        }
    )
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
    headers = {
        "authorization": f"Bearer {secret('tokens')}",
        "content-type": "application/json",
    }
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    assert response.status == 200 and response.read(10)
    connection.close()
    response.close()
    wait_for(lambda: gateway.metric("verbatim_runs_in_flight") == 0)
    end.set()
    left = gateway.chat("silent", key=secret("tokens"), max_tokens=400)
    assert int(left.headers["x-ratelimit-remaining-tokens"]) < 300
