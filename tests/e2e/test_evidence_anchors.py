"""Bundles of a log with witnesses, timestamps, erased entries and a second key; and forged ones."""

import base64
import hashlib
import json
import pathlib
import subprocess

import gateway_process
import pytest
from anchoring import Authority, Witness, openssl
from bundles import canonical, edit_index, flip, sealed, stranger, unpack, verify_both, without
from gateway_process import run
from scripted_gateway import wait_for
from upstream_gateway import Upstream, UpstreamGateway

WHY = ["--reason", "article 17", "--authority", "privacy office"]


class Anchored:
    """A ledger whose key was replaced, cosigned and stamped before and after, with an erasure."""

    def __init__(self, folder):
        self.folder = folder
        self.witness, authority = Witness(folder, "w.example"), Authority(folder)
        self.gateway = UpstreamGateway(
            folder,
            Upstream(),
            "log:\n  interval_seconds: 1\n"
            f"  witnesses: [{{url: {self.witness.url}/w/, vkey: '{self.witness.vkey}'}}]\n"
            f"  timestamps: {{url: {authority.url}/stamp, ca_file: {folder}/ca.pem, interval_seconds: 1}}\n",
        )
        self.old = self.serve_until_anchored()
        rotate = [gateway_process.BINARY, "keys", "new-log", "--data", self.gateway.data, "--json"]
        rotated = json.loads(subprocess.run(rotate, capture_output=True, check=True).stdout)
        self.rotation = rotated["from"] - 1
        self.new = self.serve_until_anchored()
        assert self.new == rotated["vkey"] != self.old
        self.gateway.upstream.close()
        self.whole = self.export("whole", "--since", "2020-01-01")
        self.early = self.export("early", "--range", "0:1")
        self.single = self.export("single", "--entry", str(self.erased))

    def serve_until_anchored(self):
        """Two answers, one erased, and heads behind it that witness and authority have seen."""
        self.gateway.start()
        try:
            assert self.gateway.chat("kept").status == 200  # and then a hit
            answer = self.gateway.chat("hello")
            assert answer.status == 200, answer.body
            self.erased = int(answer.headers["verbatim-entry"])
            code, _, err = run(
                "shred", "--data", self.gateway.data, "--entry", str(self.erased), *WHY
            )
            assert code == 0, err
            anchors = lambda: self.gateway.ask("GET", "/verbatim/v1/log/anchors").json
            wait_for(lambda: int((anchors()["cosigned"] or "\n0").split("\n")[1]) > self.erased)
            wait_for(lambda: any(s["size"] > self.erased for s in anchors()["timestamps"]))
            return self.gateway.ask("GET", "/verbatim/v1/log").json["vkey"]
        finally:
            assert self.gateway.stop() == 0

    def export(self, name, *arguments):
        path = str(self.folder / (name + ".zip"))
        code, _, err = run("export", "--data", self.gateway.data, "--out", path, *arguments)
        assert code == 0, err
        return pathlib.Path(path).read_bytes()

    def verify(self, bundle, *arguments):
        return verify_both(self.folder / "checked.zip", bundle, *arguments)


@pytest.fixture(scope="module")
def anchored(tmp_path_factory):
    return Anchored(tmp_path_factory.mktemp("anchored"))


def test_each_key_of_the_log_checks_all_of_it(anchored):
    for key in (anchored.old, anchored.new):
        holds, checks = anchored.verify(anchored.whole, "--key", key)
        assert holds and checks["key"]["holds"] == 1, checks
        assert checks["rotation"]["holds"] == 1
        index = json.loads(unpack(anchored.whole)["bundle.json"])
        assert checks["checkpoint"]["holds"] == len(index["checkpoints"]) + 1
        assert checks["consistency"]["holds"] == len(index["checkpoints"]) >= 2
        assert index["checkpoints"][0] <= anchored.rotation < index["checkpoints"][-1]
    holds, checks = anchored.verify(anchored.whole)
    assert holds and checks["key"]["unknown"] and checks["rotation"]["holds"] == 1
    holds, checks = anchored.verify(anchored.whole, "--key", stranger("verbatim/other", 1))
    assert not holds and checks["key"]["fails"]


def test_what_witnesses_saw_of_it(anchored):
    holds, checks = anchored.verify(anchored.early, "--witness", anchored.witness.vkey)
    assert holds and checks["witnesses"]["holds"] == 1, checks
    # The last entry of a server that stopped is behind what they saw.
    holds, checks = anchored.verify(anchored.whole, "--witness", anchored.witness.vkey)
    assert holds and checks["witnesses"]["unknown"], checks
    holds, checks = anchored.verify(anchored.whole, "--witness", stranger("w.example", 4))
    assert not holds and checks["witnesses"]["fails"], checks


def test_timestamps_are_checked_with_the_authoritys_certificate(anchored):
    stamps = json.loads(unpack(anchored.whole)["bundle.json"])["timestamps"]
    assert len(stamps) >= 2
    holds, checks = anchored.verify(anchored.whole)
    assert holds and len(checks["timestamps"]["unknown"]) == len(stamps)

    def verify(bundle, ca):
        path = anchored.folder / "stamped.zip"
        path.write_bytes(bundle)
        code, out, err = run("verify", str(path), "--json", "--timestamp-ca", str(anchored.folder / ca))
        assert err == "", err
        found = json.loads(out)
        return code, next(c for c in found["checks"] if c["check"] == "timestamps"), found["dated"]

    code, check, dated = verify(anchored.whole, "ca.pem")
    assert code == 0 and check["holds"] == len(stamps) and not check["unknown"]
    assert [d["size"] for d in dated] == stamps and "authority" in dated[0]["authority"]
    members = unpack(anchored.whole)
    first, last = (f"log/timestamps/{n}.tsr" for n in (stamps[0], stamps[-1]))
    exchanged = sealed({**members, first: members[last], last: members[first]})
    code, check, dated = verify(exchanged, "ca.pem")
    assert code == 1 and {note["subject"] for note in check["fails"]} == {first, last}
    code, check, _ = verify(anchored.whole, "tsa.pem")  # not who issued it
    assert code == 1 or check["holds"] == 0, check
    code, _, err = run("verify", str(anchored.folder / "whole.zip"), "--timestamp-ca", "nowhere.pem")
    assert code == 2 and "nowhere.pem" in err and err.count("\n") == 1


def test_what_was_erased_is_said_to_be_by_an_entry(anchored):
    holds, checks = anchored.verify(anchored.whole)
    assert holds and checks["erasure"]["holds"] == 4, checks  # two answers and their intents
    assert len(checks["record"]["unknown"]) == 4 and not checks["erasure"]["unknown"]
    holds, checks = anchored.verify(anchored.single)
    assert holds and checks["erasure"]["holds"] >= 1, checks
    members = unpack(anchored.single)
    index = json.loads(members["bundle.json"])
    leaf = lambda n: json.loads(members[f"entries/{n}/leaf.json"])
    says = next(e["entry"] for e in index["entries"] if leaf(e["entry"])["kind"] == "erased")
    index["entries"] = [e for e in index["entries"] if e["entry"] != says]
    rest = {n: d for n, d in members.items() if not n.startswith(f"entries/{says}/")}
    holds, checks = anchored.verify(sealed(rest, index))
    assert holds and checks["erasure"]["unknown"] and not checks["erasure"]["holds"], checks

    code, _, err = run("prune", "--data", anchored.gateway.data, "--before", str(index["size"]), *WHY)
    assert code == 0, err
    pruned = anchored.export("pruned", "--since", "2020-01-01")
    holds, checks = anchored.verify(pruned, "--key", anchored.new)
    gone = [e for e in json.loads(unpack(pruned)["bundle.json"])["entries"] if e["record"] == "erased"]
    assert holds and checks["erasure"]["holds"] == len(gone) > 4, checks
    assert not checks["erasure"]["unknown"] and checks["hits"]["holds"] == 1, checks


def damages(anchored):
    """(name, bundle, the check that fails with the log's newest key)."""
    good = unpack(anchored.whole)
    index = json.loads(good["bundle.json"])
    keys = good["log/keys"].decode()
    first, second = keys.splitlines(True)
    other = f"{first[2:].partition('+')[0]}"
    for name, text, failing in [
        ("no list of keys", None, "checkpoint"),
        ("one key", second, "key"),
        ("the same key, from another size", first + f"{anchored.rotation + 2} {anchored.new}\n", "rotation"),
        ("the newest key from the beginning", f"0 {anchored.new}\n1 {anchored.new}\n", "checkpoint"),
        ("in another order", second + first, "key"),
        ("not from the beginning", first.replace("0 ", "1 ", 1) + second, "key"),
        ("from behind the end", first + f"{index['size'] + 1} {anchored.new}\n", "key"),
        ("not as it is written", first + " " + second, "key"),
        ("a number that is none", first.replace("0 ", "00 ", 1) + second, "key"),
        ("no end", keys[:-1], "key"),
        ("nothing", "", "key"),
        ("a stranger in between", first + f"1 {stranger(other, 1)}\n" + second, "rotation"),
        ("a stranger at the end", keys + f"{index['size']} {stranger(other, 1)}\n", "key"),
        ("of another log", f"0 {stranger('other', 1)}\n" + second, "key"),
    ]:
        members = without(good, "log/keys")
        yield name, sealed(members if text is None else {**members, "log/keys": text.encode()}), failing
    yield "the old key for the newest head", sealed(
        {**without(good, "log/keys"), "log/vkey": (anchored.old + "\n").encode()}
    ), "checkpoint"
    leaf = f"entries/{anchored.rotation}/leaf.json"
    yield "another rotation", sealed({**good, leaf: flip(good[leaf])}), "inclusion"
    stamped = f"log/timestamps/{index['timestamps'][0]}.tsr"
    yield "a token missing", sealed(without(good, stamped)), "files"
    yield "a token of no checkpoint", edit_index(
        {**good, "log/timestamps/1.tsr": b"x"}, lambda i: i.update(timestamps=[1, *i["timestamps"]])
    ), "timestamps"
    size = index["checkpoints"][-1]
    note = good[f"log/checkpoints/{size}"]
    assert b"w.example" in note
    yield "a cosignature with another time", sealed(
        {**good, f"log/checkpoints/{size}": recosigned(note, lambda b: b[:11] + bytes([b[11] ^ 1]) + b[12:])}
    ), "witnesses"
    yield "a cosignature cut short", sealed(
        {**good, f"log/checkpoints/{size}": recosigned(note, lambda b: b[:-1])}
    ), "witnesses"
    yield "an older checkpoint, without its proof", sealed(
        without(good, f"log/consistency/{size}")
    ), "consistency"


def recosigned(note, change):
    head, line, end = note.rpartition(b"\xe2\x80\x94 w.example ")
    return head + line + base64.b64encode(change(base64.b64decode(end.strip()))) + b"\n"


def test_both_verifiers_see_every_damage_alike(anchored):
    for name, bundle, failing in damages(anchored):
        arguments = ["--key", anchored.new, "--witness", anchored.witness.vkey]
        try:
            holds, checks = anchored.verify(bundle, *arguments)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        failed = [check for check, found in checks.items() if found["fails"]]
        assert not holds and failing in failed, (name, failed)


class Key:
    """A log's key in somebody's hands."""

    def __init__(self, folder, origin, name):
        self.file = str(folder / f"{name}.key")
        openssl("genpkey", "-algorithm", "ed25519", "-out", self.file)
        public = b"\x01" + openssl("pkey", "-in", self.file, "-pubout", "-outform", "DER")[-32:]
        self.id = hashlib.sha256(origin.encode() + b"\n" + public).digest()[:4]
        self.vkey = f"{origin}+{self.id.hex()}+{base64.b64encode(public).decode()}"

    def sign(self, message):
        path = pathlib.Path(self.file + ".message")
        path.write_bytes(message)
        return openssl("pkeyutl", "-sign", "-rawin", "-inkey", self.file, "-in", str(path))


def forged(origin, key, keys, leaves, records):
    """A bundle of a whole log as its key's holder could make it. leaves: one or two."""
    leaves = [
        canonical({
            "version": 1, "origin": origin, "time": "2026-01-01T00:00:00.000000Z", "outcome": "ok",
            "commitment": "00" * 32, **leaf,
        })
        for leaf in leaves
    ]
    hashes = [hashlib.sha256(b"\0" + leaf).digest() for leaf in leaves]
    root = hashes[0] if len(hashes) == 1 else hashlib.sha256(b"\1" + b"".join(hashes)).digest()
    text = f"{origin}\n{len(leaves)}\n{base64.b64encode(root).decode()}\n".encode()
    line = base64.b64encode(key.id + key.sign(text))
    checkpoint = text + b"\n\xe2\x80\x94 " + origin.encode() + b" " + line + b"\n"
    members = {
        "README.txt": b"", "report.html": b"", "statement.txt": b"",
        "log/vkey": key.vkey.encode() + b"\n", "log/checkpoint": checkpoint,
        **({"log/keys": keys.encode()} if keys else {}),
    }
    for n, leaf in enumerate(leaves):
        path = b"".join(base64.b64encode(h) + b"\n" for i, h in enumerate(hashes) if i != n)
        members[f"entries/{n}/leaf.json"] = leaf
        members[f"entries/{n}/leaf.tlog-proof"] = (
            b"c2sp.org/tlog-proof@v1\nindex %d\n" % n + path + b"\n" + checkpoint
        )
    return sealed(members, {
        "version": 1, "origin": origin, "size": len(leaves), "from": 0, "to": len(leaves) - 1,
        "payloads": True, "checkpoints": [], "timestamps": [],
        "entries": [{"entry": n, "record": record} for n, record in enumerate(records)],
    })


def test_a_new_key_is_the_logs_only_where_the_old_one_said_so(tmp_path):
    origin = "example.com/log"
    old, new = (Key(tmp_path, origin, name) for name in ("old", "new"))
    text = f"verbatim-new-key-1\n{origin}\n{old.vkey}\n{new.vkey}\n".encode()
    signed = base64.b64encode(old.sign(text)).decode()
    by_itself = base64.b64encode(new.sign(text)).decode()
    # What the leaf says -> whether that holds for who has the old key, the new one, none.
    for detail, with_old, with_new, with_none in [
        ({"signature": signed}, True, True, True),
        ({}, False, True, True),  # whoever has only the old key is told to ask
        ({"signature": by_itself}, False, False, False),
        ({"signature": signed[:-4]}, False, False, False),
        ({"signature": None}, False, False, False),
        ({"signature": 7}, False, False, False),
        ({"signature": signed, "new": old.vkey}, False, False, False),
    ]:
        leaf = {"kind": "key_made", "detail": {"old": old.vkey, "new": new.vkey, **detail}}
        keys = f"0 {old.vkey}\n1 {new.vkey}\n"
        bundle = forged(origin, new, keys, [leaf], ["withheld"])
        for key, want in [(old, with_old), (new, with_new), (None, with_none)]:
            arguments = ["--key", key.vkey] if key else []
            holds, checks = verify_both(tmp_path / "checked.zip", bundle, *arguments)
            assert holds == want, (detail, key, checks)
            assert checks["rotation"]["holds"] == (detail == {"signature": signed})


def test_an_erasure_is_of_the_entries_that_it_names(tmp_path):
    key = Key(tmp_path, "example.com/log", "log")
    for kind, detail, more, want in [
        ("erased", {"entries": [[0, 0]]}, {}, "holds"),
        ("erased", {"entries": [[0, 7]]}, {}, "holds"),
        ("erased", {"entries": [[1, 5]]}, {}, "unknown"),
        ("erased", {"slots": [[0, 0]]}, {}, "unknown"),
        ("erased", {"entries": [[0, 0]]}, {"outcome": "held"}, "unknown"),
        ("erased", {"entries": [[0]]}, {}, "fails"),
        ("erased", {"entries": [["0", "0"]]}, {}, "fails"),
        ("erased", {"entries": 0}, {}, "fails"),
        ("pruned", {"before": 1}, {}, "holds"),
        ("pruned", {"before": 1, "kept": [[3, 4]]}, {}, "holds"),
        ("pruned", {"before": 1, "kept": [[0, 0]]}, {}, "unknown"),
        ("pruned", {"before": 0}, {}, "unknown"),
        ("pruned", {"before": "1"}, {}, "fails"),
        ("pruned", {}, {}, "fails"),
        ("viewed", {"entries": [[0, 0]]}, {}, "unknown"),
    ]:
        answer = {"kind": "generated", "tenant": "ab" * 16, "sequence": 1}
        erasure = {"kind": kind, **({"detail": detail} if detail else {}), **more}
        bundle = forged("example.com/log", key, None, [answer, erasure], ["erased", "withheld"])
        _, checks = verify_both(tmp_path / "checked.zip", bundle, "--key", key.vkey)
        assert checks["inclusion"]["holds"] == 2, checks
        assert bool(checks["erasure"][want]), (kind, detail, more, checks["erasure"])
