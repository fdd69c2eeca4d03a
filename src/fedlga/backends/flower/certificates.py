"""Certificates and keys of a fleet: an authority of its own, the SuperLink's certificate, a key pair for each node."""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

VALID_DAYS = 825  # of the SuperLink's certificate: the most that clients accept
AUTHORITY_DAYS = 3650
AUTHORITY = "fedlga fleet authority"


def write_authority(folder: Path) -> None:
    """Write a new authority into ca/: from now on, only what it signs is believed."""
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(folder / "ca" / "ca.key", key)
    _sign_authority(folder, key)


def _sign_authority(folder: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the authority's own certificate. With the same key, what it signed before stays valid."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    certificate = (
        _build(AUTHORITY, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_key_usage(signs=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    (folder / "ca" / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_certificate(folder: Path, host: str) -> None:
    """Write a key and a certificate for the SuperLink and its proxy: for loopback and for `host`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority = load_key(folder / "ca" / "ca.key")
    if not _outlasts(folder / "ca" / "ca.crt", authority):
        _sign_authority(folder, authority)
    addresses: list[Any] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        addresses.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        try:
            addresses.append(x509.DNSName(host))
        except ValueError as error:
            raise BadInput(f"--host: got {host!r}; it takes a name or an address") from error
    key = ec.generate_private_key(ec.SECP256R1())  # the SuperLink signs with it in every handshake
    certificate = (
        _build("superlink", key.public_key(), VALID_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(addresses))), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .add_extension(_key_usage(signs=False), critical=True)
        .sign(authority, hashes.SHA384())
    )
    _write_private(folder / "superlink" / "superlink.key", key)
    public = certificate.public_bytes(serialization.Encoding.PEM)
    (folder / "superlink" / "superlink.crt").write_bytes(public)
    (folder / "superlink" / "ca.crt").write_bytes((folder / "ca" / "ca.crt").read_bytes())


def write_node_key(folder: Path) -> None:
    """Write the key pair by which the SuperLink recognises a node. It checks a signature of it in every request."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_secret(folder / "key", private)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "key.pub").write_bytes(public + b"\n")


def read_public_key(file: Path) -> bytes:
    """Return a node's public key as the SuperLink stores it; BadInput if the file holds none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_ssh_public_key(file.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{str(file)!r} holds no public key; fedlga fleet rekey makes a new pair") from error
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_credential(folder: Path) -> str:
    """Write a new secret that commands to the SuperLink have to show, and return it."""
    secret = secrets.token_urlsafe(32)
    write_secret(folder / "superlink" / "control.secret", secret.encode())
    return secret


def load_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return the authority's key; BadInput if it is not there."""
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(file)!r} is not the fleet's authority; renew needs it") from error
    return cast("ec.EllipticCurvePrivateKey", key)


def _outlasts(file: Path, authority: ec.EllipticCurvePrivateKey) -> bool:
    """Return whether the authority's own certificate is of this key, and valid as long as what is signed now.

    It is not, if it was lost, or if writing a new authority was interrupted.
    """
    from cryptography import x509

    try:
        own = x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError):
        return False
    lasts = own.not_valid_after_utc >= _now() + datetime.timedelta(days=VALID_DAYS)
    return lasts and own.public_key() == authority.public_key()


def find_expiry(file: Path) -> datetime.datetime:
    """Return until when a certificate is valid; BadInput if it cannot be read."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise BadInput(f"{str(file)!r} is no certificate; fedlga fleet renew writes a new one") from error


def _build(subject: str, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def make_name(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    return (
        x509.CertificateBuilder()
        .subject_name(make_name(subject))
        .issuer_name(make_name(AUTHORITY))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - datetime.timedelta(minutes=5))
        .not_valid_after(_now() + datetime.timedelta(days=days))
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_private(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives import serialization

    plain = serialization.NoEncryption()
    write_secret(file, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))


def write_secret(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on; it replaces an earlier one at once."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)
