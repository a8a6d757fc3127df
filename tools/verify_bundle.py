#!/usr/bin/env python3
"""Checks an evidence bundle of Verbatim offline: what holds, what does not, what cannot be known.

A second implementation beside `verbatim verify` of audit/FORMAT.md; Python 3.8, nothing else; no RFC 3161 checks.
  verify_bundle.py BUNDLE [--key VKEY] [--witness VKEY]... [--json]
Exit status: 0 nothing is wrong, 1 something does not hold, 2 it could not run.
"""
import argparse, base64, hashlib, json, re, struct, sys, zlib
class Bad(Exception): """What does not hold."""
class Unknown(Exception): """What cannot be known from the bundle."""
def need(condition, what, error=Bad):
    if not condition: raise error(what)
def sha256(data): return hashlib.sha256(data).digest()
# Ed25519 (RFC 8032, 5.1.7, without cofactor), points in extended coordinates.
P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
def add(p, q):
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P
def multiply(scalar, p):
    q = (0, 1, 1, 0)
    while scalar: q, p, scalar = add(q, p) if scalar & 1 else q, add(p, p), scalar >> 1
    return q
def decode_point(data):  # None where there is none. As in OpenSSL, y counts modulo P, and so does minus zero.
    number = int.from_bytes(data, "little")
    y, sign = (number & 2**255 - 1) % P, number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    root = pow(square, (P + 3) // 8, P)
    for x in root, root * pow(2, (P - 1) // 4, P) % P:
        if (x * x - square) % P == 0:
            x = (P - x) % P if x & 1 != sign else x
            return x, y, 1, x * y % P
BASE = decode_point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
def ed25519_verify(key, message, signature):
    s, a = int.from_bytes(signature[32:], "little"), decode_point(key)
    if len(signature) != 64 or a is None or s >= L: return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    x, y, z, _ = add(multiply(s, BASE), multiply(k, (P - a[0], a[1], 1, P - a[3])))
    inverse = pow(z, P - 2, P)
    return (y * inverse % P | (x * inverse % P & 1) << 255).to_bytes(32, "little") == signature[:32]
# RFC 6962 trees, with proofs as in RFC 9162, 2.1.3.2 and 2.1.4.2.
def leaf_hash(data): return sha256(b"\0" + data)
def climb(node, last, path, hashes):  # of the new tree, and of the old one where there is one; returns their roots
    for sibling in path:
        need(last, "the path is too long")
        if node & 1 or node == last:
            hashes = [sha256(b"\1" + sibling + h) for h in hashes]
            while not node & 1 and node: node, last = node >> 1, last >> 1
        else:
            hashes[0] = sha256(b"\1" + hashes[0] + sibling)
        node, last = node >> 1, last >> 1
    need(last == 0, "the path is too short")
    return hashes
def check_inclusion(index, size, leaf, path, root):
    need(index < size and climb(index, size - 1, path, [leaf]) == [root], "the path leads to another root")
def check_consistency(first, second, path, first_root, second_root):
    need(0 < first < second and path, "there is no path")
    node, last, start = first - 1, second - 1, first_root
    while node & 1: node, last = node >> 1, last >> 1
    if first & (first - 1): start, path = path[0], path[1:]
    need(climb(node, last, path, [start, start]) == [second_root, first_root], "the path leads to another root")
# The archive: stored members with fixed fields, then exactly the list of them.
PART = rb"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+"
NAME = re.compile(rb"(?=.{1,100}\Z)%s(?:/%s)*\Z" % (PART, PART))
def read_archive(data):
    members, directory, at = {}, b"", 0
    while data[at:at + 4] == b"PK\3\4" and len(data) - at >= 30:
        (size,), (name_size,) = struct.unpack_from("<I", data, at + 22), struct.unpack_from("<H", data, at + 26)
        name, end = data[at + 30:at + 30 + name_size], at + 30 + name_size + size
        need(end <= len(data), f"the member at byte {at} is cut off")
        body = data[end - size:end]
        facts = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0x21, zlib.crc32(body), size, size, name_size, 0)
        need(NAME.match(name) and name.decode() not in members, f"the name at byte {at} is none, or came before")
        need(data[at + 4:at + 30] == facts, f"the member at byte {at} is damaged or packed otherwise")
        directory += b"PK\1\2\24\3" + facts + bytes(6) + struct.pack("<II", 0x81A40000, at) + name
        members[name.decode()], at = body, end
    count, size = len(members), len(directory)
    need(count and len(data) < 2**32 - 1, "it is no bundle: no zip file of stored members")
    if count >= 0xFFFF:
        directory += b"PK\6\6" + struct.pack("<QHHQQQQQ", 44, 45, 45, 0, count, count, size, at)
        directory += b"PK\6\7" + struct.pack("<IQI", 0, at + size, 1)
    directory += b"PK\5\6" + struct.pack("<IHHIIH", 0, *2 * [min(count, 0xFFFF)], size, at, 0)
    need(data[at:] == directory, f"from byte {at} on it is not the list of the members: cut off or changed")
    return members
# JSON, keys and notes.
def parse(data): return json.loads(data.decode(), parse_constant=lambda _: need(False, "it holds a number that is none"))
def parse_canonical(data, members, optional=""):  # an object with these members, and perhaps the optional ones
    value = parse(data)
    need(isinstance(value, dict) and set(members.split()) <= set(value) <= set((members + " " + optional).split())
         and json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == data,
         "it is no canonical JSON with the members that it should have")
    return value
def number(value, below=2**64):
    need(type(value) is int and 0 <= value < below, "a number is missing or too large")
    return value
def ascending(numbers, below):
    need([number(n, below) for n in numbers] == sorted(set(numbers)), "numbers are not ascending")
    return numbers
def unhex(text, size=32):
    need(isinstance(text, str) and re.fullmatch("[0-9a-f]{%d}" % (2 * size), text), "a digest is none")
    return bytes.fromhex(text)
def unbase64(text, size=None):
    data = base64.b64decode(text, validate=True)
    need(base64.b64encode(data) == text and size in (None, len(data)), "it is not base64 of the right length")
    return data
def hashes_of(data, limit):
    need(data[-1:] in (b"", b"\n") and data.count(b"\n") <= limit, "its hashes are none")
    return [unbase64(line, 32) for line in data.split(b"\n")[:-1]]
def parse_key(text, kind):  # (name, id, public key) of a C2SP verifier key; kind 1: a log's, 4: a witness's
    name, _, rest = text.partition("+")
    data = unbase64(rest[9:].encode(), 33)
    need(name and not re.search(r"[\s\x00-\x20\x7f]", name), "its name is none")
    need(data[0] == kind, "it is no Ed25519 key of this kind (<name>+<8 hex>+<base64>)")
    need(rest[:9] == sha256(name.encode() + b"\n" + data)[:4].hex() + "+", "its id is not that of the key")
    return name, unhex(rest[:8], 4), data[1:]
def open_checkpoint(note, key, size):  # root, signed text and the signatures of others
    need(len(note) <= 10**6 and not re.search(rb"[\x00-\x09\x0b-\x1f]", note) and note.decode(), "malformed note")
    text, _, lines = note.rpartition(b"\n\n")
    need(lines.endswith(b"\n") and lines.count(b"\n") <= 100, "malformed note")
    text, own, others = text + b"\n", [], []
    for line in lines[:-1].split(b"\n"):
        match = re.fullmatch(rb"\xe2\x80\x94 ([^ +]+) ([^ ]+)", line)
        need(match and len(unbase64(match[2])) >= 5, "malformed signature line")
        signature = match[1].decode(), unbase64(match[2])[:4], unbase64(match[2])[4:]
        (own if signature[:2] == key[:2] else others).append(signature)
    need(own and ed25519_verify(key[2], text, own[0][2]), "it is not signed by the log's key")
    origin, count, root = text.split(b"\n")[:3]
    need(origin.decode() == key[0] and count == b"%d" % size, "it is of another log or size")
    return unbase64(root, 32), text, others
def cosigned(text, signatures, witness):
    for signature in [s[2] for s in signatures if s[:2] == witness[:2]][:1]:
        time = int.from_bytes(signature[:8], "big")
        signed = ed25519_verify(witness[2], b"cosignature/v1\ntime %d\n" % time + text, signature[8:])
        need(signed and 0 < time < 2**63, "its cosignature is wrong")
        return True
def parse_index(data):
    index = parse_canonical(data, "version origin size from to payloads checkpoints timestamps entries files", "tenants")
    need((index["version"], type(index["payloads"]), type(index["origin"])) == (1, bool, str), "it is of another version")
    need(number(index["from"]) <= number(index["to"]) < number(index["size"]), "from and to name no entries")
    tenants = index.get("tenants", ["00" * 16])
    need(tenants and [unhex(t, 16).hex() for t in tenants] == sorted(set(tenants)), "tenants are none")
    ascending(index["checkpoints"], index["size"])
    ascending(index["timestamps"], index["size"] + 1)
    ascending([entry["entry"] for entry in index["entries"]], index["size"])
    for entry in index["entries"]:
        salt = {"salt"} if entry["record"] == "included" and unhex(entry["salt"]) else set()
        need(set(entry) == {"entry", "record"} | salt, "an entry has other members")
        need(salt or entry["record"] in ("withheld", "erased"), "a record's state is unknown")
    all(unhex(digest) for digest in index["files"].values())
    return index
def member_digests(data):  # SHA-256 of the bytes of each member of an object in canonical JSON
    text, at, out, decoder = data.decode(), 1, {}, json.JSONDecoder()
    while text[at:at + 1] == '"':
        name, at = decoder.raw_decode(text, at)
        end = decoder.raw_decode(text, at + 1)[1]
        out[name], at = sha256(text[at + 1:end].encode()).hex(), end + 1
    return out
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError)

class Verifier:
    def __init__(self, key, witnesses):
        self.key, self.witnesses, self.checks = key, witnesses, {}
    def check(self, name, subject=None, function=None, *arguments):
        """Counts what holds, notes what does not and what cannot be known; returns what the function does."""
        check = self.checks.setdefault(name, {"check": name, "holds": 0, "fails": [], "unknown": []})
        try:
            result = function(*arguments) if function else None
            check["holds"] += function is not None
            return result
        except Unknown as unknown: check["unknown"].append({"subject": subject, "what": str(unknown)})
        except (Bad, *MALFORMED) as error:
            what = str(error) if isinstance(error, Bad) else f"malformed ({type(error).__name__})"
            check["fails"].append({"subject": subject, "what": what})
    def each(self, name, entries, function):
        self.check(name)
        return [self.check(name, f"entry {n}", function, n) for n in entries]
    def file(self, name):
        need(name in self.members, "it is missing")
        return self.members[name]
    def of(self, n, name): return self.members.get(f"entries/{n}/{name}")
    def chosen(self, n):
        tenant = self.leaves[n].get("tenant")
        return self.first <= n <= self.last and tenant in (self.tenants or [tenant])
    def run(self, data):
        self.members = self.check("archive", "bundle", read_archive, data)
        self.index = index = self.members and self.check(
            "index", "bundle.json", lambda: parse_index(self.file("bundle.json")))
        if index is None: return
        self.state = {entry["entry"]: entry for entry in index["entries"]}
        self.first, self.last, self.tenants = index["from"], index["to"], index.get("tenants")
        self.leaves, self.records, self.payloads, self.results, self.time, self.keys = {}, {}, {}, {}, "", None
        self.files()
        self.check("key", "log/vkey", self.own_key)
        if self.keys is None or not self.log(): return
        included = dict(filter(None, self.each("inclusion", self.state, self.inclusion)))
        self.each("leaf", included, lambda n: self.leaf(n, included[n]))
        self.each("rotation", [start - 1 for start, _, _ in self.keys[1:]], self.rotation)
        self.each("record", [n for n in self.leaves if "salt" in self.state[n] or self.chosen(n)], self.record)
        self.erasures = [(m, leaf["kind"], leaf.get("detail") or {}) for m, leaf in self.leaves.items()
                         if leaf["kind"] in ("erased", "pruned") and leaf["outcome"] == "ok"]
        self.each("erasure", [n for n in self.leaves if self.state[n]["record"] == "erased"], self.erasure)
        self.check("payload")
        for n, record in self.records.items():
            for part, name in ("request", "request"), ("output", "response"), ("trace", "trace.json"):
                data, digest = self.of(n, name), record.get(part + "_digest")
                if digest or data is not None:
                    self.payloads[n, name] = self.check("payload", f"entries/{n}/{name}", self.payload, data, digest)
        self.each("chain", [n for n, record in self.records.items()
                            if record.get("chain_heads") and self.payloads.get((n, "trace.json"))], self.chain)
        self.each("hits", [n for n, leaf in self.leaves.items() if self.of(n, "hits.jsonl") is not None
                           or leaf["kind"] == "hits" and self.state[n]["record"] != "withheld"], self.hits)
        self.references()
        inside = [n for n in self.leaves if self.chosen(n)]
        if self.tenants is None:
            self.each("range", inside, lambda n: True)
            for before, n in zip([self.first - 1] + inside, inside + [self.last + 1]):
                if before + 1 < n:
                    self.check("range", f"entries {before + 1} to {n - 1}", need, False, "not in the bundle")
        self.check("sequence")
        for tenant in self.tenants or sorted({self.leaves[n].get("tenant", "") for n in inside} - {""}):
            self.sequence(tenant)
        self.configuration(inside)
        for name in "report.html", "statement.txt": self.check("prose", name, need, False, "its author's word", Unknown)
    def files(self):
        index, allowed = self.index, {"log/keys"}
        required = {"README.txt", "report.html", "statement.txt", "log/vkey", "log/checkpoint"}
        required |= {f"log/{kind}/{n}" for n in index["checkpoints"] for kind in ("checkpoints", "consistency")}
        required |= {f"log/timestamps/{n}.tsr" for n in index["timestamps"]}
        for n, entry in self.state.items():
            required |= {f"entries/{n}/leaf.json", f"entries/{n}/leaf.tlog-proof"}
            required |= {f"entries/{n}/record.json"} if "salt" in entry else set()
            allowed |= {f"entries/{n}/{part}" for part in ("request", "response", "trace.json") if "salt" in entry}
            allowed |= {f"entries/{n}/hits.jsonl"} if entry["record"] != "withheld" else set()
        def check(name):
            need(name in index["files"], "bundle.json does not name it")
            need(name in allowed | required, "it is no file of a bundle with these entries")
            need(sha256(self.file(name)).hex() == index["files"][name], "its digest is not the one in bundle.json")
        for name in sorted((set(self.members) | required | set(index["files"])) - {"bundle.json"}):
            self.check("files", name, check, name)
    def own_key(self):
        vkey, several = self.file("log/vkey").decode(), "log/keys" in self.members
        listed = self.file("log/keys").decode() if several else "0 " + vkey
        rows = [line.partition(" ") for line in listed.split("\n")[:-1]]
        keys = [(int(start), parse_key(text, 1), text) for start, _, text in rows]
        starts = ascending([start for start, _, _ in keys], self.index["size"] + 1)
        need(listed == "".join(f"{start} {text}\n" for start, _, text in keys) and vkey == keys[-1][2] + "\n"
             and starts[0] == 0 and len(keys) > several and {key[0] for _, key, _ in keys} == {self.index["origin"]},
             "it is not the key of bundle.json's log, or log/keys does not lead to it")
        self.keys, self.given = keys, [i for i, (_, key, _) in enumerate(keys) if key == self.key]
        need(self.key, "that this is the log's key is the bundle's own word: give the log's with --key", Unknown)
        need(self.given, "the bundle is of another log, or signed by another key, than --key")
    def log(self):  # False where there is no root to check against
        size = self.index["size"]
        names = {**{n: f"log/checkpoints/{n}" for n in self.index["checkpoints"]}, size: "log/checkpoint"}
        heads = {n: self.check("checkpoint", name, lambda: open_checkpoint(
            self.file(name), [key for start, key, _ in self.keys if start <= n][-1], n)) for n, name in names.items()}
        if heads[size] is None: return False
        self.root = heads[size][0]
        for witness in self.witnesses: self.check("witnesses", witness[0], self.witness, heads, witness)
        if not self.witnesses: self.check("witnesses", "log/checkpoint", need, False, "no --witness was given", Unknown)
        for n, name in [(n, f"log/timestamps/{n}.tsr") for n in self.index["timestamps"]] or [(size, "log/checkpoint")]:
            self.check("timestamps", name, need, False, "no token was checked here" if heads.get(n) else
                       "there is no checkpoint of that size", Unknown if heads.get(n) else Bad)
        self.check("consistency")
        for n, name in [(n, f"log/consistency/{n}") for n, head in heads.items() if head and n != size]:
            self.check("consistency", name, lambda: check_consistency(
                n, size, hashes_of(self.file(name), 128), heads[n][0], self.root))
        return True
    def witness(self, heads, witness):
        sizes = [n for n, head in heads.items() if head and cosigned(*head[1:], witness)]
        need(sizes, "it cosigned no checkpoint of the bundle")
        need(max(sizes) > self.last, f"it cosigned {max(sizes)} entries: did it see those behind them?", Unknown)
    def rotation(self, n):
        at = [start for start, _, _ in self.keys].index(n + 1)
        (_, old, old_text), (_, _, new_text) = self.keys[at - 1:at + 1]
        leaf, signed = self.leaves.get(n), f"verbatim-new-key-1\n{old[0]}\n{old_text}\n{new_text}\n"
        need(leaf and leaf["kind"] == "key_made" and leaf["detail"]["old"] == old_text
             and leaf["detail"]["new"] == new_text, "it should name the log's next key, and does not")
        need("signature" in leaf["detail"], "the key before did not sign for the next: give the newest with --key",
             Bad if self.given and self.given[-1] < at else Unknown)
        signature = unbase64(leaf["detail"]["signature"].encode())
        need(ed25519_verify(old[2], signed.encode(), signature), "the signature of the key before is wrong")
    def erasure(self, n):
        def says(m, kind, detail):
            within = lambda name: any(number(first) <= n <= number(last) for first, last in detail.get(name, []))
            return m > n and (within("entries") if kind == "erased" else n < number(detail["before"])
                              and "tenant" in self.leaves[n] and not within("kept"))
        need(any(says(*one) for one in self.erasures), "no entry of the bundle says that it was erased", Unknown)
    def leaf(self, n, data):
        leaf = parse_canonical(data, "version origin kind time outcome commitment",
                               "tenant sequence model manifest numerics references detail")
        need(leaf["version"] == 1 and leaf["origin"] == self.index["origin"], "it is of another log or version")
        need(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", leaf["time"]), "its time is none")
        need(all(set(r) == {"entry", "relation"} and number(r["entry"]) >= 0 for r in leaf.get("references", []))
             and number(leaf.get("sequence", 0)) >= 0 and isinstance(leaf.get("tenant", ""), str), "a member is none")
        self.leaves[n], before, self.time = leaf, self.time, max(self.time, leaf["time"])
        need(before <= leaf["time"], "its time is before that of an earlier entry")
    def inclusion(self, n):
        proof = self.file(f"entries/{n}/leaf.tlog-proof")
        start, end = b"c2sp.org/tlog-proof@v1\nindex %d\n" % n, b"\n" + self.members["log/checkpoint"]
        need(proof.startswith(start) and proof.endswith(end), "its proof is of another entry or checkpoint")
        data, path = self.file(f"entries/{n}/leaf.json"), hashes_of(proof[len(start):-len(end)], 64)
        check_inclusion(n, self.index["size"], leaf_hash(data), path, self.root)
        return n, data
    def record(self, n):
        state = self.state[n]
        need("salt" in state, f"its record is {state['record']}: what it says cannot be known", Unknown)
        data = self.file(f"entries/{n}/record.json")
        digest = sha256(bytes.fromhex(state["salt"]) + sha256(data)).hex()
        need(digest == self.leaves[n]["commitment"], "record or salt is not the leaf's")
        record = parse(data)
        need(record["version"] == 1 and isinstance(record.get("extra", {}), dict), "it is of another version")
        self.records[n] = record
    def payload(self, data, digest):
        need(data is not None or self.index["payloads"], "withheld: only its digest is in the bundle", Unknown)
        need(data is not None and sha256(data).hex() == digest, "it is missing, or not what the record names")
        return data
    def chain(self, n):
        chains = []
        for choice in parse(self.payloads[n, "trace.json"])["choices"]:
            digests, chain = bytes.fromhex(choice["digests"]), sha256(b"verbatim-logits-1")
            for at in range(0, len(digests), 16): chain = sha256(chain + digests[at:at + 16])
            chains.append(chain.hex())
        need(chains == self.records[n]["chain_heads"], "the logits chain is not that of the trace's digests")
    def hits(self, n):
        need(self.leaves[n]["kind"] == "hits", "it is no batch of hits")
        facts, results, erased = self.leaves[n]["detail"]["hits"], set(), 0
        lines = self.file(f"entries/{n}/hits.jsonl").split(b"\n")
        need(lines.pop() == b"" and len(lines) == facts["count"], "there are not as many hits as its leaf counts")
        for at, line in enumerate(lines):
            hit = parse_canonical(line, "number commitment path", "record salt")
            need(hit["number"] == at and len(hit["path"]) <= 64, f"hit {at} is missing")
            commitment, path = unhex(hit["commitment"]), [unhex(h) for h in hit["path"]]
            check_inclusion(at, len(lines), leaf_hash(commitment), path, unhex(facts["root"]))
            erased += "record" not in hit
            if "record" in hit:
                digest = sha256(hit["record"].encode())
                need(sha256(unhex(hit["salt"]) + digest) == commitment, f"hit {at} is not what it commits to")
                results.add(number(json.loads(hit["record"])["result"]))
        self.results[n], self.checks["hits"]["holds"] = results, self.checks["hits"]["holds"] + len(lines) - 1
        if erased:
            self.check("hits", f"entry {n}", need, False, f"the records of {erased} hits are not there", Unknown)
    def references(self):
        def check(n, other):
            need(other < n, f"it refers to entry {other}, which is not before it")
            need(other in self.leaves, f"it refers to entry {other}, which is not in the bundle", Unknown)
        self.check("references")
        for n in [n for n in self.leaves if self.state[n]["record"] != "withheld"]:
            for other in {r["entry"] for r in self.leaves[n].get("references", [])} | self.results.get(n, set()):
                self.check("references", f"entry {n}", check, n, other)
    def sequence(self, tenant):
        own = [(n, leaf.get("sequence", 0)) for n, leaf in self.leaves.items() if leaf.get("tenant") == tenant]
        behind = [s for n, s in own if n > self.last][:1] if self.tenants else []
        before = ([0] + [s for n, s in own if n < self.first])[-1:] if self.tenants else []
        numbers = before + [s for n, s in own if self.first <= n <= self.last] + behind
        gaps = [f"its number {b} follows number {a}" for a, b in zip(numbers, numbers[1:]) if b != a + 1]
        for gap in gaps or [""]: self.check("sequence", f"tenant {tenant}", need, not gap, gap)
        if self.tenants and not behind:
            self.check("sequence", f"tenant {tenant}", need, False, f"what follows number {numbers[-1]}", Unknown)
    def in_force(self, n):
        digests, leaf = member_digests(self.payloads[n, "response"]), self.leaves[n]
        need(digests["manifest"] == leaf["manifest"] and digests["policy"] == leaf["detail"]["policy"],
             "its policy or manifest is not the one whose digest its leaf holds")
        return set(digests.items())
    def configuration(self, inside):
        known = set().union(*filter(None, self.each("configuration", [
            n for n in self.records if self.leaves[n]["kind"] == "configuration_changed"
            and self.payloads.get((n, "response"))], self.in_force)))
        named = {("manifest", self.leaves[n].get("manifest")) for n in inside if n in self.records}
        named |= {("policy", self.records[n].get("extra", {}).get("policy")) for n in inside if n in self.records}
        for what in sorted(what for what in named if isinstance(what[1], str)):
            self.check("configuration", " ".join(what), need, what in known, "no entry of the bundle holds it", Unknown)

def main():
    parser = argparse.ArgumentParser(description="Checks an evidence bundle of Verbatim offline.")
    parser.add_argument("bundle")
    parser.add_argument("--key", metavar="VKEY", help="the log's public key, from elsewhere than the bundle")
    parser.add_argument("--witness", metavar="VKEY", action="append", default=[], help="of one that must have cosigned")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        verifier = Verifier(options.key and parse_key(options.key, 1), [parse_key(w, 4) for w in options.witness])
        with open(options.bundle, "rb") as file: verifier.run(file.read())
    except (Bad, OSError, ValueError, IndexError) as error:
        sys.exit(print(f"verify_bundle.py: {error}", file=sys.stderr) or 2)
    checks = list(verifier.checks.values())
    holds = not any(check["fails"] for check in checks)
    if options.json: sys.exit(print(json.dumps({"holds": holds, "checks": checks})) or not holds)
    for check in checks:
        print(f"{check['check']:13} {len(check['fails'])} FAIL, {len(check['unknown'])} unknown, {check['holds']} hold")
        for word, note in [(word, note) for word in ("fails", "unknown") for note in check[word]]:
            print("    " + ascii(f"{word} {note['subject']}: {note['what']}")[1:-1])
    print("Nothing in the bundle is wrong." if holds else "THE BUNDLE DOES NOT HOLD: see fails above.")
    sys.exit(not holds)

if __name__ == "__main__":
    main()
