"""Run on another machine: `python outside_caller.py PLAN` sends requests to a server and prints the results as JSON."""

import json
import random
import ssl
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from fleet_requests import PROTOBUF, asked, private_key, signed


def client(plan: dict[str, Any], transport: str) -> httpx.Client:
    if transport == "plaintext":
        return httpx.Client(base_url=f"http://{plan['address']}", timeout=20)
    context = ssl.create_default_context(cafile=plan["ca" if transport == "tls" else "other_ca"])
    return httpx.Client(base_url=f"https://{plan['address']}", verify=context, timeout=20)


def credentials(plan: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {
        "nothing": PROTOBUF,
        "a wrong key": signed(ec.generate_private_key(ec.SECP384R1())),
        "another node's key": signed(private_key(Path(plan["key"]))),
        "the token": PROTOBUF | {"authorization": f"Bearer {plan['token']}"},
    }


def try_all(plan: dict[str, Any]) -> Counter[str]:
    """Every path with every credential, over every transport."""
    came: Counter[str] = Counter()
    for transport in ("tls", "another authority", "plaintext"):
        with client(plan, transport) as http:
            for method, path in plan["routes"]:
                for name, headers in credentials(plan).items():
                    content = asked(path, plan["victim"]).SerializeToString()
                    try:
                        status = str(http.request(method, path, headers=headers, content=content).status_code)
                    except httpx.TransportError:
                        status = "no connection"
                    came[
                        f"{transport} | {name} | {path.split('/')[2] if path.count('/') > 2 else path} | {status}"
                    ] += 1
    return came


def fuzz(plan: dict[str, Any]) -> Counter[str]:
    """Bytes of all kinds to the paths that nodes use: without a key, and as a registered node that has gone mad."""
    came: Counter[str] = Counter()
    paths: set[tuple[str, bool]] = set()
    rng, key = random.Random(plan["seed"]), private_key(Path(plan["key"]))
    headers = signed(key)
    with client(plan, "tls") as http:
        for i in range(plan["count"]):
            if i % 1000 == 0:
                headers = signed(key)
            turn, nth = divmod(i, len(plan["fleet"]))
            path, known = plan["fleet"][nth], turn % 2 == 1  # every path with and without a key
            content = bytearray(asked(path, plan["own"]).SerializeToString())
            for _ in range(rng.randrange(4)):
                at = rng.randrange(len(content) + 1)
                content[at : at + rng.randrange(3)] = rng.randbytes(rng.choice((0, 1, 4, 64, 4096)))
            given = headers if known else {**PROTOBUF, "flwr-public-key": rng.randbytes(20).hex()}
            if i % 7 == 0:
                given = given | {
                    "x-junk": rng.randbytes(200).hex(),
                    "content-type": rng.choice(("", "a/b", "text/html")),
                }
            try:
                status = str(http.post(path, headers=given, content=bytes(content)).status_code)
            except httpx.TransportError as e:
                status = type(e).__name__
            came[f"{'key' if known else 'no key'} | {status}"] += 1
            paths.add((path, known))
    assert len(paths) == 2 * len(plan["fleet"])
    return came


if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({"try_all": try_all, "fuzz": fuzz}[plan["what"]](plan)))
