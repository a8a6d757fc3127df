"""Who may ask, for what, how much, and what is kept of it: keys, tokens, roles, information
barriers, limits, budgets, redaction and TLS, seen from outside."""

import base64
import concurrent.futures
import hashlib
import hmac
import http.client
import json
import pathlib
import re
import ssl
import subprocess
import threading
import time

import pytest

import gateway_process
from scripted_gateway import ScriptedGateway, wait_for
from scripted_upstream import chat_answer, chat_events, chunk, fails, own_answer, streams, whole

CONFIG = """\
upstreams:
  vendor:
    url: {url}/v1
    models: ["m*", "small"]
    credentials: {{from: none}}
    retries: {{attempts: 1}}
    breaker: {{failures: 0}}
  anthropic:
    kind: anthropic
    url: {url}/v1
    models: ["claude-*"]
    credentials: {{from: none}}
    retries: {{attempts: 1}}
{more}"""


# --- Keys and tokens ------------------------------------------------------------------------------

KEYED = """\
server: {refusal_interval_ms: 1000, access_log: access.log}
access:
  jwt:
    issuers:
      - issuer: https://login.example.com
        audience: verbatim
        keys: keys/rsa.json
        tenant_claim: org
        groups_claim: realm.groups
        roles_claim: scope
        roles: {vb.use: client, vb.audit: auditor}
      - issuer: https://other.example.com
        audience: verbatim
        keys: keys/ec.pem
        tenant: acme
  trusted_header: {name: x-forwarded-user, tenant: acme, from: [127.0.0.0/8]}
tenants:
  acme: {}
  globex: {models: [small, "claude-*"]}
"""


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*arguments, input=None):
    done = subprocess.run(["openssl", *arguments], input=input, capture_output=True, check=True)
    return done.stdout


def ecdsa_raw(der):
    """r and s, 32 bytes each, of SEQUENCE { INTEGER r, INTEGER s }."""
    assert der[0] == 0x30 and der[2] == 2
    length = der[3]
    r = int.from_bytes(der[4 : 4 + length], "big")
    s = int.from_bytes(der[6 + length :], "big")
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


class Issuer:
    """Signs tokens with the openssl program."""

    def __init__(self, folder, kind, name):
        folder.mkdir(exist_ok=True)
        self.kind = kind
        self.private = folder / f"{name}.private.pem"
        self.public = folder / f"{name}.pem"
        if kind == "RS256":
            openssl("genrsa", "-out", str(self.private), "2048")
        else:
            openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out",
                    str(self.private))
        openssl("pkey", "-in", str(self.private), "-pubout", "-out", str(self.public))

    def jwk(self, kid):
        modulus = openssl("rsa", "-in", str(self.private), "-modulus", "-noout").decode()
        n = bytes.fromhex(modulus.strip().removeprefix("Modulus="))
        return {"kty": "RSA", "kid": kid, "alg": "RS256", "n": b64(n), "e": "AQAB"}

    def token(self, claims, **header):
        head = {"alg": self.kind, "typ": "JWT", **header}
        text = f"{b64(json.dumps(head).encode())}.{b64(json.dumps(claims).encode())}"
        signature = openssl("dgst", "-sha256", "-sign", str(self.private), input=text.encode())
        if self.kind == "ES256":
            signature = ecdsa_raw(signature)
        return f"{text}.{b64(signature)}"


def claims(**more):
    now = int(time.time())
    base = {
        "iss": "https://login.example.com",
        "aud": ["verbatim", "else"],
        "exp": now + 600,
        "iat": now,
        "sub": "alice",
        "org": "acme",
        "realm": {"groups": ["research"]},
        "scope": "openid vb.use",
    }
    base.update(more)
    return {k: v for k, v in base.items() if v is not None}


class Keyed:
    """A gateway with issuers and a key of an auditor."""

    def __init__(self, folder, upstream):
        folder.mkdir(parents=True, exist_ok=True)
        keys = folder / "keys"
        self.rsa = Issuer(keys, "RS256", "rsa")
        self.rsa2 = Issuer(keys, "RS256", "rsa2")
        self.ec = Issuer(keys, "ES256", "ec")
        self.set_jwks(keys, self.rsa.jwk("one"))
        self.keys = keys
        self.gateway = ScriptedGateway(folder, upstream, CONFIG, KEYED)
        (pathlib.Path(self.gateway.data)).mkdir(mode=0o700)
        self.secrets = []
        self.gateway.key = self.new("--tenant", "acme", "--subject", "root", "--roles",
                                    "client,operator,auditor")
        self.gateway.start()

    @staticmethod
    def set_jwks(folder, *keys):
        (folder / "rsa.json.new").write_text(json.dumps({"keys": keys}))
        (folder / "rsa.json.new").rename(folder / "rsa.json")

    def new(self, *arguments):
        code, out, err = gateway_process.run(
            "keys", "new-api", "--data", self.gateway.data, *arguments
        )
        assert code == 0, err
        assert out.strip().startswith("vbk_") and out.strip() not in err
        self.secrets.append(out.strip())
        return out.strip()

    def listed(self):
        code, out, err = gateway_process.run("keys", "list", "--data", self.gateway.data, "--json")
        assert code == 0, err
        return json.loads(out)["keys"]

    def made(self, *arguments):
        """A new key that counts."""
        key = self.new(*arguments)
        wait_for(lambda: self.gateway.chat("made", key=key).status != 401)
        return key


@pytest.fixture(scope="module")
def keyed(upstream, tmp_path_factory):
    keyed = Keyed(tmp_path_factory.mktemp("keyed"), upstream)
    yield keyed
    gateway = keyed.gateway
    if gateway.process.poll() is None:
        assert gateway.stop() == 0, gateway.errors[-10:]


def test_keys_are_made_and_revoked_while_the_server_runs(keyed):
    gateway = keyed.gateway
    before = len(gateway.leaves())
    key = keyed.new("--tenant", "acme", "--subject", "ci")
    wait_for(lambda: gateway.chat("keys", key=key).status == 200)
    (shown,) = [k for k in keyed.listed() if k["subject"] == "ci"]
    assert (shown["state"], shown["roles"]) == ("active", ["client"])
    code, _, err = gateway_process.run("keys", "revoke", "--data", gateway.data, shown["id"])
    assert code == 0, err
    wait_for(lambda: gateway.chat("keys", key=key).status == 401)

    def changes():  # a revoked key stops before its entry is there
        kinds = [leaf["kind"] for leaf in gateway.leaves(before)]
        return kinds if "key_revoked" in kinds else None

    kinds = wait_for(changes)
    assert kinds.count("key_made") == 1 and kinds.count("key_revoked") == 1
    assert kinds.index("key_made") < kinds.index("key_revoked")
    assert [k["state"] for k in keyed.listed() if k["subject"] == "ci"] == ["revoked"]
    code, _, err = gateway_process.run("keys", "revoke", "--data", gateway.data, "key_none")
    assert code == 2 and "key_none" in err


def test_nobody_gets_in_without_a_credential(keyed, upstream):
    gateway = keyed.gateway
    bad = {"authorization": "Bearer vbk_wrong"}
    none = {"authorization": ""}
    for headers in (bad, none, {"x-api-key": "nonsense"}, {"authorization": "Basic YTpi"}):
        answer = gateway.chat("nobody", headers=headers)
        assert answer.status == 401, headers
        assert answer.json["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert upstream.count("nobody") == 0
    body = {"model": "claude-x", "max_tokens": 1, "messages": []}
    answer = gateway.ask("POST", "/v1/messages", body, bad)
    assert answer.status == 401
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == "authentication_error"
    for path in ("/metrics", "/verbatim/v1/entries/0", "/verbatim/v1/log", "/v1/models",
                 "/v1/nowhere", "/log/checkpoint"):
        assert gateway.ask("GET", path, headers=bad).status == 401, path
    assert gateway.ask("GET", "/healthz", headers=none).status == 200


def test_refusals_of_nobody_are_counted_and_do_not_fill_the_log(keyed):
    gateway = keyed.gateway
    time.sleep(1.1)
    before = len(gateway.leaves())
    for _ in range(20):
        gateway.chat("flood", key="vbk_wrong")

    def counted():
        leaves = [leaf for leaf in gateway.leaves(before) if leaf["kind"] == "refused"]
        return leaves if sum(total(leaf) for leaf in leaves) >= 20 else None

    leaves = wait_for(counted)
    assert sum(total(leaf) for leaf in leaves) == 20
    assert len(leaves) <= 4


def total(leaf):
    return leaf["detail"]["count"]


def test_a_stale_key_beside_a_valid_one_does_no_harm(keyed):
    gateway = keyed.gateway
    for headers in (
        {"authorization": f"Bearer {gateway.key}", "x-api-key": "sk-ant-stale"},
        {"authorization": "Bearer sk-stale", "x-api-key": gateway.key},
        {"authorization": "Bearer sk-stale", "api-key": gateway.key},
        {"api-key": gateway.key},
        {"authorization": f"bearer {gateway.key}"},
    ):
        assert gateway.chat("stale", headers=headers).status == 200, headers


def test_roles(keyed):
    gateway = keyed.gateway
    keys = {role: keyed.new("--tenant", "acme", "--subject", role, "--roles", role)
            for role in ("client", "operator", "auditor")}
    wait_for(lambda: all(
        gateway.ask("GET", "/v1/models", headers=bearer(k)).status != 401 for k in keys.values()
    ))
    may = {
        "client": {"models", "receipt"},
        "operator": {"metrics", "reproducibility"},
        "auditor": {"entry", "payload", "proof", "checkpoint", "receipt", "reproducibility"},
    }
    everyone = {"log", "manifest"}  # the log's public key, and what answers' digests stand for
    mine = gateway.chat("roles", key=keys["client"])
    paths = {
        "metrics": "/metrics",
        "manifest": "/verbatim/v1/manifest",
        "reproducibility": "/verbatim/v1/reproducibility",
        "entry": "/verbatim/v1/entries/0",
        "payload": f"/verbatim/v1/entries/{mine.headers['verbatim-entry']}?payload=1",
        "proof": "/verbatim/v1/entries/0/proof",
        "log": "/verbatim/v1/log",
        "checkpoint": "/log/checkpoint",
        "models": "/v1/models",
        "receipt": f"/verbatim/v1/receipts/{mine.headers['x-request-id']}?wait=3",
    }
    for role, key in keys.items():
        for name, path in paths.items():
            answer = gateway.ask("GET", path, headers=bearer(key))
            allowed = name in may[role] | everyone
            assert answer.status == (200 if allowed else 403), (role, name, answer.body)
        answer = gateway.chat("roles", key=key)
        assert answer.status == (200 if role == "client" else 403), (role, answer.body)


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_whoever_sees_a_payload_leaves_an_entry(keyed):
    gateway = keyed.gateway
    answer = gateway.chat("viewed")
    n = int(answer.headers["verbatim-entry"])
    before = len(gateway.leaves())
    payload = gateway.entry(n, payload=True)
    assert b"viewed" in base64.b64decode(payload["request"])
    viewed = [leaf for leaf in gateway.leaves(before) if leaf["kind"] == "viewed"]
    assert [r["entry"] for leaf in viewed for r in leaf["references"]] == [n]


def test_tenants_share_nothing_and_see_nothing_of_each_other(keyed, upstream):
    gateway = keyed.gateway
    acme = keyed.made("--tenant", "acme", "--subject", "a")
    globex = keyed.made("--tenant", "globex", "--subject", "g")
    keys = [acme, globex, acme, globex]
    answers = [gateway.chat("tenants", key=key, model="small") for key in keys]
    assert [a.cache for a in answers] == ["miss", "miss", "hit", "hit"]
    assert upstream.count("tenants") == 2
    id = answers[0].headers["x-request-id"]
    path = f"/verbatim/v1/receipts/{id}?wait=3"
    assert gateway.ask("GET", path, headers=bearer(acme)).status == 200
    assert gateway.ask("GET", path, headers=bearer(globex)).status == 404


def test_models_of_others_look_absent(keyed, upstream):
    gateway = keyed.gateway
    globex = keyed.made("--tenant", "globex", "--subject", "g2")
    narrow = keyed.made("--tenant", "acme", "--subject", "n", "--model", "m2*")
    refused = gateway.chat("models", key=globex, model="m")
    absent = gateway.chat("models", key=globex, model="nothing")
    assert (refused.status, refused.json["error"]["code"]) == (404, "model_not_found")
    assert refused.json["error"]["message"].replace("`m`", "X") == absent.json["error"][
        "message"
    ].replace("`nothing`", "X")
    assert gateway.chat("models", key=globex, model="small").status == 200
    assert gateway.chat("models", key=narrow, model="m2").status == 200
    assert gateway.chat("models", key=narrow, model="m").status == 404
    listed = gateway.ask("GET", "/v1/models", headers=bearer(globex)).json["data"]
    assert [m["id"] for m in listed] == ["small"]
    assert gateway.ask("GET", "/v1/models", headers=bearer(narrow)).json["data"] == []
    assert [s.json["model"] for s in upstream.seen("models")] == ["small", "m2"]
    assert gateway.entry_of(refused)["leaf_json"]["kind"] == "refused"
    # A tenant that is not named is nobody.
    stranger = keyed.new("--tenant", "strangers", "--subject", "s")
    time.sleep(1.5)
    assert gateway.chat("models", key=stranger, model="small").status == 401


def test_tokens(keyed):
    gateway = keyed.gateway
    good = keyed.rsa.token(claims(), kid="one")
    answer = gateway.chat("jwt", key=good)
    assert answer.status == 200, answer.body
    record = gateway.entry_of(answer)["record"]
    assert (record["tenant"], record["subject"]) == ("acme", "alice")
    assert gateway.ask("GET", "/verbatim/v1/entries/0", headers=bearer(good)).status == 403
    auditor = keyed.rsa.token(claims(scope=["vb.audit"]), kid="one")
    assert gateway.ask("GET", "/verbatim/v1/entries/0", headers=bearer(auditor)).status == 200
    assert gateway.chat("jwt", key=auditor).status == 403
    other = claims(iss="https://other.example.com", aud="verbatim", org="globex")
    answer = gateway.chat("jwt-ec", key=keyed.ec.token(other))
    assert gateway.entry_of(answer)["record"]["tenant"] == "acme"

    now = int(time.time())
    head, body, signature = good.split(".")
    none = b64(b'{"alg":"none"}')
    public = keyed.rsa.public.read_bytes()
    text = f"{b64(json.dumps({'alg': 'HS256', 'kid': 'one'}).encode())}.{body}"
    shared = f"{text}.{b64(hmac.new(public, text.encode(), hashlib.sha256).digest())}"
    forged = b64(json.dumps(claims(sub="root")).encode())
    bad = {
        "expired": keyed.rsa.token(claims(exp=now - 120), kid="one"),
        "no exp": keyed.rsa.token(claims(exp=None), kid="one"),
        "not yet": keyed.rsa.token(claims(nbf=now + 300), kid="one"),
        "issued later": keyed.rsa.token(claims(iat=now + 300), kid="one"),
        "audience": keyed.rsa.token(claims(aud="someone"), kid="one"),
        "no audience": keyed.rsa.token(claims(aud=None), kid="one"),
        "issuer": keyed.rsa.token(claims(iss="https://evil.example.com"), kid="one"),
        "another's key": keyed.rsa2.token(claims(), kid="one"),
        "another issuer's key": keyed.ec.token(claims(), kid="one"),
        "none": f"{none}.{body}.",
        "shared secret": shared,
        "forged": f"{head}.{forged}.{signature}",
        "cut": good[:-4],
        "two parts": f"{head}.{body}",
        "no tenant": keyed.rsa.token(claims(org=None), kid="one"),
        "unknown tenant": keyed.rsa.token(claims(org="strangers"), kid="one"),
        "odd tenant": keyed.rsa.token(claims(org="a\nb"), kid="one"),
        "no subject": keyed.rsa.token(claims(sub=None), kid="one"),
        "exp text": keyed.rsa.token(claims(exp="tomorrow"), kid="one"),
    }
    for name, token in bad.items():
        answer = gateway.chat("jwt-bad", key=token)
        assert answer.status == 401, (name, answer.status, answer.body)
    # Nothing that it may do here: known, and forbidden.
    answer = gateway.chat("jwt-bad", key=keyed.rsa.token(claims(scope="openid"), kid="one"))
    assert answer.status in (401, 403)
    # Within a minute of the clock is fine.
    assert gateway.chat("jwt", key=keyed.rsa.token(claims(exp=now - 20), kid="one")).status == 200


def test_issuers_keys_rotate(keyed):
    gateway = keyed.gateway
    second = keyed.rsa2.token(claims(), kid="two")
    assert gateway.chat("rotate", key=second).status == 401
    keyed.set_jwks(keyed.keys, keyed.rsa2.jwk("two"))
    wait_for(lambda: gateway.chat("rotate", key=second).status == 200)
    assert gateway.chat("rotate", key=keyed.rsa.token(claims(), kid="one")).status == 401
    # What cannot be read changes nothing.
    (keyed.keys / "rsa.json").write_text("{")
    time.sleep(1.3)
    assert gateway.chat("rotate", key=second).status == 200
    keyed.set_jwks(keyed.keys, keyed.rsa.jwk("one"), keyed.rsa2.jwk("two"))
    wait_for(lambda: gateway.chat("rotate", key=keyed.rsa.token(claims(), kid="one")).status == 200)


def test_the_trusted_header(keyed):
    gateway = keyed.gateway
    answer = gateway.chat("trusted", headers={"x-forwarded-user": "bob"})
    assert answer.status == 200, answer.body
    record = gateway.entry_of(answer)["record"]
    assert (record["tenant"], record["subject"]) == ("acme", "bob")
    answer = gateway.ask("GET", "/verbatim/v1/entries/0", headers={"x-forwarded-user": "bob"})
    assert answer.status == 403


@pytest.mark.parametrize("name_space", ["tenant", "group", "subject", "shared"])
def test_information_barriers(keyed, name_space):
    gateway = keyed.gateway
    policy = f"policy: {{key: {{namespace: {name_space}}}}}\n"
    people = {
        "alice": claims(),
        "bob": claims(sub="bob"),
        "carol": claims(sub="carol", realm={"groups": ["trading"]}),
        "dave": claims(sub="dave", realm={"groups": ["research", "trading"]}),
        "erin": claims(sub="erin", realm={"groups": []}),
        "frank": claims(sub="frank", realm={}),
        "grace": claims(sub="alice", org="globex"),
    }
    want = {
        "tenant": {"bob", "carol", "dave", "erin", "frank"},
        "group": {"bob"},
        "subject": set(),
        "shared": set(people) - {"alice"},
    }[name_space]
    try:
        gateway.reload(KEYED + policy)
        hits = set()
        for name, who in people.items():
            token = keyed.rsa.token(who, kid="one")
            answer = gateway.chat(f"barrier-{name_space}", key=token, model="small")
            assert answer.status == 200
            if answer.cache == "hit":
                hits.add(name)
        assert hits == want
        token = keyed.rsa.token(people["alice"], kid="one")
        assert gateway.chat(f"barrier-{name_space}", key=token, model="small").cache == "hit"
    finally:
        gateway.reload(KEYED)


def test_a_reload_that_would_open_the_server_does_not(keyed):
    gateway = keyed.gateway
    gateway.reload("server: {refusal_interval_ms: 1000, access_log: access.log}\n")
    assert gateway.chat("open", key="vbk_wrong").status == 401
    assert gateway.chat("open").status == 200
    gateway.reload(KEYED)


def test_zz_no_key_is_anywhere(keyed):
    gateway = keyed.gateway
    assert gateway.stop() == 0
    files = [*pathlib.Path(gateway.data).rglob("*"), gateway.folder / "access.log"]
    assert (pathlib.Path(gateway.data) / "api-keys.json").stat().st_mode & 0o77 == 0
    secrets = [s.encode() for s in keyed.secrets]
    secrets += [s.removeprefix("vbk_").encode() for s in keyed.secrets]
    for file in files:
        if file.is_file():
            data = file.read_bytes()
            assert not [s for s in secrets if s in data], file
    errors = "\n".join(gateway.errors).encode()
    assert not [s for s in secrets if s in errors]
    # It does not open by losing its keys.
    gateway.start()
    (pathlib.Path(gateway.data) / "api-keys.json").unlink()
    time.sleep(1.5)
    assert gateway.chat("lost", key="anything").status == 401
    assert gateway.stop() == 0


# --- Limits and budgets ---------------------------------------------------------------------------

LIMITED = """\
access:
  keys:
    - {id: root, secret: "file:secrets/root", tenant: ops, roles: [client, operator, auditor]}
    - {id: rpm, secret: "file:secrets/rpm", tenant: a, limits: {requests_per_minute: 3}}
    - {id: rpm2, secret: "file:secrets/rpm2", tenant: a}
    - {id: tpm, secret: "file:secrets/tpm", tenant: b, limits: {tokens_per_minute: 300}}
    - {id: one, secret: "file:secrets/one", tenant: c, limits: {concurrent: 1}}
    - {id: spent, secret: "file:secrets/spent", tenant: d}
    - {id: team, secret: "file:secrets/team", tenant: e}
    - {id: team2, secret: "file:secrets/team2", tenant: e}
    - {id: many, secret: "file:secrets/many", tenant: g}
tenants:
  g: {budget: {tokens: 300, per: day}}
  d: {budget: {tokens: 200, per: month}}
  e: {limits: {requests_per_minute: 2}}
  "*": {}
"""
NAMES = ["root", "rpm", "rpm2", "tpm", "one", "spent", "team", "team2", "many"]


def secret(name):
    return f"secret-of-{name}-0123456789"


@pytest.fixture(scope="module")
def limited(upstream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("limited")
    (folder / "secrets").mkdir()
    for name in NAMES:
        (folder / "secrets" / name).write_text(secret(name))
    gateway = ScriptedGateway(folder, upstream, CONFIG, LIMITED)
    gateway.key = secret("root")
    gateway.start()
    yield gateway
    if gateway.process.poll() is None:
        assert gateway.stop() == 0, gateway.errors[-10:]


def test_requests_per_minute(limited, upstream):
    answers = [limited.chat("rpm", key=secret("rpm")) for _ in range(4)]
    assert [a.status for a in answers] == [200, 200, 200, 429]
    assert [a.headers["x-ratelimit-limit-requests"] for a in answers] == ["3"] * 4
    assert [a.headers["x-ratelimit-remaining-requests"] for a in answers] == ["2", "1", "0", "0"]
    assert re.fullmatch(r"\d.*s", answers[3].headers["x-ratelimit-reset-requests"])
    refused = answers[3]
    assert refused.json["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(refused.headers["retry-after"]) <= 21
    assert 0 < int(refused.headers["retry-after-ms"]) <= 20_500
    assert limited.entry_of(refused)["leaf_json"]["kind"] == "refused"
    # Another key of the same tenant is not concerned, and operators' own routes never.
    assert limited.chat("rpm", key=secret("rpm2")).cache == "hit"
    assert upstream.count("rpm") == 1


def test_a_tenants_limit_counts_all_its_keys(limited):
    keys = ["team", "team2", "team", "team2"]
    statuses = [limited.chat("team", key=secret(key)).status for key in keys]
    assert statuses == [200, 200, 429, 429]


def test_tokens_per_minute(limited, upstream):
    usage = {"prompt_tokens": 150, "completion_tokens": 100, "total_tokens": 250}
    upstream.script("tpm", whole({**chat_answer("x"), "usage": usage}))
    first = limited.chat("tpm", key=secret("tpm"), max_tokens=20)
    assert first.status == 200
    assert first.headers["x-ratelimit-limit-tokens"] == "300"
    # 50 are left: a hit takes none, another run does not fit.
    assert limited.chat("tpm", key=secret("tpm"), max_tokens=20).cache == "hit"
    second = limited.chat("tpm2", key=secret("tpm"), max_tokens=40)
    assert (second.status, second.json["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(second.headers["retry-after"]) > 0
    large = limited.chat("tpm3", key=secret("tpm"), max_tokens=4000)
    assert (large.status, large.headers["x-should-retry"]) == (429, "false")
    assert upstream.count("tpm2") == upstream.count("tpm3") == 0
    leaf = limited.entry_of(second)["leaf_json"]
    assert leaf["kind"] == "refused"


def test_one_at_a_time(limited, upstream):
    end = threading.Event()
    upstream.script("one", lambda h, s: (end.wait(20), own_answer(h, s)))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(limited.chat, "one", key=secret("one"))
        wait_for(lambda: upstream.count("one"))
        second = limited.chat("one-more", key=secret("one"))
        assert second.status == 429 and "retry-after" in second.headers
        end.set()
        assert running.result().status == 200
    assert limited.chat("one-more", key=secret("one")).status == 200


def test_whoever_hangs_up_gives_the_place_back(limited, upstream):
    for turn in range(4):
        word = f"gone{turn}"
        end = threading.Event()
        step = streams(chat_events("a", "b"), gate=end)
        upstream.script(word, step if turn % 2 else lambda h, s: (end.wait(20), own_answer(h, s)))
        body = {"model": "m", "messages": [{"role": "user", "content": word}], "temperature": 0}
        data = json.dumps({**body, "stream": bool(turn % 2)})
        connection = http.client.HTTPConnection("127.0.0.1", limited.port, timeout=20)
        headers = {**bearer(secret("one")), "content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", data, headers)
        wait_for(lambda: upstream.count(word))
        connection.close()
        wait_for(lambda: limited.chat("one-more", key=secret("one")).status == 200)
        end.set()


def test_many_at_once_do_not_overspend_a_budget(limited, upstream):
    usage = {"prompt_tokens": 10, "completion_tokens": 40, "total_tokens": 50}
    end = threading.Event()
    answer = whole({**chat_answer("x"), "usage": usage})
    for i in range(16):
        upstream.script(f"many{i}", lambda h, s: (end.wait(20), answer(h, s)))

    def ask(i):
        answered = limited.chat(f"many{i}", key=secret("many"), max_tokens=40)
        if answered.status != 200:
            refused.release()
        return answered

    # About 65 are reserved for each: four fit.
    refused = threading.Semaphore(0)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        running = [pool.submit(ask, i) for i in range(16)]
        for _ in range(12):
            assert refused.acquire(timeout=20)
        end.set()
        answers = [r.result() for r in running]
    assert sorted(a.status for a in answers) == [200] * 4 + [429] * 12
    assert {a.json["error"]["code"] for a in answers if a.status == 429} == {"insufficient_quota"}
    assert sum(upstream.count(f"many{i}") for i in range(16)) == 4


def test_a_budget_survives_a_restart_and_a_kill(limited, upstream):
    usage = {"prompt_tokens": 60, "completion_tokens": 20, "total_tokens": 80}
    for i in range(4):
        upstream.script(f"spent{i}", whole({**chat_answer("x"), "usage": usage}))
    for i in range(2):
        answer = limited.chat(f"spent{i}", key=secret("spent"), max_tokens=30)
        assert answer.status == 200, answer.body
    third = limited.chat("spent2", key=secret("spent"), max_tokens=30)
    assert (third.status, third.json["error"]["code"]) == (429, "insufficient_quota")
    assert limited.stop() == 0
    limited.start()
    assert limited.chat("spent2", key=secret("spent"), max_tokens=30).status == 429
    assert limited.chat("spent0", key=secret("spent"), max_tokens=30).cache == "hit"
    limited.kill()
    limited.start()
    again = limited.chat("spent3", key=secret("spent"), max_tokens=30)
    assert (again.status, again.json["error"]["code"]) == (429, "insufficient_quota")
    assert upstream.count("spent2") == upstream.count("spent3") == 0


# --- Redaction ------------------------------------------------------------------------------------

REDACTED = r"""
policy:
  redact:
    - {pattern: email}
    - {pattern: credit_card, replace: "[CARD]"}
    - {pattern: iban}
    - {name: case numbers, regex: 'C-\d{4}/\d+'}
    - {pointer: /user}
    - {pointer: /metadata/user_id}
"""
MAIL = "jane.doe@example.com"
CARD = "4111 1111 1111 1111"
IBAN = "DE89370400440532013000"
CASE = "C-2024/4711"
RAW = [MAIL, CARD, IBAN, CASE, "jane-the-user"]


@pytest.fixture(scope="module")
def redacting(upstream, tmp_path_factory):
    gateway = ScriptedGateway(tmp_path_factory.mktemp("redacting"), upstream, CONFIG, REDACTED)
    gateway.start()
    yield gateway
    assert gateway.stop() == 0, gateway.errors[-10:]


def kept_of(gateway):
    """Request and response bytes of all entries, and their records."""
    kept = []
    n = 0
    while entry := gateway.entry(n, payload=True):
        parts = ("request", "response", "trace")
        texts = [base64.b64decode(entry[part] or "").decode() for part in parts]
        kept.append((n, entry, texts, json.dumps(entry["record"])))
        n += 1
        if n > 400:
            break
    return kept


def test_nothing_raw_is_kept(redacting, upstream):
    gateway = redacting
    secrets = f"{MAIL} pays with {CARD} or {IBAN}, see {CASE}"
    upstream.script("redact-plain", whole(chat_answer(f"Dear {MAIL}: {CASE}")))
    first = gateway.chat(f"redact-plain {secrets}", user="jane-the-user")
    assert first.status == 200 and MAIL.encode() in first.body
    assert MAIL.encode() in upstream.seen("redact-plain")[0].body
    again = gateway.chat(f"redact-plain {secrets}", user="jane-the-user")
    assert again.cache == "miss", "what was redacted is never a hit"
    assert again.headers["verbatim-fingerprint"] == first.headers["verbatim-fingerprint"]
    other = gateway.chat("redact-plain nobody@example.com", user="jane-the-user")
    assert other.headers["verbatim-fingerprint"] != first.headers["verbatim-fingerprint"]

    # Only in the answer, and cut over the events of a stream.
    events = chat_events("ask jane.d", "oe@exam", "ple.com about C-20", "24/47", "11 now")
    upstream.script("redact-stream", streams(events))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for _ in range(2):
        answer = gateway.chat("redact-stream", **options)
        assert (answer.cache, answer.body) == ("miss", b"".join(events))

    # In tool calls, in parts, escaped, in errors, in what is no JSON, in other endpoints.
    call = {"id": "c", "type": "function",
            "function": {"name": "f", "arguments": json.dumps({"to": MAIL})}}
    upstream.script("redact-tool", whole(chat_answer(None, finish_reason="tool_calls",
                                                     tool_calls=[call])))
    assert gateway.chat("redact-tool").status == 200
    body = {"model": "m", "temperature": 0, "messages": [
        {"role": "user", "content": [{"type": "text", "text": f"redact-parts {IBAN}"}]}]}
    assert gateway.ask("POST", "/v1/chat/completions", body).status == 200
    escaped = json.dumps(body).replace("redact-parts", "redact-esc").replace(
        IBAN, MAIL.replace("@", "\\u0040"))
    assert gateway.ask("POST", "/v1/chat/completions", escaped.encode()).status == 200
    upstream.script("redact-err", whole({"error": {"message": f"who is {MAIL}?"}}, 400))
    assert MAIL.encode() in gateway.chat("redact-err").body
    upstream.script("redact-500", fails(500))
    assert gateway.chat(f"redact-500 {MAIL}").status == 500
    assert gateway.chat(f"redact-none {MAIL}", model="nothing").status == 404
    broken = f'{{"model":"m","messages":[{{"role":"user","content":"{MAIL}"'.encode()
    assert gateway.ask("POST", "/v1/chat/completions", broken).status == 400
    html = {"content-type": "text/html"}
    upstream.script("redact-html", whole(f"<p>{MAIL}".encode(), headers=html))
    gateway.chat("redact-html")
    cut = [chunk({"role": "assistant", "content": f"hello {MAIL} and"})]
    upstream.script("redact-cut", streams(cut, ends="reset"))
    gateway.chat("redact-cut", stream=True)
    message = {"model": "claude-x", "max_tokens": 5, "temperature": 0,
               "metadata": {"user_id": "jane-the-user"},
               "messages": [{"role": "user", "content": f"redact-claude {MAIL}"}]}
    assert gateway.ask("POST", "/v1/messages", message,
                       {"anthropic-version": "2023-06-01"}).status == 200
    completion = {"model": "m", "prompt": f"redact-prompt {CARD}", "temperature": 0}
    gateway.ask("POST", "/v1/completions", completion)

    kept = kept_of(gateway)
    kinds = {entry["leaf_json"]["kind"] for _, entry, _, _ in kept}
    assert {"generated", "intent", "failed", "refused"} <= kinds
    for n, entry, texts, record in kept:
        for raw in [*RAW, "jane.d", "\\u0040"]:
            where = [t for t in [*texts, record] if raw in t]
            assert not where, (n, entry["leaf_json"]["kind"], raw, where)
    plain = gateway.entry_of(first, payload=True)
    assert plain["record"]["extra"]["redacted"] is True
    kept_request = json.loads(base64.b64decode(plain["request"]))
    text = kept_request["messages"][0]["content"]
    assert text.startswith("redact-plain ") and "[CARD]" in text and " pays with " in text
    assert kept_request["user"] != "jane-the-user"


def test_what_matches_nothing_is_kept_whole_and_hits(redacting, upstream):
    first = redacting.chat("harmless")
    assert redacting.chat("harmless").cache == "hit"
    entry = redacting.entry_of(first, payload=True)
    assert base64.b64decode(entry["response"]) == first.body
    assert "redacted" not in entry["record"]["extra"]


def test_redaction_does_not_hide_that_requests_differ(redacting):
    answers = [redacting.chat(f"differs {who}@example.com") for who in ("a", "b")]
    prints = {a.headers["verbatim-fingerprint"] for a in answers}
    assert len(prints) == 2


# --- TLS ------------------------------------------------------------------------------------------

TLS = """\
server:
  tls:
    certificate: tls/server.pem
    key: tls/server.key
    client_ca: tls/ca.pem
    client_certificates: optional
    operator_certificates: true
access:
  keys:
    - {id: root, secret: "file:root", tenant: t, roles: [client, operator, auditor]}
"""


class Certificates:
    """A CA and what it signs, made with the openssl program."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.issue("ca", None)
        self.issue("stranger", None)

    def issue(self, name, ca="ca", subject=None):
        key, pem = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                   "-days", "2", "-subj", f"/CN={subject or name}", "-keyout", str(key),
                   "-out", str(pem), "-addext", "subjectAltName=DNS:localhost,DNS:upstream.test,IP:127.0.0.1"]
        if ca:
            request += ["-CA", str(self.folder / f"{ca}.pem"), "-CAkey",
                        str(self.folder / f"{ca}.key"), "-addext", "basicConstraints=CA:FALSE"]
        try:
            openssl(*request)
        except subprocess.CalledProcessError:  # req -CA is not in every version
            csr = self.folder / f"{name}.csr"
            openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-subj", f"/CN={subject or name}", "-keyout", str(key), "-out", str(csr),
                    "-addext", "subjectAltName=DNS:localhost,DNS:upstream.test,IP:127.0.0.1")
            openssl("x509", "-req", "-in", str(csr), "-CA", str(self.folder / f"{ca}.pem"),
                    "-CAkey", str(self.folder / f"{ca}.key"), "-CAcreateserial", "-days", "2",
                    "-copy_extensions", "copy", "-out", str(pem))
        return pem, key

    def context(self, client=None):
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if client:
            context.load_cert_chain(self.folder / f"{client}.pem", self.folder / f"{client}.key")
        return context


class TlsGateway(ScriptedGateway):
    def __init__(self, folder, upstream, certificates):
        super().__init__(folder, upstream, CONFIG, TLS)
        self.certificates = certificates

    def start(self):
        # Its line says https.
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.errors = []
        threading.Thread(target=self._read_errors, daemon=True).start()
        self.serves = self.process.stdout.readline()
        assert self.serves.startswith("verbatim serves https://"), (self.serves, self.errors)
        self.port = int(re.search(r":(\d+)", self.serves[len("verbatim serves https:") :]).group(1))
        return self

    def tls(self, method, path, client=None, body=None, headers=None, context=None):
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=20,
            context=context or self.certificates.context(client),
        )
        try:
            fields = {"authorization": "Bearer root-secret-0123456789", **(headers or {})}
            if body is not None:
                fields["content-type"] = "application/json"
            connection.request(method, path, json.dumps(body) if body else None, fields)
            response = connection.getresponse()
            answered = gateway_process.Answer(
                response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
            )
            answered.certificate = connection.sock.getpeercert() if connection.sock else None
            return answered
        finally:
            connection.close()


@pytest.fixture(scope="module")
def secure(upstream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure")
    certificates = Certificates(folder / "tls")
    certificates.issue("server")
    certificates.issue("operator")
    certificates.issue("foreign", "stranger")
    (folder / "root").write_text("root-secret-0123456789")
    gateway = TlsGateway(folder, upstream, certificates)
    gateway.start()
    yield gateway
    assert gateway.stop() == 0, gateway.errors[-10:]


BODY = {"model": "m", "messages": [{"role": "user", "content": "tls"}], "temperature": 0}


def test_tls_and_a_certificate_for_operators(secure):
    answers = [secure.tls("POST", "/v1/chat/completions", None, BODY) for _ in range(2)]
    assert [a.headers["verbatim-cache"] for a in answers] == ["miss", "hit"]
    for path in ("/metrics", "/verbatim/v1/entries/0", "/log/checkpoint"):
        refused = secure.tls("GET", path)
        assert refused.status == 403, path
        assert secure.tls("GET", path, "operator").status == 200, path
        # A certificate does not stand in for the key.
        wrong = {"authorization": "Bearer wrong"}
        assert secure.tls("GET", path, "operator", headers=wrong).status == 401, path
    n = int(answers[0].headers["verbatim-entry"])
    assert secure.tls("GET", f"/verbatim/v1/entries/{n}?payload=1", "operator").status == 200
    leaves, n = [], 0
    while (answer := secure.tls("GET", f"/verbatim/v1/entries/{n}", "operator")).status == 200:
        leaves.append(answer.json)
        n += 1
    viewed = [e for e in leaves if e["leaf_json"]["kind"] == "viewed"]
    assert viewed and re.fullmatch(r"root\+cert:[0-9a-f]{16}", viewed[-1]["record"]["key_id"])
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        secure.tls("GET", "/healthz", "foreign")


@pytest.mark.filterwarnings("ignore:.*TLSv1.*:DeprecationWarning")
def test_plain_http_and_old_versions_are_refused(secure):
    with pytest.raises((OSError, http.client.HTTPException)):
        http_connection = http.client.HTTPConnection("127.0.0.1", secure.port, timeout=10)
        http_connection.request("GET", "/healthz")
        if http_connection.getresponse().status >= 400:
            raise OSError("refused")
    old = secure.certificates.context()
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, OSError)):
        secure.tls("GET", "/healthz", context=old)


def test_certificates_are_renewed_and_bad_ones_change_nothing(secure):
    serial = lambda: secure.tls("GET", "/healthz").certificate["serialNumber"]
    first = serial()
    secure.certificates.issue("server")
    assert serial() == first
    secure.hang_up("was reloaded")
    second = serial()
    assert second != first
    pem = secure.certificates.folder / "server.pem"
    good = pem.read_text()
    pem.write_text("no certificate")
    secure.hang_up("server.pem")
    assert serial() == second
    pem.write_text(good)
    secure.certificates.issue("server2")
    (secure.certificates.folder / "server.key").write_text(
        (secure.certificates.folder / "server2.key").read_text()
    )
    secure.hang_up("was rejected")
    assert serial() == second
    outcomes, n = [], 0
    while (answer := secure.tls("GET", f"/verbatim/v1/entries/{n}", "operator")).status == 200:
        if answer.json["leaf_json"]["kind"] == "configuration_changed":
            outcomes.append(answer.json["leaf_json"]["outcome"])
        n += 1
    assert outcomes == ["ok", "ok", "rejected", "rejected"]
