"""A certificate authority and a server certificate for tests, and the key pairs that identify nodes."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pa3dfl.deploy.secret import write_secret

YEARS = 5


def write_certificates(folder: Path, host: str) -> None:
    """Write `ca.crt`, `server.crt` and their keys, valid for `host` and for localhost."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = _key(), _key()
    issuer = _name("pa3dfl test authority")
    ca = _certificate(issuer, issuer, authority, authority, x509.BasicConstraints(ca=True, path_length=0), None)
    names = x509.SubjectAlternativeName([_host(h) for h in dict.fromkeys(("localhost", "127.0.0.1", host))])
    plain = x509.BasicConstraints(ca=False, path_length=None)
    own = _certificate(_name("pa3dfl server"), issuer, server, authority, plain, names)
    for name, certificate in (("ca", ca), ("server", own)):
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    for name, key in (("ca", authority), ("server", server)):
        pkcs8 = serialization.PrivateFormat.PKCS8
        write_secret(folder / f"{name}.key", _private(key, pkcs8))


def write_node_key(path: Path) -> bytes:
    """Write a private key in the format of ssh-keygen; return the public key."""
    key = _key()
    write_secret(path, _private(key, serialization.PrivateFormat.OpenSSH))
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(*openssh) + b"\n"


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    constraints: x509.BasicConstraints,
    names: x509.SubjectAlternativeName | None,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    authority = signer.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(constraints, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority), critical=False)
    )
    if constraints.ca:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA384())
