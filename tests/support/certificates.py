"""Certificates for the tests: an authority, and what it has signed, as files."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LIFETIME = datetime.timedelta(days=1)
SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Certificate:
    """A certificate and its key, in two PEM files."""

    def __init__(self, directory: Path, name: str) -> None:
        self.certificate = directory / f"{name}.crt"
        self.key = directory / f"{name}.key"
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._directory = directory

    def write(self, signed: x509.Certificate, password: bytes | None = None) -> None:
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        encryption = (
            serialization.BestAvailableEncryption(password)
            if password
            else serialization.NoEncryption()
        )
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        self.key.write_bytes(self.private.private_bytes(pem, form, encryption))


class Authority(Certificate):
    """A certificate authority of the tests' own."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory, name)
        self.write(self._sign(self, is_authority=True))

    def issue(
        self,
        name: str,
        addresses: Sequence[str] = ("127.0.0.1",),
        *,
        has_expired: bool = False,
        password: bytes | None = None,
    ) -> Certificate:
        """A certificate for these addresses. `password` encrypts its key."""
        issued = Certificate(self._directory, name)
        names = [x509.IPAddress(ip_address(address)) for address in addresses]
        issued.write(self._sign(issued, names, has_expired=has_expired), password)
        return issued

    def _sign(
        self,
        subject: Certificate,
        names: Sequence[x509.GeneralName] = (),
        *,
        is_authority: bool = False,
        has_expired: bool = False,
    ) -> x509.Certificate:
        begin = datetime.datetime.now(datetime.UTC) - (3 if has_expired else 1) * LIFETIME
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject.name)
            .issuer_name(self.name)
            .public_key(subject.private.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + 2 * LIFETIME)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            # Since Python 3.13 a certificate must name the keys that it is of and from.
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(subject.private.public_key()),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.private.public_key()),
                critical=False,
            )
        )
        if is_authority:
            builder = builder.add_extension(SIGNS_CERTIFICATES, critical=True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.private, hashes.SHA256())
