"""Verifies, before a request's body is read, that the sender holds the key of a registered node."""

import datetime
from base64 import b64decode
from collections.abc import Callable

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from pa3dfl.deploy.access import Headers

_NAMES = [n.lower().encode() for n in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER)]


def key_known(state: Callable[[], LinkState], headers: Headers) -> bool:
    """Flower repeats this check after reading the body, and then also compares the key with the sender's."""
    given = [[value for name, value in headers if name == wanted] for wanted in _NAMES]
    if any(len(values) != 1 for values in given):
        return False
    key64, signature64, stamp = (values[0] for values in given)
    try:
        key, signature = b64decode(key64, validate=True), b64decode(signature64, validate=True)
        age = (now() - datetime.datetime.fromisoformat(stamp.decode("ascii"))).total_seconds()
        in_time = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        if not in_time or state().get_node_id_by_public_key(key) is None:
            return False
        return bool(verify_signature(bytes_to_public_key(key), stamp, signature))
    except (ValueError, TypeError, OverflowError, AttributeError):
        return False
