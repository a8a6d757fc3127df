"""A witness and a time-stamping authority, both local; openssl makes their keys."""

import base64
import hashlib
import http.server
import subprocess
import threading
import time


def sha256(data):
    return hashlib.sha256(data).digest()


def openssl(*arguments, cwd=None):
    return subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True).stdout


class Service:
    """An HTTP server whose POSTs `answer(path, body)` answers: status, content type, body."""

    def __init__(self):
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                status, kind, data = service.answer(self.path, body)
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *arguments: None  # whoever asked has hung up
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


class Witness(Service):
    """c2sp.org/tlog-witness with one log, which it trusts at first sight, and Ed25519 by openssl.
    It does not check consistency proofs; that theirs are right is a test of the store's."""

    def __init__(self, folder, name):
        self.name, self.key = name, folder / f"{name}.pem"
        openssl("genpkey", "-algorithm", "ed25519", "-out", str(self.key))
        spki = openssl("pkey", "-in", str(self.key), "-pubout", "-outform", "DER")
        public = b"\x04" + spki[-32:]
        self.id = sha256(name.encode() + b"\n" + public)[:4]
        self.vkey = f"{name}+{self.id.hex()}+{base64.b64encode(public).decode()}"
        self.size = 0
        self.asked = []  # (old size, size)
        self.behaviour = "honest"
        self.release = threading.Event()
        super().__init__()

    def answer(self, path, body):
        assert path == "/w/add-checkpoint", path
        head, _, note = body.partition(b"\n\n")
        text = note.partition(b"\n\n")[0] + b"\n"
        old, size = int(head.split(b"\n")[0].removeprefix(b"old ")), int(text.split(b"\n")[1])
        self.asked.append((old, size))
        if self.behaviour == "slow":
            self.release.wait(20)
        if self.behaviour == "garbage":
            return 200, "text/plain", b"\x00\xff\n" * 5000
        if self.behaviour == "huge":
            return 409, "text/x.tlog.size", b"9" * 1_000_000
        if self.behaviour == "ahead":
            return 409, "text/x.tlog.size", b"%d\n" % (size + 1000)
        if old != self.size:
            return 409, "text/x.tlog.size", b"%d\n" % self.size
        self.size = size
        now = int(time.time())
        message = self.key.with_suffix(".message")
        message.write_bytes(b"cosignature/v1\ntime %d\n" % now + text)
        signature = openssl("pkeyutl", "-sign", "-rawin", "-inkey", str(self.key), "-in", str(message))
        line = base64.b64encode(self.id + now.to_bytes(8, "big") + signature).decode()
        return 200, "text/plain", f"\u2014 {self.name} {line}\n".encode()


AUTHORITY = """\
[req]
distinguished_name = dn
prompt = no
[dn]
CN = authority
[ca]
basicConstraints = critical,CA:TRUE
[tsa]
basicConstraints = CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = critical,timeStamping
[stamping]
serial = serial
signer_digest = sha256
default_policy = 1.2.3.4
digests = sha256
ess_cert_id_alg = sha256
"""


class Authority(Service):
    def __init__(self, folder):
        self.folder = folder
        (folder / "tsa.cnf").write_text(AUTHORITY)
        new = ("-config", "tsa.cnf", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        openssl("req", "-x509", *new, "-extensions", "ca", "-keyout", "ca.key", "-out", "ca.pem", cwd=folder)
        openssl("req", *new, "-keyout", "tsa.key", "-out", "tsa.csr", cwd=folder)
        openssl("x509", "-req", "-in", "tsa.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-extfile", "tsa.cnf", "-extensions", "tsa", "-out", "tsa.pem", cwd=folder)
        super().__init__()

    def answer(self, path, body):
        assert path == "/stamp", path
        (self.folder / "query").write_bytes(body)
        openssl("ts", "-reply", "-config", "tsa.cnf", "-section", "stamping", "-queryfile", "query",
                "-signer", "tsa.pem", "-inkey", "tsa.key", "-out", "response", cwd=self.folder)
        return 200, "application/timestamp-reply", (self.folder / "response").read_bytes()
