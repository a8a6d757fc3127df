"""An evidence bundle from export to both verifiers, which agree on every good and damaged one."""

import hashlib
import io
import json
import pathlib
import subprocess
import sys
import zipfile

import gateway_process
import pytest
from bundles import TOOL, edit_index, flip, pack, sealed, stranger, unpack, verify_both
from bundles import verify_bundle, without
from gateway_process import run
from upstream_gateway import Upstream, UpstreamGateway


class Evidence:
    """A ledger with two tenants, an upstream's answers and hits, and what was exported from it."""

    def __init__(self, folder):
        self.folder = folder
        self.upstream = Upstream()
        self.gateway = UpstreamGateway(folder, self.upstream, "policy: {verify: {rate: 0}}\n")
        self.keys = {}
        for tenant in ("acme", "globex"):
            code, out, err = run(
                *("keys", "new-api", "--config", str(self.gateway.config)),
                *("--data", self.gateway.data, "--tenant", tenant, "--subject", "bo"),
                *("--roles", "client,auditor,operator"),
            )
            assert code == 0, err
            self.keys[tenant] = out.strip()
        self.gateway.start()
        self.early = None
        try:
            for i in range(3):
                self.chat("acme", f"hello {i}")
                self.chat("globex", f"hello {i}")
                self.early = self.early or self.get("/log/checkpoint").body
            hits = [self.chat("acme", "hello 0") for _ in range(3)]
            assert [hit.cache for hit in hits] == ["hit"] * 3
            for hit in hits:
                wait = f"/verbatim/v1/receipts/{hit.headers['x-request-id']}?wait=9"
                assert self.get(wait).json["status"] == "committed"
            self.vkey = self.get("/verbatim/v1/log").json["vkey"]
            (folder / "early").write_bytes(self.early)
            self.live, self.live_facts = self.export("live.zip", "--range", "0:3")
        finally:
            assert self.gateway.stop() == 0
            self.upstream.close()
        self.whole, self.facts = self.export(
            "whole.zip", "--since", "2020-01-01", "--checkpoint", str(folder / "early")
        )
        self.acme, _ = self.export("acme.zip", "--range", "4:11", "--tenant", "acme")
        self.single, _ = self.export("single.zip", "--entry", "6", "--no-payloads")

    def get(self, path):
        return self.gateway.ask("GET", path, headers=self.bearer("acme"))

    def bearer(self, tenant):
        return {"authorization": f"Bearer {self.keys[tenant]}"}

    def chat(self, tenant, text):
        answer = self.gateway.chat(text, self.bearer(tenant))
        assert answer.status == 200, answer.body
        return answer

    def export(self, name, *arguments, data=None):
        path = str(self.folder / name)
        code, out, err = run(
            "export", "--data", data or self.gateway.data, "--out", path, "--json", *arguments
        )
        assert code == 0, err
        facts = json.loads(out)
        bundle = pathlib.Path(path).read_bytes()
        assert hashlib.sha256(bundle).hexdigest() == facts["digest"]
        return bundle, facts

    def verify(self, bundle, *arguments):
        return verify_both(self.folder / "checked.zip", bundle, *arguments)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    return Evidence(tmp_path_factory.mktemp("evidence"))


def test_a_whole_log_holds(evidence):
    holds, checks = evidence.verify(evidence.whole, "--key", evidence.vkey)
    assert holds, checks
    index = json.loads(unpack(evidence.whole)["bundle.json"])
    entries = index["size"]
    for name in ("leaf", "inclusion", "record", "range"):
        assert checks[name]["holds"] == entries, name
    assert checks["consistency"]["holds"] == 1
    assert checks["hits"]["holds"] == 3
    assert checks["sequence"]["holds"] == 2
    assert checks["key"]["holds"] == 1
    unknown = {name for name, check in checks.items() if check["unknown"]}
    assert unknown == {"witnesses", "timestamps", "prose"}, checks


def test_a_tenants_part_shows_that_nothing_of_it_is_missing(evidence):
    holds, checks = evidence.verify(evidence.acme, "--key", evidence.vkey)
    assert holds, checks
    assert checks["sequence"]["holds"] == 1
    members = unpack(evidence.acme)
    tenants = json.loads(members["bundle.json"])["tenants"]
    for name, data in members.items():
        if name.endswith("record.json"):
            assert json.loads(data).get("tenant", "acme") == "acme", name
    assert len(tenants) == 1


def test_payloads_can_stay_away(evidence):
    holds, checks = evidence.verify(evidence.single)
    assert holds, checks
    assert checks["payload"]["unknown"] and checks["key"]["unknown"]
    assert not [n for n in unpack(evidence.single) if n.endswith("/request")]


def test_a_running_server_exports_and_records_it(evidence):
    holds, checks = evidence.verify(evidence.live, "--key", evidence.vkey)
    assert holds, checks
    entry = evidence.live_facts["exported_entry"]
    members = unpack(evidence.whole)
    leaf = json.loads(members[f"entries/{entry}/leaf.json"])
    record = json.loads(members[f"entries/{entry}/record.json"])
    assert leaf["kind"] == "exported" and leaf["detail"]["entries"] == 4
    assert record["extra"]["bundle_digest"] == evidence.live_facts["digest"]


def test_the_same_log_gives_the_same_bytes_as_any_zip_library(evidence):
    assert pack(unpack(evidence.whole).items()) == evidence.whole
    # Two copies of one folder, since an export adds entries to the one that it reads.
    bundles = []
    for name in ("a", "b"):
        copy = str(evidence.folder / name)
        subprocess.run(["cp", "-r", evidence.gateway.data, copy], check=True)
        bundles.append(evidence.export(name + ".zip", "--range", "1:7", data=copy)[0])
    assert bundles[0] == bundles[1]


def test_the_report_stands_alone(evidence):
    report = unpack(evidence.whole)["report.html"].decode()
    for outside in ("src=", "href=", "url(", "<script", "http://", "https://"):
        assert outside not in report, outside
    assert "Content-Security-Policy" in report and evidence.vkey.replace("&", "&amp;") in report
    assert "hello 0" in report


def damages(evidence):
    """(name, bundle, the checks that must fail; None: any)."""
    good = unpack(evidence.whole)
    index = json.loads(good["bundle.json"])
    leaves = {e["entry"]: json.loads(good[f"entries/{e['entry']}/leaf.json"]) for e in index["entries"]}
    batch = next(n for n, leaf in leaves.items() if leaf["kind"] == "hits")
    answer = next(n for n, leaf in leaves.items() if leaf["kind"] == "generated")
    other = max(n for n, leaf in leaves.items() if leaf["kind"] == "generated")
    tenant = leaves[answer]["tenant"]
    at = f"entries/{answer}/"
    kinds = {}
    for name in good:
        kind = name.split("/")[-1] if name.startswith("entries/") else name
        if kind != "leaf.json" or name.startswith(at):
            kinds.setdefault(kind, name)
    kinds.pop("bundle.json")
    for kind, name in kinds.items():
        damaged = {**good, name: flip(good[name])}
        yield f"{kind} flipped", pack(damaged.items()), ["files"]
        yield f"{kind} removed", pack(without(good, name).items()), ["files"]
        if kind not in ("README.txt", "report.html", "statement.txt"):
            yield f"{kind} flipped, list made to fit", sealed(damaged), None
            yield f"{kind} removed, list made to fit", sealed(without(good, name)), None
    for part in ("leaf.json", "leaf.tlog-proof", "record.json", "request"):
        a, b = at + part, f"entries/{other}/{part}"
        yield f"{part} swapped", sealed({**good, a: good[b], b: good[a]}), None

    yield "salt of another entry", edit_index(
        good, lambda i: i["entries"][answer].update(salt=i["entries"][other]["salt"])
    ), ["record"]
    yield "proof of another size", sealed(
        {**good, at + "leaf.tlog-proof": unpack(evidence.live)["entries/0/leaf.tlog-proof"]}
    ), ["inclusion"]
    hits = good[f"entries/{batch}/hits.jsonl"].splitlines(True)
    for name, lines in {
        "a hit left out": hits[:1] + hits[2:],
        "the last hit left out": hits[:-1],
        "hits in another order": hits[::-1],
        "no hits": [],
        "a hit twice": hits + hits[-1:],
    }.items():
        yield name, sealed({**good, f"entries/{batch}/hits.jsonl": b"".join(lines)}), ["hits"]
    yield "hits of another record", sealed(
        {**good, f"entries/{batch}/hits.jsonl": good[f"entries/{batch}/hits.jsonl"].replace(b"bo", b"ob", 1)}
    ), ["hits"]

    def drop(members, entry, **changes):
        rest = {n: d for n, d in members.items() if not n.startswith(f"entries/{entry}/")}
        facts = json.loads(members["bundle.json"])
        facts["entries"] = [e for e in facts["entries"] if e["entry"] != entry]
        return sealed(rest, {**facts, **changes})

    yield "an entry of a range left out", drop(good, answer), ["range", "sequence"]
    part = unpack(evidence.acme)
    inside = [e["entry"] for e in json.loads(part["bundle.json"])["entries"] if 4 <= e["entry"] <= 11]
    own = [n for n in inside if leaves[n].get("tenant") == tenant]
    yield "a sequence gap", drop(part, own[1]), ["sequence"]
    yield "the first of a tenant left out", drop(part, own[0]), ["sequence"]
    yield "a range that claims more", edit_index(part, lambda i: i.update({"from": 0})), []
    yield "another tenant claimed", edit_index(
        part, lambda i: i.update(tenants=["00" * 16])
    ), []
    yield "an entry said to be erased", edit_index(
        good, lambda i: i["entries"].__setitem__(answer, {"entry": answer, "record": "erased"})
    ), ["files"]
    yield "a payload nobody names", sealed({**good, "entries/0/request": b"x"}), ["payload"]
    yield "an added member", pack([*good.items(), ("entries/0/notes", b"x")]), ["files"]
    yield "an added member, list made to fit", sealed({**good, "entries/0/notes": b"x"}), ["files"]
    yield "a renamed member", pack(
        [(n.replace("README.txt", "ReadMe.txt"), d) for n, d in good.items()]
    ), ["files"]
    yield "no bundle.json", pack(without(good, "bundle.json").items()), ["index"]
    yield "an older version's size", edit_index(good, lambda i: i.update(size=i["size"] + 1)), ["checkpoint"]
    yield "numbers as texts", edit_index(good, lambda i: i.update(size=str(i["size"]))), ["index"]
    yield "an unknown fact", edit_index(good, lambda i: i.update(more=1)), ["index"]
    yield "spaces in bundle.json", pack(
        [*without(good, "bundle.json").items(), ("bundle.json", json.dumps(index).encode())]
    ), ["index"]
    yield "deep bundle.json", pack([("bundle.json", b"[" * 100_000)]), ["index"]
    yield "a checkpoint of another size", sealed({**good, "log/checkpoint": evidence.early}), ["checkpoint"]
    foreign = verify_bundle_other_log()
    yield "a checkpoint of another log", sealed({**good, "log/checkpoint": foreign}), ["checkpoint"]
    yield "no signature", sealed(
        {**good, "log/checkpoint": good["log/checkpoint"].split(b"\n\n")[0] + b"\n\n"}
    ), ["checkpoint"]

    zips = evidence.whole
    for cut in (0, 10, 30, len(zips) // 2, len(zips) - 22, len(zips) - 1):
        yield f"cut off at {cut}", zips[:cut], ["archive"]
    yield "something behind it", zips + b"x", ["archive"]
    yield "something before it", b"x" + zips, ["archive"]
    for place in (4, 6, 8, 10, 14, 18, 22, 26, 28, len(zips) - 20, len(zips) - 10):
        yield f"archive's byte {place} flipped", flip(zips, place), ["archive"]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in good.items():
            archive.writestr(name, data)
        archive.writestr("bomb", b"0" * 10_000_000)
    yield "packed again, with a bomb", out.getvalue(), ["archive"]
    for name in ("/etc/passwd", "../x", "entries/../x", "a//b", "a/", "b\\c", "x" * 101, "\u00e9"):
        yield f"a member named {name[:20]}", pack([*good.items(), (name, b"x")]), ["archive"]
    with pytest.warns(UserWarning):
        twice = pack([*good.items(), ("README.txt", b"x")])
    yield "a name twice", twice, ["archive"]


def verify_bundle_other_log():
    vectors = gateway_process.ROOT / ".." / "shared" / "vectors" / "merkle" / "tessera-log"
    text = b"example.com/other\n1\n" + b"A" * 43 + b"=\n"
    note = text + "\n\u2014 example.com/other ".encode() + b"A" * 92 + b"\n"
    return note if not vectors.is_dir() else (vectors / "checkpoint.7").read_bytes()


def test_both_verifiers_see_every_damage_alike(evidence):
    count = 0
    for name, bundle, failing in damages(evidence):
        assert bundle not in (evidence.whole, evidence.acme), name
        try:
            holds, checks = evidence.verify(bundle)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        failed = [check for check, found in checks.items() if found["fails"]]
        if failing == []:
            continue  # both say the same; what it claims cannot be refuted
        assert not holds, name
        assert not failing or set(failing) & set(failed), (name, failed)
        count += 1
    assert count > 80


def test_another_key_and_a_missing_witness_fail(evidence):
    holds, checks = evidence.verify(evidence.whole, "--key", stranger("verbatim/other", 1))
    assert not holds and checks["key"]["fails"] and checks["inclusion"]["holds"]
    holds, checks = evidence.verify(evidence.whole, "--witness", stranger("witness", 4))
    assert not holds and checks["witnesses"]["fails"]


def test_the_engines_answers_are_executed_again_from_bundle_and_model_alone(tmp_path):
    model = gateway_process.model_file()
    if model is None:
        pytest.skip("no model: tools/fetch-model")
    gateway = gateway_process.Gateway(tmp_path / "data").start()
    try:
        for body in (
            gateway_process.chat("What is a ledger?"),
            gateway_process.chat("And a leaf?", temperature=0.9, top_p=0.8, stream=True),
            gateway_process.chat("Stop at a dot.", seed=7, temperature=1.5, stop=[".", "the"]),
        ):
            answer = gateway.ask("POST", "/v1/chat/completions", body)
            assert answer.status == 200, answer.body
    finally:
        assert gateway.stop() == 0
    bundle = str(tmp_path / "engine.zip")
    code, _, err = run("export", "--data", gateway.data, "--since", "2020-01-01", "--out", bundle)
    assert code == 0, err
    code, out, err = run("verify", bundle, "--json", "--reexecute", "--model", str(model))
    assert code == 0, (out, err)
    checks = {check["check"]: check for check in json.loads(out)["checks"]}
    assert checks["reexecution"]["holds"] == 3, checks["reexecution"]
    assert checks["chain"]["holds"] == 3 and not checks["reexecution"]["unknown"]


def test_usage(evidence):
    for arguments, says in [
        (["verify", "nowhere.zip"], "nowhere.zip"),
        (["verify", str(evidence.folder / "whole.zip"), "--key", "x"], "--key"),
        (["export", "--data", evidence.gateway.data, "--out", "x.zip"], "say what"),
        (["export", "--data", evidence.gateway.data, "--out", "x.zip", "--range", "5:4"], "range"),
        (["export", "--data", evidence.gateway.data, "--out", "x.zip", "--entry", "999"], "999"),
        (["export", "--data", str(evidence.folder), "--out", "x.zip", "--entry", "0"], "no ledger"),
        (["export", "--data", evidence.gateway.data, "--out", str(evidence.folder / "whole.zip"), "--entry", "0"], "already"),
    ]:
        code, _, err = run(*arguments)
        assert code == 2 and says in err and err.count("\n") == 1, (arguments, err)
    done = subprocess.run(
        [sys.executable, "-I", TOOL, evidence.folder / "whole.zip", "--key", evidence.vkey],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.endswith("Nothing in the bundle is wrong.\n"), done


def test_the_python_verifiers_ed25519_is_openssls():
    file = gateway_process.ROOT / ".." / "shared" / "vectors" / "ed25519" / "cctv-subset.json"
    if not file.is_file():
        pytest.skip("no vectors")
    for case in json.loads(file.read_text()):
        key, signature = bytes.fromhex(case["key"]), bytes.fromhex(case["sig"])
        verified = verify_bundle.ed25519_verify(key, case["msg"].encode(), signature)
        assert verified == case["openssl_here"], case


def test_the_python_verifiers_proofs_are_rfc6962s():
    file = gateway_process.ROOT / ".." / "shared" / "vectors" / "merkle" / "transparency-dev-merkle.json"
    if not file.is_file():
        pytest.skip("no vectors")
    vectors = json.loads(file.read_text())
    decode = lambda text: verify_bundle.base64.b64decode(text or "")
    for case in vectors["inclusion"]:
        if not case["root"]:
            continue  # a digest of no bytes: no bundle holds one
        path = [decode(h) for h in case["proof"] or []]
        arguments = case["leafIdx"], case["treeSize"], decode(case["leafHash"]), path, decode(case["root"])
        assert holds(verify_bundle.check_inclusion, *arguments) != case["wantErr"], case
    for case in vectors["consistency"]:
        path = [decode(h) for h in case["proof"] or []]
        if case["size1"] == case["size2"]:
            continue  # no bundle holds a proof between equal sizes
        arguments = case["size1"], case["size2"], path, decode(case["root1"]), decode(case["root2"])
        assert holds(verify_bundle.check_consistency, *arguments) != case["wantErr"], case


def holds(check, *arguments):
    try:
        check(*arguments)
        return True
    except verify_bundle.Bad:
        return False
