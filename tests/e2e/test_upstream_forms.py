"""Answers of unusual form, what is compared when an upstream is asked again, which requests are asked
each time, and what official clients make of it all."""

import json

import openai
import pytest

from scripted_gateway import OTHER_KINDS, module_gateway, secret, wait_for
from scripted_upstream import chat_answer, chat_events, chunk, event, fails, streams, whole

CONFIG = (
    """\
upstreams:
  vendor:
    url: {url}/v1
    models: [m]
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
"""
    + OTHER_KINDS
    + """\
access:
  keys:
    - {{id: root, secret: "file:root", tenant: a, roles: [client, operator, auditor]}}
{more}"""
)
gateway = module_gateway(CONFIG, ["root"])


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


# --- Official clients -----------------------------------------------------------------------------


def test_azures_client(gateway, upstream):
    for number, credentials in enumerate(({"api_key": secret("root")},
                                          {"azure_ad_token": secret("root")})):
        client = openai.AzureOpenAI(
            azure_endpoint=gateway.url, api_version="2024-10-21", max_retries=0, **credentials
        )
        asked = {"model": "az-4", "temperature": 0, "messages": [{"role": "user", "content": "az"}]}
        raw = client.chat.completions.with_raw_response.create(**asked)
        assert raw.headers["verbatim-cache"] == ("hit" if number else "miss")
        said = client.chat.completions.create(**asked, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in said if c.choices) == "az 1"
    with pytest.raises(openai.AuthenticationError):
        openai.AzureOpenAI(
            azure_endpoint=gateway.url, api_version="2024-10-21", api_key="vbk_wrong", max_retries=0
        ).models.list()
    path = "/openai/deployments/dep-4/chat/completions?api-version=2024-10-21"
    assert [seen.path for seen in upstream.seen("az")] == [path]
    assert secret("root") not in str(upstream.seen("az")[0].headers)
    # Azure begins streams with an event of no choice, which says what it made of the prompt.
    results = [{"prompt_index": 0, "content_filter_results": {}}]
    filtered = event({"id": "", "object": "", "created": 0, "model": "", "choices": [],
                      "prompt_filter_results": results})
    upstream.script("az-filtered", streams([filtered, *chat_events("hey")]))
    streamed = gateway.chat("az-filtered", model="az-4", stream=True)
    assert streamed.body.startswith(filtered)
    plain = gateway.chat("az-filtered", model="az-4")
    assert plain.cache == "hit; converted"
    assert plain.json["prompt_filter_results"] == results
    assert plain.json["id"] == "chatcmpl-1"


def test_the_digits_of_a_tool_calls_arguments(gateway, upstream):
    arguments = '{"id": 2512292042121000001}'

    def delta(**fields):
        return chunk({"tool_calls": [{"index": 0, **fields}]})

    said = [
        delta(id="c1", type="function", function={"name": "f", "arguments": ""}),
        delta(function={"arguments": arguments[:15]}),
        delta(function={"arguments": arguments[15:]}),
        chunk({}, "tool_calls"),
        event(b"[DONE]"),
    ]
    upstream.script("digits", streams(said))
    upstream.script("digits-plain", whole(called("c1", arguments)))
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("root"), max_retries=0)
    for word, stream_first in (("digits", True), ("digits-plain", False)):
        asked = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": word}]}
        for streamed in (stream_first, stream_first, not stream_first):
            if streamed:
                with client.chat.completions.stream(**asked) as stream:
                    answer = stream.get_final_completion()
            else:
                answer = client.chat.completions.create(**asked)
            (call,) = answer.choices[0].message.tool_calls
            assert (call.id, call.function.arguments) == ("c1", arguments), (word, streamed)
        assert upstream.count(word) == 1


def test_a_client_asks_again_where_it_helps_and_only_there(gateway, upstream):
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("root"), max_retries=2)
    upstream.script("helps", fails(503, retry_after_ms="1"), whole(chat_answer("ok")))
    asked = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "helps"}]}
    assert client.chat.completions.create(**asked).choices[0].message.content == "ok"
    before = gateway.metric("verbatim_requests_total", status="504")
    asked["messages"][0]["content"] = "helps not"
    with pytest.raises(openai.InternalServerError) as error:
        client.chat.completions.create(**asked, extra_headers={"cache-control": "only-if-cached"})
    assert error.value.status_code == 504 and error.value.request_id.startswith("req_")
    assert gateway.metric("verbatim_requests_total", status="504") == before + 1
