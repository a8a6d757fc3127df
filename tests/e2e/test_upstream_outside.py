"""What operators and clients rely on from outside: that the command line and the server name one
fingerprint, that keys are kept hashed and their budgets hold, what lines of the access log say, and
time limits of upstreams."""

import hashlib
import http.client
import json
import pathlib
import threading

import gateway_process
from scripted_gateway import OTHER_KINDS, module_gateway, secret, wait_for
from scripted_upstream import (
    JSON,
    after,
    chat_answer,
    chat_events,
    fails,
    streams,
    whole,
)

CONFIG = (
    """\
server: {{access_log: access.log}}
upstreams:
  vendor:
    url: {url}/v1
    models: [m]
    model_version: v7
    headers: {{forward: [x-variant]}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
"""
    + OTHER_KINDS
    + """\
  hasty:
    url: {url}/v1
    models: [hasty]
    timeouts: {{first_byte_ms: 500, idle_ms: 500, total_ms: 1200}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
access:
  keys:
    - {{id: root, secret: "file:root", tenant: a, roles: [client, operator, auditor]}}
{more}"""
)
gateway = module_gateway(CONFIG, ["root"])


def command(gateway, name, *arguments):
    code, out, err = gateway_process.run(*name.split(), *map(str, arguments))
    assert code == 0, err
    return out


# --- Fingerprints ---------------------------------------------------------------------------------


def test_the_command_line_names_the_servers_fingerprints(gateway, tmp_path):
    messages = [{"role": "user", "content": "printed"}]
    chat = {"model": "m", "messages": messages, "temperature": 0}
    azure = {"model": "az-4", "messages": messages, "temperature": 0}
    claude = {"model": "claude-x", "messages": messages, "max_tokens": 5, "temperature": 0}
    prints = set()
    cases = [
        ("/v1/chat/completions", "", chat, {}),
        ("/v1/chat/completions", "", chat, {"x-variant": "blue"}),
        ("/v1/chat/completions", "a=%41", chat, {}),
        ("/v1/completions", "", {"model": "m", "prompt": "printed", "temperature": 0}, {}),
        ("/v1/responses", "", {"model": "m", "input": "printed", "temperature": 0}, {}),
        ("/v1/embeddings", "", {"model": "m", "input": "printed"}, {}),
        ("/v1/chat/completions", "", azure, {}),
        ("/v1/chat/completions", "api-version=2025-01-01", azure, {}),
        ("/v1/messages", "", claude, {"anthropic-beta": "b-1"}),
    ]
    for path, query, body, headers in cases:
        answer = gateway.ask("POST", path + ("?" + query if query else ""), body, headers)
        file = tmp_path / "request.json"
        file.write_text(json.dumps(body))
        more = [part for name, value in headers.items() for part in ("--header", f"{name}: {value}")]
        if query:
            more += ["--query", query]
        out = command(
            gateway, "fingerprint", file, "--endpoint", path, "--config", gateway.config,
            "--tenant", "a", "--subject", "root", *more,
        )
        assert out.split()[0] == answer.headers["verbatim-fingerprint"], (path, query, headers)
        prints.add(out.split()[0])
    assert len(prints) == len(cases)


def test_a_miss_is_explained_alike_by_the_504_and_the_command_line(gateway, tmp_path):
    recorded = {"model": "m", "messages": [{"role": "user", "content": "explained"}], "temperature": 0,
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
    asked = json.loads(json.dumps(recorded)) | {"seed": 5}
    asked["tools"][0]["function"]["name"] = "g"
    first = gateway.ask("POST", "/v1/chat/completions", recorded)
    miss = gateway.ask("POST", "/v1/chat/completions", asked, {"cache-control": "only-if-cached"})
    assert (miss.status, miss.headers["x-should-retry"]) == (504, "false")
    message = miss.json["error"]["message"]
    assert f"entry {first.headers['verbatim-entry']};" in message, message
    files = [tmp_path / name for name in ("asked.json", "recorded.json")]
    for file, body in zip(files, (asked, recorded)):
        file.write_text(json.dumps(body))
    out = command(
        gateway, "fingerprint", files[0], "--explain", files[1], "--config", gateway.config,
        "--tenant", "a", "--subject", "root",
    )
    lines = out.splitlines()
    prints = [line.split()[0] for line in lines[:2]]
    assert prints[1] == first.headers["verbatim-fingerprint"] and prints[0] in message
    pointers = [line.split(":")[0].removeprefix("/request") for line in lines[2:]]
    assert sorted(pointers) == ["/seed", "/tools/0/function/name"]
    assert all(pointer in message for pointer in pointers), message


# --- Keys -----------------------------------------------------------------------------------------


def test_keys_are_kept_hashed_and_have_budgets_of_their_own(gateway, upstream):
    made = json.loads(command(
        gateway, "keys new-api", "--data", gateway.data, "--tenant", "a", "--subject", "ci",
        "--budget", "100", "--budget-per", "day", "--json",
    ))
    file = (pathlib.Path(gateway.data) / "api-keys.json").read_text()
    assert hashlib.sha256(made["secret"].encode()).hexdigest() in file
    assert made["secret"].removeprefix("vbk_") not in file
    usage = {"prompt_tokens": 50, "completion_tokens": 40, "total_tokens": 90}
    upstream.script("spent", whole({**chat_answer("x"), "usage": usage}))
    wait_for(lambda: gateway.chat("spent", key=made["secret"], max_tokens=5).status == 200)
    over = gateway.chat("spent-2", key=made["secret"], max_tokens=5)
    assert (over.status, over.json["error"]["code"]) == (429, "insufficient_quota")
    assert over.headers["x-should-retry"] == "false"
    assert gateway.reason_of(over) == ("refused", "insufficient_quota")
    assert gateway.metric("verbatim_rate_limited_total", scope="key", limit="budget") == 1
    # What is recorded costs nothing, and other keys of the tenant have their own.
    assert gateway.chat("spent", key=made["secret"], max_tokens=5).cache == "hit"
    assert gateway.chat("spent-2", max_tokens=5).status == 200
    assert upstream.count("spent-2") == 1


# --- The access log -------------------------------------------------------------------------------


def test_a_line_has_what_is_known_and_nothing_else(gateway, upstream):
    everyone = {"time", "request_id", "remote", "method", "path", "status", "bytes_in", "bytes_out",
                "duration_ms", "first_byte_ms"}
    known = everyone | {"tenant", "subject", "key_id"}
    generation = known | {"model", "fingerprint", "upstream", "cache"}
    upstream.script("line-500", fails(500))
    answers = {
        "miss": (gateway.chat("line private"), generation | {"entry"}),
        "hit": (gateway.chat("line private"), generation | {"entry", "pending"}),
        "stranger": (gateway.chat("line private", key="vbk_wrong"), everyone),
        "no model": (gateway.chat("line private", model="none"), known | {"model", "cache"}),
        "failure": (gateway.chat("line-500 private"), generation),
        "query": (gateway.raw(b"{", path="/v1/completions?key=private"), known | {"cache"}),
    }
    upstream.script("line-slow", after(20, whole(chat_answer("late"))))
    gone = http.client.HTTPConnection("127.0.0.1", gateway.port)
    gone.request("POST", "/v1/chat/completions",
                 json.dumps({"model": "m", "messages": [{"role": "user", "content": "line-slow"}]}),
                 {**JSON, "authorization": f"Bearer {secret('root')}"})
    wait_for(lambda: upstream.count("line-slow"))
    gone.close()

    def lines():
        text = (gateway.folder / "access.log").read_text()
        rows = [json.loads(row) for row in text.splitlines(keepends=True) if row.endswith("\n")]
        rows = {row["request_id"]: row for row in rows}
        left = [row for row in rows.values() if row["status"] == 499]
        wanted = [answer.headers["x-request-id"] for answer, _ in answers.values()]
        return (text, rows, left) if left and all(id in rows for id in wanted) else None

    text, rows, left = wait_for(lines)
    for name, (answer, members) in answers.items():
        row = rows[answer.headers["x-request-id"]]
        assert set(row) == members, (name, row)
        assert row["status"] == answer.status, name
        assert row["bytes_out"] == len(answer.body), name
        if answer.status == 200:
            assert row["fingerprint"] == answer.headers["verbatim-fingerprint"], name
            assert row["cache"] == answer.cache, name
    assert rows[answers["query"][0].headers["x-request-id"]]["path"] == "/v1/completions"
    assert left[0]["model"] == "m" and left[0]["bytes_out"] == 0
    assert "private" not in text and secret("root") not in text


# --- Time limits ----------------------------------------------------------------------------------


def test_time_limits_of_an_upstream(gateway, upstream):
    end = threading.Event()
    try:
        upstream.script("first-byte", after(end, whole(chat_answer("late"))))
        late = gateway.chat("first-byte", model="hasty")
        assert (late.status, late.json["error"]["code"]) == (504, "upstream_timeout")
        upstream.script("idle", streams(chat_events("a", "b"), gate=end))
        idle = gateway.chat("idle", model="hasty", stream=True)
        upstream.script("total", streams(chat_events(*"abcdefghijklmnopqr"), pause=0.1))
        total = gateway.chat("total", model="hasty", stream=True)
    finally:
        end.set()
    for answer in (idle, total):
        # What came passes, and the client sees that it is not all.
        assert answer.status == 200 and b'"a"' in answer.body
        assert b"[DONE]" not in answer.body and b"finish_reason\": \"stop" not in answer.body
    for answer in (late, idle, total):
        assert gateway.reason_of(answer) == ("failed", "upstream_timeout")
    for word in ("first-byte", "idle", "total"):
        assert upstream.count(word) == 1
