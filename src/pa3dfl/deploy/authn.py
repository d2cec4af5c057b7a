"""Authentication of Flower's control interface (starting runs, registering nodes) by the token of the deployment."""

import hmac
from collections.abc import Sequence

from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.superlink.auth_plugin import ControlAuthnPlugin

Metadata = Sequence[tuple[str, str | bytes]]


class TokenAuthn(ControlAuthnPlugin):
    def __init__(self, token: bytes) -> None:
        self.token = token

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        given = [v.encode() if isinstance(v, str) else v for k, v in metadata if k == ACCESS_TOKEN_KEY]
        if len(given) != 1 or not hmac.compare_digest(given[0], self.token):
            return False, None
        # All runs and nodes belong to one account, as in Flower without accounts.
        return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    # There is no login: the token is read from a file.
    def get_login_details(self) -> AccountAuthLoginDetails | None:
        return None

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        return None

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        return None, None
