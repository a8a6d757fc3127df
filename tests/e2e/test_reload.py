"""SIGHUP: a new configuration is in force as a whole, or not at all, and an entry says which. And
what the access log, metrics and traces say meanwhile."""

import json
import signal
import time

import pytest

from upstream_gateway import Upstream, UpstreamGateway

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def gateway(tmp_path):
    upstream = Upstream()
    gateway = UpstreamGateway(tmp_path, upstream, "server: {access_log: access.log}\n").start()
    yield gateway
    if gateway.process.poll() is None:
        assert gateway.stop() == 0
    upstream.close()


def reload(gateway, more, says):
    """SIGHUP with this configuration; waits for the line about it."""
    gateway.configure(more)
    seen = len(gateway.errors)
    gateway.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for line in gateway.errors[seen:]:
            if "the configuration was" in line:
                assert says in line, line
                return
        time.sleep(0.01)
    raise AssertionError(gateway.errors[seen:])


def configurations(gateway):
    return [
        (n, leaf["outcome"], leaf.get("detail", {}).get("policy"))
        for n, leaf in enumerate(gateway.leaves())
        if leaf["kind"] == "configuration_changed"
    ]


def test_another_policy_counts_for_new_requests(gateway):
    assert gateway.chat("a").cache == "miss"
    assert gateway.chat("a").cache == "hit"
    log = "server: {access_log: access.log}\n"
    reload(gateway, log + "policy: {mode: observe}\n", "was reloaded")
    assert gateway.chat("a").cache == "observed"
    entries = configurations(gateway)
    assert [e[1] for e in entries] == ["ok", "ok"]
    assert entries[0][2] != entries[1][2]
    reload(gateway, log, "was reloaded")
    assert gateway.chat("a").cache == "hit"


@pytest.mark.parametrize(
    "more, names",
    [
        ("policy: {mode: observe}\nserver: {listen: '127.0.0.1:1', body: 1}\n", "server.body"),
        ("policy: {mode: observe}\nserver: {threads: 3}\n", "server.threads"),
        ("policy: {mode: observe}\nengine: {max_batch: 3}\n", "engine.max_batch"),
        ("policy: {mode: observe}\naccess: {keys: [{id: a, secret: 'env:NOT_THERE'}]}\n", "NOT_THERE"),
        ("policy: {mode: observe}\nserver: {access_log: none/access.log}\n", "access.log"),
        ("policy: {mode: nonsense}\n", "nonsense"),
        ("{", "verbatim.yaml"),
    ],
)
def test_anything_wrong_changes_nothing(gateway, more, names):
    assert gateway.chat("a").cache == "miss"
    if "access_log" not in more and more.startswith("policy"):
        log = "access_log: access.log"
        more = more.replace("server: {", f"server: {{{log}, ")
        if "server:" not in more:
            more += f"server: {{{log}}}\n"
    reload(gateway, more, names)
    assert gateway.chat("a").cache == "hit"
    (_, first, _), (n, second, _) = configurations(gateway)
    assert (first, second) == ("ok", "rejected")
    record = gateway.ask("GET", f"/verbatim/v1/entries/{n}").json["record"]
    assert names in record["extra"]["reason"]


def test_the_access_log_is_rotated_and_has_every_request(gateway, tmp_path):
    answer = gateway.chat("a", {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
    sent, _ = gateway.upstream.requests[0]
    assert sent["traceparent"].startswith(f"00-{TRACE}-")
    assert "b7ad6b7169203331" not in sent["traceparent"]
    file = tmp_path / "access.log"
    wait_for_lines(file, 1)
    file.rename(tmp_path / "access.log.1")
    reload(gateway, "server: {access_log: access.log}\n", "was reloaded")
    assert gateway.chat("a").cache == "hit"
    assert gateway.ask("GET", "/nowhere?key=secret").status == 404
    (first,) = wait_for_lines(tmp_path / "access.log.1", 1)
    hit, nowhere = wait_for_lines(file, 2)
    assert first["request_id"] == answer.headers["x-request-id"]
    assert first["fingerprint"] == answer.headers["verbatim-fingerprint"]
    assert first["trace_id"] == TRACE
    assert (first["status"], first["cache"], first["upstream"]) == (200, "miss", "vendor")
    assert first["bytes_out"] == len(answer.body)
    assert (hit["cache"], hit["entry"]) == ("hit", first["entry"])
    assert (nowhere["status"], nowhere["path"]) == (404, "/nowhere")
    assert gateway.metric("gen_ai_server_request_duration_seconds_count") == 2


def wait_for_lines(file, count):
    deadline = time.monotonic() + 10
    lines = []
    while len(lines) < count and time.monotonic() < deadline:
        time.sleep(0.01)
        text = file.read_text() if file.exists() else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
    assert len(lines) == count, lines
    return lines
