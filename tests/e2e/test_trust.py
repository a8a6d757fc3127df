"""What lets others trust the log: witnesses, timestamps, promises, another key, and the log as C2SP
tools read it."""

import base64
import json
import subprocess
import sys

import pytest

import gateway_process
from anchoring import Authority, Witness, openssl, sha256
from scripted_gateway import wait_for
from upstream_gateway import UpstreamGateway, Upstream


@pytest.fixture
def upstream():
    upstream = Upstream()
    yield upstream
    upstream.close()


def root_of(hashes):
    if len(hashes) == 1:
        return hashes[0]
    split = 1
    while 2 * split < len(hashes):
        split *= 2
    return sha256(b"\x01" + root_of(hashes[:split]) + root_of(hashes[split:]))


def test_witnesses_timestamps_and_the_log_as_others_read_it(tmp_path, upstream):
    witnesses = [Witness(tmp_path, f"w{i}.example") for i in range(3)]
    authority = Authority(tmp_path)
    more = "log:\n  quorum: 2\n  interval_seconds: 1\n  max_age_seconds: 3\n  witnesses:\n"
    for witness in witnesses:
        more += f"    - {{url: {witness.url}/w/, vkey: '{witness.vkey}'}}\n"
    more += f"  timestamps: {{url: {authority.url}/stamp, ca_file: {tmp_path}/ca.pem, interval_seconds: 1}}\n"
    gateway = UpstreamGateway(tmp_path, upstream, more)
    witnesses[2].behaviour = "garbage"
    gateway.start()
    try:
        assert gateway.chat("hello").status == 200
        anchors = lambda: gateway.ask("GET", "/verbatim/v1/log/anchors").json
        wait_for(lambda: anchors()["cosigned"])
        checkpoint = gateway.ask("GET", "/log/checkpoint").body.decode()
        text, _, lines = checkpoint.partition("\n\n")
        names = [line.split(" ")[1] for line in lines.splitlines()]
        assert names[1:] == ["w0.example", "w1.example"], checkpoint
        # What a client of tlog-tiles does: the tree of that size has this root.
        size = int(text.split("\n")[1])
        tile = gateway.ask("GET", f"/log/tile/0/000.p/{size}").body
        root = root_of([tile[i : i + 32] for i in range(0, len(tile), 32)])
        assert base64.b64encode(root).decode() == text.split("\n")[2]
        log = gateway.ask("GET", "/verbatim/v1/log").json
        assert log["witnesses"] == [w.vkey for w in witnesses] and log["quorum"] == 2
        proof = gateway.ask("GET", "/verbatim/v1/entries/0/proof", headers={"accept": "text/plain"})
        assert proof.body.startswith(b"c2sp.org/tlog-proof@v1\nindex 0\n")
        assert b"w1.example" in proof.body
        # A cache that looks at paths alone must not give one form, or an older one, for another.
        in_json = gateway.ask("GET", "/verbatim/v1/entries/0/proof")
        assert in_json.json["leaf_hash"] and in_json.body != proof.body
        for current in (proof, in_json, gateway.ask("GET", "/log/checkpoint")):
            assert current.headers["cache-control"] in ("no-cache", "no-store")
        assert any("w2.example" in line for line in gateway.errors)
        prove = [gateway_process.BINARY, "proof", "--data", gateway.data, "--entry"]
        from_folder = subprocess.run(prove + ["0"], capture_output=True, check=True).stdout
        assert from_folder.startswith(b"c2sp.org/tlog-proof@v1\nindex 0\n") and b"w1.example" in from_folder
        assert subprocess.run(prove + ["9999"], capture_output=True).returncode == 2
        # Without a quorum the server is not ready after its time, and serves all the same.
        assert gateway.ask("GET", "/readyz").status == 200
        witnesses[0].behaviour, witnesses[1].behaviour = "ahead", "huge"
        wait_for(lambda: gateway.ask("GET", "/readyz").status == 503)
        assert b"witnesses (2 of 3)" in gateway.ask("GET", "/readyz").body
        assert gateway.chat("hello again").status == 200
        # One that hangs holds up neither answers nor the others.
        witnesses[0].behaviour, witnesses[1].behaviour = "slow", "honest"
        witnesses[2].behaviour = "honest"
        wait_for(lambda: gateway.ask("GET", "/readyz").status == 200)

        stamp = wait_for(lambda: anchors()["timestamps"])[0]
        (tmp_path / "stamped").write_bytes(stamp["checkpoint"].encode())
        (tmp_path / "token").write_bytes(base64.b64decode(stamp["response"]))
        openssl("ts", "-verify", "-data", "stamped", "-in", "token", "-CAfile", "ca.pem", cwd=tmp_path)
    finally:
        witnesses[0].release.set()
        assert gateway.stop() == 0
    report = subprocess.run([gateway_process.BINARY, "fsck", "--data", gateway.data], capture_output=True)
    assert report.returncode == 0, report.stdout


def test_promise_then_another_key(tmp_path, upstream):
    gateway = UpstreamGateway(tmp_path, upstream).start()
    try:
        assert gateway.chat("hello").status == 200
        hit = gateway.chat("hello")
        assert hit.cache == "hit"
        receipt = gateway.ask("GET", f"/verbatim/v1/receipts/{hit.headers['x-request-id']}").json
        old_log = gateway.ask("GET", "/verbatim/v1/log").json
        if receipt["status"] == "pending":  # unless the interval ended just now
            assert receipt["promise"].startswith(f"verbatim-promise-1\n{old_log['origin']}\n")
            (tmp_path / "promise").write_text(receipt["promise"])
            check = [sys.executable, str(gateway_process.ROOT / "tools" / "check-receipt"), gateway.url,
                     hit.headers["x-request-id"], "--promise", str(tmp_path / "promise")]
            done = subprocess.run(check, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "as promised" in done.stdout
            forged = receipt["promise"].replace("\nhit ", "\nhit A", 1)
            (tmp_path / "promise").write_text(forged)
            assert subprocess.run(check, capture_output=True).returncode == 1
        rotate = [gateway_process.BINARY, "keys", "new-log", "--data", gateway.data, "--json"]
        refused = subprocess.run(rotate, capture_output=True, text=True)
        assert refused.returncode == 2 and "in use by process" in refused.stderr
        old_receipt = wait_for(
            lambda: (r := gateway.ask("GET", f"/verbatim/v1/receipts/{hit.headers['x-request-id']}?wait=3").json)
            ["status"] == "committed" and r
        )
    finally:
        assert gateway.stop() == 0
    rotated = json.loads(subprocess.run(rotate, capture_output=True, check=True).stdout)
    assert rotated["old"] == old_log["vkey"]
    gateway.start()
    try:
        log = gateway.ask("GET", "/verbatim/v1/log").json
        assert log["vkey"] == rotated["vkey"] and log["origin"] == old_log["origin"]
        assert [k["from"] for k in log["keys"]] == [0, rotated["from"]]
        leaf = gateway.ask("GET", f"/verbatim/v1/entries/{rotated['from'] - 1}").json["leaf_json"]
        assert leaf["kind"] == "key_made" and leaf["detail"]["new"] == log["vkey"]
        # What a client kept from before holds under the key of its size.
        assert old_receipt["proof"]["tree_size"] < rotated["from"]
        answer = gateway.chat("hello")
        check = [sys.executable, str(gateway_process.ROOT / "tools" / "check-receipt"), gateway.url]
        done = subprocess.run(check + [answer.headers["x-request-id"]], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    finally:
        assert gateway.stop() == 0
