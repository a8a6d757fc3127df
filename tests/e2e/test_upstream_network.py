"""Upstreams behind TLS, proxies and tokens that rotate, configured by files and the environment as
operators do; and what users of other gateways reported, asked from outside."""

import base64
import json
import select
import socket
import ssl
import threading
import time

import openai
import pytest
from scripted_gateway import ScriptedGateway, keyed_gateway, secret, wait_for
from scripted_upstream import (
    EVENTS,
    ScriptedUpstream,
    chat_answer,
    chunk,
    event,
    streams,
    whole,
)
from test_access import Certificates

CONFIG = """
log: {{level: info}}
upstreams:
  named:
    url: https://localhost:{tls}/v1
    models: ["m"]
    ca_file: tls/ca.pem
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  stranger:
    url: https://localhost:{tls}/v1
    models: ["stranger"]
    ca_file: tls/stranger.pem
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  misnamed:
    url: https://127.0.0.2:{tls}/v1
    models: ["misnamed"]
    ca_file: tls/ca.pem
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  far:
    url: https://upstream.test:{tls}/v1
    models: ["far"]
    ca_file: tls/ca.pem
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  mutual:
    url: https://localhost:{mutual}/v1
    models: ["mutual"]
    ca_file: tls/ca.pem
    client_certificate: tls/own.pem
    client_key: tls/own.key
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  bare:
    url: https://localhost:{mutual}/v1
    models: ["bare"]
    ca_file: tls/ca.pem
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  azure:
    kind: azure
    url: https://localhost:{tls}
    api_version: 2024-10-21
    models: {{"az": dep}}
    ca_file: tls/ca.pem
    credentials: {{header: authorization, value: file:token}}
    breaker: {{failures: 0}}
  plain:
    url: {url}/v1
    models: ["p"]
    breaker: {{failures: 0}}
{more}"""


class TlsUpstream(ScriptedUpstream):
    def __init__(self, certificate, clients=None):
        """clients: who signs the certificates that they have to show."""
        super().__init__()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        if clients:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        self.server.socket = context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )


class Proxy:
    """Takes CONNECT and passes bytes; notes for which places, and who asked."""

    def __init__(self):
        self.asked = []
        self.heads = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def carry(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        line = head.split(b"\r\n")[0].decode()
        self.asked.append(line)
        self.heads.append(head.decode().lower())
        port = line.split()[1].rsplit(":", 1)[1]  # whatever the name: it knows them all
        with client, socket.create_connection(("127.0.0.1", int(port))) as server:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    (server if ready is client else client).sendall(data)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("network") / "tls")


@pytest.fixture(scope="module")
def tls_upstream(certificates):
    with TlsUpstream(certificates.issue("upstream")) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def mutual_upstream(certificates):
    ca = certificates.folder / "ca.pem"
    with TlsUpstream(certificates.issue("mutual"), clients=ca) as upstream:
        yield upstream


def start(folder, certificates, tls_upstream, upstream, mutual_upstream=None):
    (folder / "tls").mkdir()
    certificates.issue("own")
    for name in ("ca.pem", "stranger.pem", "own.pem", "own.key"):
        (folder / "tls" / name).write_bytes((certificates.folder / name).read_bytes())
    (folder / "token").write_text("first-token-1b2c\n")
    config = CONFIG.replace("{tls}", str(tls_upstream.server.server_port))
    mutual = (mutual_upstream or tls_upstream).server.server_port
    config = config.replace("{mutual}", str(mutual))
    return ScriptedGateway(folder, upstream, config).start()


@pytest.fixture(scope="module")
def gateway(certificates, tls_upstream, mutual_upstream, upstream, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY"):
            patch.delenv(name, raising=False)
        folder = tmp_path_factory.mktemp("gateway")
        server = start(folder, certificates, tls_upstream, upstream, mutual_upstream)
    yield server
    assert server.stop() == 0, server.errors[-10:]


def test_the_certificate_is_checked_against_authority_and_name(gateway, tls_upstream):
    assert gateway.chat("trusted").status == 200
    for model in ("stranger", "misnamed"):
        refused = gateway.chat(f"refused-{model}", model=model)
        assert (refused.status, refused.json["error"]["code"]) == (502, "upstream_unreachable")
        assert gateway.reason_of(refused) == ("failed", "upstream_unreachable")
        assert tls_upstream.count(f"refused-{model}") == 0


def test_an_upstream_may_ask_for_a_certificate_of_this_server(gateway, mutual_upstream):
    assert gateway.chat("shown", model="mutual").status == 200
    refused = gateway.chat("not-shown", model="bare")
    assert refused.status == 502
    assert gateway.reason_of(refused)[0] == "failed"
    assert (mutual_upstream.count("shown"), mutual_upstream.count("not-shown")) == (1, 0)


def test_a_rotated_token_is_sent_from_then_on(gateway, tls_upstream):
    assert gateway.chat("rotated-1", model="az").status == 200
    token = gateway.folder / "token"
    token.with_suffix(".new").write_text("second-token-3d4e\n")
    token.with_suffix(".new").rename(token)

    def sent():
        assert gateway.chat(f"rotated-{time.monotonic_ns()}", model="az").status == 200
        with tls_upstream.lock:
            last = [calls[-1] for word, calls in tls_upstream.calls.items() if "rotated" in word]
        newest = max(last, key=lambda seen: seen.at)
        assert newest.path == "/openai/deployments/dep/chat/completions?api-version=2024-10-21"
        return newest.headers["authorization"] == "Bearer second-token-3d4e"

    wait_for(sent)
    first = tls_upstream.seen("rotated-1")[0]
    assert first.headers["authorization"] == "Bearer first-token-1b2c"
    # The token is no part of the fingerprint, and stands nowhere.
    assert gateway.chat("rotated-1", model="az").cache == "hit"
    for file in gateway.folder.rglob("data/**/*"):
        if file.is_file():
            assert b"-token-" not in file.read_bytes(), file
    assert not any("-token-" in line for line in gateway.errors)


@pytest.mark.parametrize("excepted", [False, True])
def test_the_environments_proxy(certificates, tls_upstream, upstream, tmp_path, monkeypatch, excepted):
    proxy = Proxy()
    monkeypatch.setenv("HTTPS_PROXY", f"http://office:pass%20word@127.0.0.1:{proxy.port}")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8,.test" if excepted else "example.com")
    server = start(tmp_path, certificates, tls_upstream, upstream)
    try:
        # Only the proxy knows this name.
        answer = server.chat(f"proxied-{excepted}", model="far")
        port = tls_upstream.server.server_port
        assert answer.status == (502 if excepted else 200)
        assert proxy.asked == ([] if excepted else [f"CONNECT upstream.test:{port} HTTP/1.1"])
        assert tls_upstream.count(f"proxied-{excepted}") == (0 if excepted else 1)
        # It is not for this machine, nor for what is no https.
        assert server.chat(f"local-{excepted}").status == 200
        assert server.chat(f"plain-{excepted}", model="p").status == 200
        assert len(proxy.asked) == (0 if excepted else 1)
        credentials = base64.b64encode(b"office:pass word").decode().lower()
        for head in proxy.heads:
            assert f"proxy-authorization: basic {credentials}\r\n" in head
        if not excepted:
            assert "proxy-authorization" not in tls_upstream.seen("proxied-False")[0].headers
    finally:
        assert server.stop() == 0, server.errors[-10:]
        proxy.listener.close()
    for file in server.folder.rglob("data/**/*"):
        assert not file.is_file() or b"pass%20word" not in file.read_bytes(), file
    assert not any("pass%20word" in line or "pass word" in line for line in server.errors)


DONE = b"data: [DONE]\n\n"


# --- From users of such gateways --------------------------------------------------------------------


def stream_of(gateway, word, **fields):
    answer = gateway.chat(word, model="p", stream=True, **fields)
    assert answer.status == 200 and answer.whole, answer.body
    data = [line[6:] for line in answer.body.decode().split("\n") if line.startswith("data: ")]
    assert data[-1] == "[DONE]"  # exactly this, for openai-node
    return answer, [json.loads(d) for d in data[:-1]]


def test_a_first_delta_with_content_and_no_role(gateway, upstream):
    events = [chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk({}, "stop"), DONE]
    upstream.script("roleless", streams(events))
    answer, chunks = stream_of(gateway, "roleless")
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hello"
    again, _ = stream_of(gateway, "roleless")
    assert (again.cache, again.body) == ("hit", answer.body)
    plain = gateway.chat("roleless", model="p")
    assert plain.cache == "hit; converted"
    assert plain.json["choices"][0]["message"]["content"] == "Hello"
    assert upstream.count("roleless") == 1


def test_the_usage_chunk_has_no_choices_and_the_request_keeps_its_id(gateway, upstream):
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    said = chunk({"role": "assistant", "content": "Hi"})
    last = json.loads(said.decode().removeprefix("data: ")) | {"choices": [], "usage": usage}
    events = [said, chunk({}, "stop"), event(last), DONE]
    upstream.script("usage", streams(events))
    answer, chunks = stream_of(gateway, "usage", stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == usage
    assert len([c for c in chunks if c["choices"]]) >= 1  # LangChain raises on none
    assert answer.headers["x-request-id"] and chunks[-1]["id"] == chunks[0]["id"]
    entry = gateway.entry_of(answer, payload=True)
    assert entry["record"]["request_id"] == answer.headers["x-request-id"]
    # Who did not ask gets none of it.
    _, bare = stream_of(gateway, "usage")
    assert all(c["choices"] and not c.get("usage") for c in bare)
    assert upstream.count("usage") == 1


def test_equal_requests_with_different_answers_are_both_kept(gateway, upstream):
    upstream.script("twice", whole(chat_answer("one")), whole(chat_answer("two")))
    first = gateway.chat("twice", model="p")
    second = gateway.chat("twice", model="p", headers={"cache-control": "no-cache"})
    texts = [a.json["choices"][0]["message"]["content"] for a in (first, second)]
    assert texts == ["one", "two"]
    entries = [gateway.receipt_of(a)["entry"] for a in (first, second)]
    assert entries[0] != entries[1]
    for entry, text in zip(entries, (b"one", b"two")):
        assert text in base64.b64decode(gateway.entry(entry, payload=True)["response"])
    assert gateway.chat("twice", model="p").json["choices"][0]["message"]["content"] == "one"


def test_lone_surrogates_pass_as_they_came_and_are_two_keys(gateway, upstream):
    answers = {}
    for half in ("d83d", "de00"):
        delta = chunk({"role": "assistant", "content": "x"}).replace(
            b'"x"', b'"\\u' + half.encode() + b'"'
        )
        assert half.encode() in delta
        upstream.script("lone", streams([delta, chunk({}, "stop"), DONE]))
        body = '{"model":"p","temperature":0,"stream":true,"messages":[{"role":"user","content":"lone \\u%s"}]}'
        answer = gateway.raw(body % half)
        assert answer.status == 200 and b"\\u" + half.encode() in answer.body, answer.body
        answers[half] = answer
        again = gateway.raw(body % half)
        assert (again.cache, again.body) == ("hit", answer.body)
    prints = {a.headers["verbatim-fingerprint"] for a in answers.values()}
    assert len(prints) == 2
    assert upstream.count("lone") == 2


def test_an_answer_of_another_content_type_is_passed_on_as_it_is(gateway, upstream):
    def text(handler, _):
        handler.send_response(200)
        handler.send_header("content-type", "text/plain; charset=utf-8")
        handler.send_header("content-length", "5")
        handler.end_headers()
        handler.wfile.write(b"hello")

    upstream.script("text", text)
    for _ in range(2):
        answer = gateway.chat("text", model="p")
        assert (answer.status, answer.body) == (200, b"hello")
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.cache != "hit"
    assert upstream.count("text") == 2


def test_the_openai_clients_responses_stream_helper(gateway, upstream):
    response = {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "in_progress", "model": "p",
        "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
        "temperature": 0, "top_p": 1,
    }
    part = {"type": "output_text", "text": "", "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    done_part = part | {"text": "Hello"}
    done_item = item | {"status": "completed", "content": [done_part]}
    place = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    said = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        {"type": "response.output_text.delta", **place, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **place, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", **place, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **place, "part": done_part},
        {"type": "response.output_item.done", "output_index": 0, "item": done_item},
        {"type": "response.completed",
         "response": response | {"status": "completed", "output": [done_item],
                                 "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
                                           "input_tokens_details": {"cached_tokens": 0},
                                           "output_tokens_details": {"reasoning_tokens": 0}}}},
    ]
    events = []
    for number, value in enumerate(said):
        data = json.dumps(value | {"sequence_number": number})
        events.append(f"event: {value['type']}\ndata: {data}\n\n".encode())
    upstream.script("helper", streams(events, headers=EVENTS))
    client = openai.OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)
    for _ in range(2):
        with client.responses.stream(model="p", input="helper", temperature=0) as stream:
            deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert (deltas, final.output_text) == (["Hel", "lo"], "Hello")
    assert upstream.count("helper") == 1


ACCESS = """
log: {{level: info}}
upstreams:
  main: {{url: "{url}/v1", models: ["m"]}}
policy: {{verify: {{rate: 0}}, key: {{namespace: shared}}}}
access:
  keys:
    - {{id: root, secret: "file:root", tenant: ops, roles: [client, operator, auditor]}}
    - {{id: a, secret: "file:a", tenant: acme, roles: [client]}}
    - {{id: g, secret: "file:g", tenant: globex, roles: [client]}}
    - {{id: ga, secret: "file:ga", tenant: globex, roles: [auditor]}}
"""


def test_an_auditors_receipt_opens_no_record_of_another_tenant(upstream, tmp_path):
    with keyed_gateway(tmp_path, upstream, ACCESS, ["root", "a", "g", "ga"]) as server:
        asked = server.chat("opened", key=secret("a"))
        assert (asked.status, asked.cache) == (200, "miss")
        path = f"/verbatim/v1/receipts/{asked.headers['x-request-id']}?wait=5"
        own = server.ask("GET", path, headers={"authorization": f"Bearer {secret('a')}"})
        assert own.status == 200 and "opening" in own.json, own.json
        other = server.ask("GET", path, headers={"authorization": f"Bearer {secret('ga')}"})
        assert other.status in (200, 404)
        assert b"opening" not in other.body and b"acme" not in other.body
        # A hit across tenants, in a namespace that all share: its receipt opens nothing of the first.
        hit = server.chat("opened", key=secret("g"))
        assert hit.cache == "hit"
        receipt = server.ask(
            "GET",
            f"/verbatim/v1/receipts/{hit.headers['x-request-id']}?wait=5",
            headers={"authorization": f"Bearer {secret('g')}"},
        )
        assert receipt.status == 200 and b"acme" not in receipt.body
