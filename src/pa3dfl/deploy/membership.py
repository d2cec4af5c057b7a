"""Who may take part: the nodes whose public key is in the folder `keys`. Registers, replaces and revokes keys."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pa3dfl.core.errors import UserError
from pa3dfl.deploy.certificates import write_node_key
from pa3dfl.deploy.control_client import ControlClient, public_key, server_answers, wait_for_server
from pa3dfl.deploy.folder import DeploymentFolder


def register(deployment: DeploymentFolder, patience: float = 60.0) -> Iterator[str]:
    """Register the nodes whose key is in the folder `keys` and unregister all others."""
    with closing(ControlClient(deployment)) as control:
        wait_for_server(deployment, patience)
        wanted = key_names(deployment)
        known, gone = control.nodes()
        # First the new ones: a node whose key was replaced then keeps its client number.
        for key in sorted(wanted.keys() - known.keys(), key=wanted.__getitem__):
            if key in gone:
                yield f"{wanted[key]} cannot be registered: its key was unregistered, and Flower accepts no key twice"
                continue
            control.register(key)
            yield f"{wanted[key]} is registered"
        for key in known.keys() - wanted.keys():
            control.unregister(known[key])
            yield f"node {known[key]} is unregistered: its key is not in {deployment.keys}"


def revoke(deployment: DeploymentFolder, name: str) -> Iterator[str]:
    """Delete a node's public key and unregister it."""
    _public(deployment, name).unlink()
    yield from _tell(deployment)


def rotate(deployment: DeploymentFolder, name: str) -> Iterator[str]:
    """Give a node a new key, and unregister the old one."""
    public, folder = _public(deployment, name), deployment.nodes / name
    folder.mkdir(parents=True, exist_ok=True)
    public.write_bytes(write_node_key(folder / "key"))
    yield from _tell(deployment)
    yield f"the new private key of {name} is {folder / 'key'}: move it into the node's folder and restart the node"


def _public(deployment: DeploymentFolder, name: str) -> Path:
    if deployment.settings()["insecure"]:
        raise UserError(f"{deployment.path} was made with --insecure: its nodes have no keys")
    names = sorted(file.stem for file in deployment.keys.glob("*.pub"))
    if name not in names:
        raise UserError(f"there is no key of {name!r} in {deployment.keys}: its nodes are {', '.join(names) or 'none'}")
    return deployment.keys / f"{name}.pub"


def _tell(deployment: DeploymentFolder) -> Iterator[str]:
    if server_answers(deployment):
        yield from register(deployment)
    else:
        yield "the server is not running: the change takes effect when it starts"


def key_names(deployment: DeploymentFolder) -> dict[bytes, str]:
    """The nodes that are to be registered, by public key."""
    found = {}
    for file in sorted(deployment.keys.glob("*.pub")):
        try:
            found[public_key(file.read_bytes())] = file.stem
        except UserError as e:
            raise UserError(f"{file}: {e}") from None
    return found
