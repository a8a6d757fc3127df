"""Evidence bundles: taken apart, put together as a forger would, and given to both verifiers."""

import base64
import hashlib
import importlib.util
import io
import json
import sys
import zipfile

import gateway_process
from gateway_process import run

TOOL = gateway_process.ROOT / "tools" / "verify_bundle.py"
sys.dont_write_bytecode = True
_spec = importlib.util.spec_from_file_location("verify_bundle", TOOL)
verify_bundle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(verify_bundle)


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def pack(members):
    """The archive of these (name, bytes), as any zip library makes it with the format's values."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            archive.writestr(info, data)
    return out.getvalue()


def unpack(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def sealed(members, index=None):
    """The archive with bundle.json made to fit: what a forger would do who knows the format."""
    index = dict(index or json.loads(members["bundle.json"]))
    rest = {name: data for name, data in members.items() if name != "bundle.json"}
    index["files"] = {name: hashlib.sha256(data).hexdigest() for name, data in rest.items()}
    return pack([*rest.items(), ("bundle.json", canonical(index))])


def summary(checks):
    """What both verifiers must agree on: what holds, and of what else the subjects."""
    return [
        (
            check["check"],
            check["holds"],
            sorted(note["subject"] for note in check["fails"]),
            sorted(note["subject"] for note in check["unknown"]),
        )
        for check in checks
    ]


def verify_both(path, bundle, *arguments):
    """Both verifiers' one answer: whether it holds, and the checks by name. `path`: of a file to
    use."""
    path.write_bytes(bundle)
    code, out, err = run("verify", str(path), "--json", *arguments)
    assert code in (0, 1), err
    ours = json.loads(out)
    flags = dict(zip(arguments[::2], arguments[1::2]))
    key = flags.get("--key") and verify_bundle.parse_key(flags["--key"], 1)
    witness = flags.get("--witness")
    other = verify_bundle.Verifier(key, [verify_bundle.parse_key(witness, 4)] if witness else [])
    other.run(bundle)
    checks = list(other.checks.values())
    assert summary(ours["checks"]) == summary(checks), (ours["checks"], checks)
    holds = not any(check["fails"] for check in checks)
    assert ours["holds"] == holds == (code == 0)
    return holds, {check["check"]: check for check in ours["checks"]}


def flip(data, at=None):
    at = len(data) // 2 if at is None else at
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def edit_index(members, change):
    index = json.loads(members["bundle.json"])
    change(index)
    return sealed(members, index)


def without(members, *names):
    return {name: data for name, data in members.items() if name not in names}


def stranger(name, kind):
    """A verifier key that nobody signs with."""
    data = bytes([kind]) + bytes(32)
    key_id = hashlib.sha256(name.encode() + b"\n" + data).hexdigest()[:8]
    return f"{name}+{key_id}+{base64.b64encode(data).decode()}"
