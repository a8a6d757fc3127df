"""What the gateway's benchmarks share: nginx, the fixed upstream, a gateway in front of it, wrk.

Programs come from the build folder (--build, default build): verbatim, fixed_upstream and
gateway_load. nginx and wrk are Debian's (tools/install --bench).
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = "fixed"


def fail(what):
    print(f"{pathlib.Path(sys.argv[0]).name}: {what}", file=sys.stderr)
    sys.exit(2)


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", default=str(ROOT / "build"), help="where the programs are")
    parser.add_argument("--folder", default=None, help="where data goes (default: TMPDIR)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bench:
    """A temporary folder and the processes in it; all gone when the `with` ends."""

    def __init__(self, options):
        self.build = pathlib.Path(options.build)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="verbatim-bench-", dir=options.folder))
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def program(self, name):
        path = self.build / name
        if not path.is_file():
            fail(f"{path} is not there; build it: cmake --build {self.build} --target {name}")
        return str(path)

    def start(self, *command, **more):
        process = subprocess.Popen(command, text=True, **more)
        self.processes.append(process)
        return process

    def nginx(self, body_bytes):
        """nginx with a worker per core that serves a fixed body from memory; its URL."""
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        if not os.access(nginx, os.X_OK):
            fail("nginx is not there; install it: tools/install --bench")
        folder = self.folder / "nginx"
        (folder / "html").mkdir(parents=True)
        (folder / "html" / "body").write_bytes(b"x" * body_bytes)
        port = free_port()
        user = "user root;" if os.geteuid() == 0 else ""  # the folder is ours alone
        (folder / "nginx.conf").write_text(
            f"""
{user} daemon off; pid {folder}/pid; error_log stderr crit; worker_processes auto;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000; sendfile on; tcp_nodelay on;
  open_file_cache max=16; default_type application/json;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port} reuseport; root {folder}/html; }}
}}"""
        )
        self.start(nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder))
        self.wait_for(f"http://127.0.0.1:{port}/body")
        return f"http://127.0.0.1:{port}/body"

    def fixed_upstream(self, *flags):
        """Its port."""
        process = self.start(self.program("fixed_upstream"), *flags, stdout=subprocess.PIPE)
        return int(process.stdout.readline())

    def gateway(self, upstream_port, more=""):
        """verbatim serve in front of the upstream; (process, port)."""
        config = self.folder / "config.yaml"
        config.write_text(
            f"""
server:
  listen: 127.0.0.1:0
data: {self.folder}/data
upstreams:
  fixed:
    kind: openai
    url: http://127.0.0.1:{upstream_port}/v1
    models: [{MODEL}]
    credentials: {{from: none}}
{more}"""
        )
        errors = open(self.folder / "gateway.log", "w")
        process = self.start(
            self.program("verbatim"), "serve", "--config", str(config),
            stdout=subprocess.PIPE, stderr=errors,
        )
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if not found:
            fail("the gateway did not start: " + (self.folder / "gateway.log").read_text()[-2000:])
        return process, int(found.group(1))

    @staticmethod
    def wait_for(url):
        for _ in range(200):
            try:
                return urllib.request.urlopen(url, timeout=5).read()
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        fail(f"nothing answers at {url}")

    def wrk(self, url, connections, seconds, script=None):
        """Requests per second, and the 99th percentile of latency in microseconds."""
        wrk = shutil.which("wrk")
        if not wrk:
            fail("wrk is not there; install it: tools/install --bench")
        lua = self.folder / "wrk.lua"
        lua.write_text((script or "") + WRK_REPORT)
        threads = min(2, connections)
        out = subprocess.run(
            [wrk, "-t", str(threads), "-c", str(connections), "-d", f"{seconds}s", "-s", str(lua), url],
            capture_output=True, text=True, check=True,
        ).stdout
        found = re.search(r"RESULT (.*)", out)
        result = json.loads(found.group(1))
        if result["errors"]:
            fail(f"{result['errors']} errors from {url}:\n{out}")
        return result


# wrk's own report rounds; this does not.
WRK_REPORT = """
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"rate":%.1f,"p50":%d,"p99":%d,"errors":%d}\\n',
    summary.requests / summary.duration * 1e6, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def chat_request(prompt, **more):
    return {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": prompt}], **more}


def post(port, body):
    """(status, headers with lower-case names, body)."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body, separators=(",", ":")).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()


def metric(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        for line in response.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split(" ")[1])
    fail(f"no metric {name}")


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def memory_bytes(process):
    """Resident memory."""
    with open(f"/proc/{process.pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(process):
    with open(f"/proc/{process.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
