"""What the configuration file changes: policies, the software lock, and what changes no answer."""

import subprocess
import sys
import threading
import time

import pytest

from gateway_process import ROOT, Gateway, chat, model_file

PATH = "/v1/chat/completions"


@pytest.fixture
def start(tmp_path):
    """Starts a gateway with this configuration; all of one test share a data folder."""
    if model_file() is None:
        pytest.skip("no model: run tools/fetch-model, or set VERBATIM_MODEL")
    running = []

    def starter(yaml):
        config = tmp_path / "config.yaml"
        config.write_text(yaml)
        running.append(Gateway(tmp_path / "data", "--config", str(config)).start())
        return running[-1]

    yield starter
    for gateway in running:
        if gateway.process.poll() is None:
            gateway.kill()


def test_another_instruction_set_and_thread_count_still_hit(start):
    request = chat("Does the machine matter?")
    first = start("engine: {threads: 2}\n")
    recorded = first.ask("POST", PATH, request)
    assert (recorded.status, recorded.cache) == (200, "miss")
    assert first.stop() == 0
    second = start("engine: {threads: 1, isa: scalar}\n")
    assert "scalar" in second.serves
    again = second.ask("POST", PATH, request)
    assert (again.cache, again.body) == ("hit", recorded.body)
    # Run again there, it gives the same answer.
    forced = second.ask("POST", PATH, request, {"cache-control": "no-cache"})
    assert forced.cache == "miss"
    assert forced.json["choices"] == recorded.json["choices"]


def test_strict_policy(start):
    gateway = start("policy: strict\n")
    warm = gateway.ask("POST", PATH, chat("Be strict.", temperature=1.7, seed=4))
    cold = gateway.ask("POST", PATH, chat("Be strict.", temperature=0, seed=5))
    assert (warm.status, warm.cache) == (200, "miss")
    # Temperature and seed are the policy's, so both asked for the same thing.
    assert (cold.cache, cold.body) == ("hit", warm.body)
    # A hit has its own entry at once, and every answer is executed again.
    receipt = gateway.ask("GET", f"/verbatim/v1/receipts/{cold.headers['x-request-id']}").json
    assert receipt["status"] != "pending", receipt
    deadline = time.monotonic() + 60
    while gateway.metric("verbatim_verifications_total", outcome="equal") < 1:
        assert time.monotonic() < deadline, "no answer was executed again"
        time.sleep(0.1)
    assert gateway.metric("verbatim_verifications_total", outcome="diverged") == 0


@pytest.mark.parametrize("policy", ["default", "strict"])
@pytest.mark.parametrize("stream", [False, True])
def test_receipts_hold(start, tmp_path, policy, stream):
    """An outsider's script finds every answer's bytes in the log: of a miss, a hit and a join."""
    gateway = start(f"policy: {policy}\n")
    request = chat("Write down the first ten letters.", stream=stream, max_tokens=48)
    together = []
    threads = [
        threading.Thread(target=lambda: together.append(gateway.ask("POST", PATH, request)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = [*together, gateway.ask("POST", PATH, request)]
    assert [a.status for a in answers] == [200] * 4
    assert {"miss", "hit"} <= {a.cache for a in answers} <= {"miss", "hit", "shared"}
    assert "shared" in {a.cache for a in together}
    for answer in answers:
        body = tmp_path / "body"
        body.write_bytes(answer.body)
        done = check_receipt(gateway, answer, body)
        assert done.returncode == 0, f"{answer.cache}: {done.stderr}"
        body.write_bytes(answer.body + b" ")
        done = check_receipt(gateway, answer, body)
        assert done.returncode == 1 and "these bytes" in done.stderr, f"{answer.cache}: {done}"


def check_receipt(gateway, answer, body):
    script = str(ROOT / "tools" / "check-receipt")
    request_id = answer.headers["x-request-id"]
    command = [sys.executable, script, gateway.url, request_id, "--body", str(body)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_software_lock(start, tmp_path):
    gateway = start('policy: {software_lock: {components: {libraries.rocksdb: "0.0.1"}}}\n')
    answer = gateway.ask("POST", PATH, chat("Are you locked?"))
    assert answer.status == 503
    runs = gateway.ask("GET", "/verbatim/v1/manifest").json["libraries"]["rocksdb"]
    assert f"libraries.rocksdb 0.0.1 is pinned, {runs} runs" in answer.json["error"]["message"]
    assert gateway.ask("GET", "/healthz").status == 503
    assert gateway.stop() == 0

    pinned = start(f'policy: {{software_lock: {{components: {{libraries.rocksdb: "{runs}"}}}}}}\n')
    assert pinned.ask("GET", "/healthz").status == 200
    assert pinned.ask("POST", PATH, chat("Are you locked?")).status == 200
    assert pinned.stop() == 0


@pytest.mark.parametrize(
    "policy, error",
    [
        ('{software_lock: {components: {rocksdb: "1"}}}', "names rocksdb, which is no component"),
        ("{key: {secret: 'env:VERBATIM_TEST_UNSET'}}", "VERBATIM_TEST_UNSET"),
    ],
)
def test_a_policy_that_cannot_hold_here_ends_the_start(tmp_path, policy, error):
    if model_file() is None:
        pytest.skip("no model: run tools/fetch-model, or set VERBATIM_MODEL")
    config = tmp_path / "config.yaml"
    config.write_text(f"policy: {policy}\n")
    gateway = Gateway(tmp_path / "data", "--config", str(config))
    done = subprocess.run(gateway.command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert error in done.stderr
    if "rocksdb" in policy:
        assert "libraries.rocksdb" in done.stderr
    # Nothing was written: no log was begun.
    assert not list((tmp_path / "data").glob("db/*"))


def test_every_refusal_leaves_an_entry(start):
    """Also those on the HTTP form, which never reach the pipeline."""
    gateway = start("server: {limits: {body_bytes: 2000}}\n")
    refused = [
        (413, gateway.ask("POST", PATH, chat("a" * 3000))),
        (415, gateway.ask("POST", PATH, b"{}", {"content-type": "text/plain"})),
        (403, gateway.ask("POST", PATH, b"{}", {"origin": "https://elsewhere.example"})),
        (405, gateway.ask("GET", PATH)),
        (400, gateway.ask("POST", PATH, b"{}", {"content-length": "+2"})),
        (400, gateway.ask("POST", PATH, b"no JSON")),
    ]
    for status, answer in refused:
        assert answer.status == status
        receipt = gateway.ask(
            "GET", f"/verbatim/v1/receipts/{answer.headers['x-request-id']}?wait=5"
        )
        assert receipt.status == 200, f"{status}: {receipt.body}"
        assert receipt.json["kind"] == "refused"
    assert gateway.metric("verbatim_requests_total") == len(refused)
    assert gateway.metric("verbatim_http_refused_total") == len(refused) - 1
    assert gateway.ask("GET", "/readyz").status == 200


def test_limits_of_the_configuration(start):
    gateway = start("server: {limits: {body_bytes: 2000, header_count: 10}}\n")
    assert gateway.ask("POST", PATH, chat("a" * 3000)).status == 413
    assert gateway.ask("GET", "/healthz", headers={f"x-{i}": "1" for i in range(10)}).status == 431
    assert gateway.ask("POST", PATH, chat("short")).status == 200
