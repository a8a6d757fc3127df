"""What operators and clients rely on from outside: that the command line and the server name one
fingerprint, that keys are kept hashed and their budgets hold, what lines of the access log say, time
limits of upstreams, answers of unusual form, what is compared when an upstream is asked again, and
which requests are asked each time."""

import hashlib
import http.client
import json
import pathlib
import threading

import gateway_process
from scripted_gateway import module_gateway, secret, wait_for
from scripted_upstream import (
    JSON,
    after,
    chat_answer,
    chat_events,
    fails,
    streams,
    whole,
)

CONFIG = """\
server: {{access_log: access.log}}
upstreams:
  vendor:
    url: {url}/v1
    models: [m]
    model_version: v7
    headers: {{forward: [x-variant]}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  azure:
    kind: azure
    url: {url}
    api_version: 2024-10-21
    models: {{"az-*": "dep-*"}}
    breaker: {{failures: 0}}
  anthropic:
    kind: anthropic
    url: {url}/v1
    models: ["claude-*"]
    breaker: {{failures: 0}}
  hasty:
    url: {url}/v1
    models: [hasty]
    timeouts: {{first_byte_ms: 300, idle_ms: 300, total_ms: 800}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
access:
  keys:
    - {{id: root, secret: "file:root", tenant: a, roles: [client, operator, auditor]}}
{more}"""
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
        upstream.script("total", streams(chat_events(*"abcdefghijkl"), pause=0.1))
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


# --- Answers of unusual form ----------------------------------------------------------------------


def test_echo_with_logprobs_is_passed_on_and_converted_whole(gateway, upstream):
    logprobs = (
        '{"tokens":["echo"," a"],"token_logprobs":[null,-0.10000000149011612],'
        '"top_logprobs":[null,{" a":-0.10000000149011612}],"text_offset":[0,4]}'
    )
    body = (
        '{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"text":'
        f'"echo a","index":0,"logprobs":{logprobs},"finish_reason":"length"}}],'
        '"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
    ).encode()
    upstream.script("echo", whole(body))
    asked = {"model": "m", "prompt": "echo", "echo": True, "logprobs": 1, "max_tokens": 1,
             "temperature": 0}
    answers = [gateway.ask("POST", "/v1/completions", asked) for _ in range(2)]
    assert [(a.cache, a.body) for a in answers] == [("miss", body), ("hit", body)]
    streamed = gateway.ask("POST", "/v1/completions", {**asked, "stream": True})
    assert streamed.cache == "hit; converted"
    first = json.loads(streamed.events()[0])["choices"][0]
    assert (first["text"], first["logprobs"]) == ("echo a", json.loads(logprobs))
    assert logprobs.encode() in streamed.body  # as the same double, printed in full


def test_a_bare_data_line_passes_and_an_end_without_its_blank_line_is_none(gateway, upstream):
    bare = [b"data:\n\n", *chat_events("a")]
    upstream.script("bare", streams(bare))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answers = [gateway.chat("bare", **options) for _ in range(2)]
    assert [(a.cache, a.body) for a in answers] == [(c, b"".join(bare)) for c in ("miss", "hit")]
    for word, last in (("blankless", b"data: [DONE]\n"), ("endless", b"data: [DONE]")):
        cut = [*chat_events("a")[:-1], last]
        upstream.script(word, streams(cut))
        answers = [gateway.chat(word, **options) for _ in range(2)]
        assert [a.cache for a in answers] == ["miss", "miss"], word
        assert [a.body for a in answers] == [b"".join(cut)] * 2, word
        assert gateway.reason_of(answers[0]) == ("failed", "no_end"), word


def test_further_options_of_streams_go_upstream(gateway, upstream):
    body = (
        '{"model":"m","temperature":0,"stream":true,"stream_options":{"include_obfuscation":false},'
        '"messages":[{"role":"user","content":"options"}]}'
    )
    answer = gateway.raw(body)
    assert (answer.status, answer.cache) == (200, "miss")
    sent = upstream.seen("options")[0].json["stream_options"]
    assert sent == {"include_obfuscation": False, "include_usage": True}
    assert all(json.loads(e)["choices"] for e in answer.events()[:-1])


# --- Asked again ----------------------------------------------------------------------------------


def called(id, arguments):
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return chat_answer(None, finish_reason="tool_calls", tool_calls=[call])


REPEATED = {
    "text": (chat_answer("x"), chat_answer("y"), "text"),
    "finish": (chat_answer("x"), chat_answer("x", finish_reason="length"), "finish_reason"),
    "call": (called("a", '{"n":1}'), called("a", '{"n":2}'), "tool_calls"),
    "print": (
        {**chat_answer("x"), "system_fingerprint": "fp_1"},
        {**chat_answer("x"), "system_fingerprint": "fp_2"},
        "system_fingerprint",
    ),
    "version": (chat_answer("x", "m-0613"), chat_answer("x", "m-1106"), "model"),
    # What a vendor makes anew for each answer is no part of it.
    "ids": (called("a", "{}"), {**called("b", "{}"), "id": "chatcmpl-2", "created": 9}, None),
}


def test_what_differs_when_an_upstream_is_asked_again_is_named(gateway, upstream):
    gateway.reload("policy: {mode: verify}\n")
    try:
        for name, (first, second, differs) in REPEATED.items():
            upstream.script(f"again-{name}", whole(first), whole(second))
            miss = gateway.chat(f"again-{name}")
            hit = gateway.chat(f"again-{name}")
            assert (hit.cache, hit.body) == ("hit", miss.body), name
            since = int(miss.headers["verbatim-entry"]) + 1

            def ends():
                leaves = gateway.leaves(since)
                return [leaf for leaf in leaves if leaf["kind"] in ("verified", "diverged")]

            (end,) = wait_for(ends)
            want = ("diverged", differs) if differs else ("verified", "ok")
            assert (end["kind"], end["outcome"]) == want, name
    finally:
        gateway.reload()


# --- What depends on something elsewhere ----------------------------------------------------------


def content(part):
    return {"input": [{"role": "user", "content": [{"type": "input_text", "text": "WORD"}, part]}]}


def tool(**fields):
    return {"tools": [fields]}


RESPONSES = {
    "plain": ({}, True),
    "stored": ({"store": True}, True),
    "function": (tool(type="function", name="f", parameters={}), True),
    "inline": (content({"type": "input_image", "image_url": "data:image/png;base64,aaaa"}), True),
    "previous": ({"previous_response_id": "resp_0"}, False),
    "conversation": ({"conversation": {"id": "conv_1"}}, False),
    "background": ({"background": True}, False),
    "remote": (tool(type="mcp", server_label="s", server_url="https://a.example"), False),
    "interpreter": (tool(type="code_interpreter", container={"type": "auto"}), False),
    "file": (content({"type": "input_file", "file_id": "file-1"}), False),
    "image": (content({"type": "input_image", "image_url": "https://a.example/i.png"}), False),
    "item": (
        {"input": [{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "WORD"}]},
        False,
    ),
}


def source(**fields):
    parts = [{"type": "text", "text": "WORD"}, {"type": "image", "source": fields}]
    return {"messages": [{"role": "user", "content": parts}]}


MESSAGES = {
    "plain": ({}, True),
    "own": (tool(name="f", input_schema={"type": "object"}), True),
    "bash": (tool(type="bash_20250124", name="bash"), True),
    "inline": (source(type="base64", media_type="image/png", data="aaaa"), True),
    "search": (tool(type="web_search_20250305", name="web_search"), False),
    "execution": (tool(type="code_execution_20250522", name="code_execution"), False),
    "servers": ({"mcp_servers": [{"type": "url", "url": "https://a.example", "name": "a"}]}, False),
    "container": ({"container": "container_1"}, False),
    "remote": (source(type="url", url="https://a.example/i.png"), False),
    "file": (source(type="file", file_id="file_1"), False),
}


def test_what_depends_on_something_elsewhere_is_asked_each_time(gateway, upstream):
    said = {"type": "output_text", "text": "x", "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [said]}
    response = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed",
                "model": "m", "output": [item]}
    for path, cases in (("/v1/responses", RESPONSES), ("/v1/messages", MESSAGES)):
        for name, (fields, reusable) in cases.items():
            word = f"else-{path[4:]}-{name}"
            body = {"model": "m", "input": "WORD", "temperature": 0}
            if path == "/v1/messages":
                messages = [{"role": "user", "content": "WORD"}]
                body = {"model": "claude-x", "max_tokens": 5, "messages": messages, "temperature": 0}
            else:
                for found in (word, ""):  # by words of parts that it does not know, none is found
                    upstream.script(found, whole(response))
            text = json.dumps({**body, **fields}).replace("WORD", word)
            answers = [gateway.raw(text, path=path) for _ in range(2)]
            want = ["miss", "hit" if reusable else "miss"]
            assert [a.cache for a in answers] == want, (path, name)
            entry = gateway.entry(int(answers[0].headers["verbatim-entry"]))
            assert entry["leaf_json"]["kind"] == "generated", (path, name)
