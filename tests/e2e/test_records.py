"""Holds, erasure, backup and restore beside a running server, from the command line."""

import json
import pathlib

from gateway_process import run
from upstream_gateway import Upstream, UpstreamGateway

WHY = ["--reason", "article 17", "--authority", "privacy office", "--json"]


def command(name, gateway, *arguments):
    code, out, err = run(name, "--data", gateway.data, *arguments)
    return code, json.loads(out) if out.startswith("{") else err


def test_records_from_hold_to_a_restored_log(tmp_path):
    upstream = Upstream()
    gateway = UpstreamGateway(tmp_path, upstream).start()
    try:
        first = gateway.chat("hello")
        assert first.status == 200 and first.cache.startswith("miss")
        entry = first.headers["verbatim-entry"]
        hit = gateway.chat("hello")
        assert hit.cache.startswith("hit"), hit.headers

        # A hold refuses the erasure; both leave entries.
        assert command("hold", gateway, "--entry", entry, *WHY)[0] == 0
        code, report = command("shred", gateway, "--entry", entry, *WHY)
        assert (code, report["outcome"]) == (1, "held")
        assert gateway.chat("hello").cache.startswith("hit")
        backup = tmp_path / "backup"
        code, made = command("backup", gateway, "--out", str(backup), "--json")
        assert code == 0, made
        assert command("backup", gateway, "--out", str(backup))[0] == 2  # nothing is overwritten

        # Released, it is erased: no hit any more, and the receipts say so.
        assert command("release", gateway, "--entry", entry, *WHY)[0] == 0
        code, report = command("shred", gateway, "--entry", entry, *WHY)
        assert (code, report["outcome"], report["backups_not_reached"]) == (0, "ok", []), report
        assert report["entries"] >= 2  # with its intent
        again = gateway.chat("hello")
        assert again.cache.startswith("miss"), again.headers
        receipt = gateway.ask("GET", f"/verbatim/v1/receipts/{first.headers['x-request-id']}").json
        assert receipt["erased"] is True and "opening" not in receipt
        assert gateway.ask("GET", f"/verbatim/v1/entries/{entry}").json["erased"] is True
        assert gateway.ask("GET", f"/verbatim/v1/entries/{entry}/proof").status == 200
        hits = gateway.ask("GET", f"/verbatim/v1/receipts/{hit.headers['x-request-id']}?wait=3")
        assert hits.json["result"]["erased"] is True

        # Whoever asked is forgotten whole: entries and hits.
        record = gateway.ask(
            "GET", f"/verbatim/v1/entries/{again.headers['verbatim-entry']}"
        ).json["record"]
        who = ["--tenant", record["tenant"], "--subject", record["subject"]]
        code, report = command("shred", gateway, *who, *WHY)
        assert code == 0 and report["hits_slots"] >= 1, report
        hits = gateway.ask("GET", f"/verbatim/v1/receipts/{hit.headers['x-request-id']}").json
        assert hits["hit"]["erased"] is True and "opening" not in hits["hit"]
        kinds = [leaf["kind"] for leaf in gateway.leaves()]
        assert kinds.count("erased") == 3 and "held" in kinds and "released" in kinds
        code, out, err = run("fsck", "--data", gateway.data)
        assert code == 0, (out, err)
        assert gateway.stop() == 0

        # The backup lost the same keys; what is restored of it begins a new log.
        restored = tmp_path / "restored"
        code, out, err = run(
            "restore", "--from", str(backup), "--data", str(restored), "--json"
        )
        report = json.loads(out)
        assert code == 0 and report["erasures"] == 2 and report["log_went_on"], (report, err)
        assert report["root"] == made["root"] and report["settled"] is False
        gateway.data, old = str(restored), gateway.data
        gateway.command = [str(restored) if a == old else a for a in gateway.command]
        code, out, err = run("serve", *gateway.command[2:])
        assert code == 2 and "--acknowledge-rollback" in err, (out, err)
        checkpoint = str(pathlib.Path(old) / "checkpoint")
        code, out, err = run("restore", "--data", str(restored), "--checkpoint", checkpoint)
        assert code == 2 and "the log went on" in err, (out, err)
        assert command("restore", gateway, "--acknowledge-rollback", "--json")[0] == 0
        gateway.start()
        first_leaf = gateway.leaves()[0]
        assert first_leaf["detail"]["continues"]["origin"] == made["origin"]
        assert gateway.stop() == 0
    finally:
        if gateway.process.poll() is None:
            gateway.kill()
        upstream.close()
