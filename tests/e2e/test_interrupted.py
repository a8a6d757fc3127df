"""kill -9 while an upstream has not answered: what was sent is in the ledger, once."""

import threading

from gateway_process import run
from upstream_gateway import Upstream, UpstreamGateway


def of_kind(leaves, kind):
    return [(n, leaf) for n, leaf in enumerate(leaves) if leaf["kind"] == kind]


def test_what_was_sent_before_a_kill_is_interrupted_once(tmp_path):
    upstream = Upstream()
    gateway = UpstreamGateway(tmp_path, upstream).start()
    try:
        assert gateway.chat("hello").status == 200
        asking = [
            threading.Thread(target=ask, args=(gateway, f"hang {i}")) for i in range(3)
        ]
        for thread in asking:
            thread.start()
        for _ in range(4):
            assert upstream.arrived.acquire(timeout=30)
        assert gateway.metric("verbatim_ledger_open_intents") == 3
        gateway.kill()
        for thread in asking:
            thread.join(timeout=30)

        for start in range(2):
            gateway.start()
            leaves = gateway.leaves()
            intents = of_kind(leaves, "intent")
            interrupted = of_kind(leaves, "interrupted")
            assert len(intents) == 4 and len(interrupted) == 3, leaves
            ends = {
                r["entry"]
                for leaf in leaves
                for r in leaf.get("references", [])
                if r["relation"] == "intent"
            }
            assert ends == {n for n, _ in intents}
            for n, leaf in interrupted:
                assert leaf["outcome"] == "unknown"
                entry = gateway.ask("GET", f"/verbatim/v1/entries/{n}").json
                assert entry["record"]["tenant"] == "default"
                assert entry["record"]["extra"]["intent"]["entry"] in ends
                request_id = entry["record"]["request_id"]
                receipt = gateway.ask("GET", f"/verbatim/v1/receipts/{request_id}").json
                assert receipt["kind"] == "interrupted", receipt
            assert gateway.metric("verbatim_ledger_open_intents") == 0
            assert gateway.stop() == 0
            code, out, err = run("fsck", "--data", gateway.data)
            assert code == 0, (start, out, err)
    finally:
        if gateway.process.poll() is None:
            gateway.kill()
        upstream.close()


def ask(gateway, text):
    try:
        gateway.chat(text)
    except OSError:
        pass
    except Exception as e:  # the connection broke with the server
        assert "http" in type(e).__module__, e
