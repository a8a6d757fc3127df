#!/usr/bin/env python3
"""Shows what a running gateway does: one chat request asked twice, its receipt and its proof.

  tools/ask.py --show URL --model NAME     exit 0 if everything held
  tools/ask.py --healthy URL               exit 0 if it serves generation
"""
import argparse
import http.client
import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import time
import urllib.parse

here = pathlib.Path(__file__).resolve().parent
loader = importlib.machinery.SourceFileLoader("check_receipt", str(here / "check-receipt"))
sys.dont_write_bytecode = True
check_receipt = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_receipt", loader))
loader.exec_module(check_receipt)


def connect(url):
    return http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)


def healthy(url):
    connection = connect(url)
    connection.request("GET", "/healthz")
    return connection.getresponse().status == 200


def stream(url, body, show):
    """(headers, bytes, seconds to the first text, seconds in all) of a streamed chat request."""
    connection = connect(url)
    begin = time.monotonic()
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"tools/ask.py: HTTP {response.status}: {response.read().decode(errors='replace')}")
    received, first = b"", None
    while line := response.readline():
        received += line
        if line.startswith(b"data: {"):
            choices = json.loads(line[6:])["choices"]
            text = choices[0]["delta"].get("content") if choices else None
            if text:
                first = first or time.monotonic() - begin
                if show:
                    print(text, end="", flush=True)
    return response.headers, received, first or 0, time.monotonic() - begin


def show(url, model):
    # A new request at each start, so that the first of the two is never in the store already.
    number = time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns() % 1_000_000:06d}"
    question = f"File {number}: in one sentence, why should two readings of a contract give the same answer?"
    body = json.dumps({"model": model, "temperature": 0, "max_tokens": 60, "stream": True,
                       "messages": [{"role": "user", "content": question}]})
    print(f"\n> {question}")
    headers, first_bytes, first_text, seconds = stream(url, body, True)
    request_id = headers["x-request-id"]
    print(f"\n\n  1st: {headers['Verbatim-Cache']:5} computed and streamed: first text after {first_text * 1000:.0f} ms,"
          f" all of it after {seconds * 1000:.0f} ms")
    again, second_bytes, _, seconds = stream(url, body, False)
    same = first_bytes == second_bytes
    print(f"  2nd: {again['Verbatim-Cache']:5} {'identical' if same else 'DIFFERENT'} bytes ({len(second_bytes)})"
          f" from the store after {seconds * 1000:.1f} ms")
    print(f"  fingerprint {headers['Verbatim-Fingerprint']}")

    log = check_receipt.get_json(f"{url}/verbatim/v1/log")
    keys = [(key["vkey"], key["from"]) for key in log["keys"]]
    for name, rid in (("1st", request_id), ("2nd", again["x-request-id"])):
        receipt = check_receipt.get_json(f"{url}/verbatim/v1/receipts/{rid}?wait=5")
        print(f"  receipt of the {name}: {check_receipt.check(receipt, rid, keys, second_bytes)}")
    print("    inclusion proof, signed root, commitment and the digest of these bytes checked without")
    print(f"    Verbatim's code: tools/check-receipt {url} {request_id}")
    expected = ("miss", "hit")
    if not same or (headers["Verbatim-Cache"], again["Verbatim-Cache"]) != expected:
        sys.exit("tools/ask.py: this is not what Verbatim promises; please report it")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="URL")
    parser.add_argument("--healthy", metavar="URL")
    parser.add_argument("--model")
    args = parser.parse_args()
    if args.healthy:
        try:
            return 0 if healthy(args.healthy) else 1
        except OSError:
            return 1
    try:
        show(args.show, args.model)
    except (OSError, KeyError, ValueError, check_receipt.Broken) as e:
        sys.exit(f"tools/ask.py: {type(e).__name__}: {e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
