"""Access control of the SuperLink: an ASGI app around Flower's.

Flower serves nodes, its control interface and its executors on one port. Other machines reach only the paths that
nodes need, and no request body is read before the node's key is verified. Delete this file and its use in superlink.py
when Flower can bind these interfaces to separate addresses.
"""

import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from typing import Any

from starlette.concurrency import run_in_threadpool

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

FLEET = "/v1/fleet/"
FORWARDED_FOR = b"x-forwarded-for"
# Headers that proxies add. Names that begin with x-forwarded- count too.
FORWARDED = {
    b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"x-originating-ip", b"x-remote-ip",
    b"x-remote-addr", b"x-original-forwarded-for", b"true-client-ip", b"client-ip", b"cf-connecting-ip",
    b"fastly-client-ip", b"x-envoy-external-address", b"x-proxyuser-ip",
}  # fmt: skip


class AccessControl:
    def __init__(
        self,
        app: App,
        fleet: Collection[str],
        key_known: Callable[[Headers], bool] | None,
        proxies: Iterable[str] = (),
    ) -> None:
        """`fleet`: the paths that nodes use. `key_known`: whether headers carry a registered key and its signature;
        if None, other machines are not served. `proxies`: addresses whose X-Forwarded-For is trusted."""
        self.app, self.fleet, self.key_known = app, frozenset(fleet), key_known
        self.proxies = frozenset(address(p) for p in proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self.local(scope)):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif self.key_known is None or scope["method"] != "POST" or scope["path"] not in self.fleet:
            await refuse(send, 403, "not served to other machines")
        elif not await run_in_threadpool(self.key_known, scope["headers"]):
            await refuse(send, 401, "no registered key")
        else:
            await self.app(scope, receive, send)

    def local(self, scope: Scope) -> bool:
        """Whether the caller is on this machine.

        Its address must be a loopback address or the address on which it reached the server. The kernel drops packets
        from outside with such a sender, and a reply to it would not leave the machine.
        """
        peer, own = address_of(scope.get("client")), address_of(scope.get("server"))
        if not same_machine(peer, own):
            return False
        forwarding = [v for k, v in scope["headers"] if k in FORWARDED or k.startswith(b"x-forwarded-")]
        if peer not in self.proxies:
            return not forwarding
        chain = b",".join(v for k, v in scope["headers"] if k == FORWARDED_FOR).decode("latin-1").split(",")
        callers = [a for a in map(address, chain) if a not in self.proxies]
        return bool(callers) and same_machine(callers[-1], own)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address | None


def address(text: str) -> Address:
    try:
        found = ipaddress.ip_address(text.strip().partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def address_of(pair: Any) -> Address:
    return address(str(pair[0])) if pair else None


def same_machine(peer: Address, own: Address) -> bool:
    return peer is not None and (peer.is_loopback or peer == own)


async def refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    # The server does not read the rest of the request.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
