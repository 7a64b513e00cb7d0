"""Certificates for the tests: an authority, and what it has signed, as files."""

from __future__ import annotations

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
SIGNS_CERTIFICATES = x509.KeyUsage(
    *(False, False, False, False, False, True, True, False, False)  # it signs those and their lists
)
LOOPBACK = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])


class Certificate:
    """A certificate and its key, in two PEM files."""

    def __init__(self, directory: Path, name: str) -> None:
        self.certificate = directory / f"{name}.crt"
        self.key = directory / f"{name}.key"
        self.private = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def write(self, signed: x509.Certificate, password: bytes | None = None) -> None:
        none, best = serialization.NoEncryption(), serialization.BestAvailableEncryption
        encryption = best(password) if password else none
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        self.certificate.write_bytes(signed.public_bytes(pem))
        self.key.write_bytes(self.private.private_bytes(pem, form, encryption))


class Authority(Certificate):
    """A certificate authority of the tests' own."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory, name)
        self._directory = directory
        self.write(self._sign(self, SIGNS_CERTIFICATES))

    def issue(self, name: str, *, password: bytes | None = None) -> Certificate:
        """A certificate of this machine's loopback. `password` encrypts its key."""
        issued = Certificate(self._directory, name)
        issued.write(self._sign(issued, LOOPBACK), password)
        return issued

    def _sign(self, subject: Certificate, purpose: x509.ExtensionType) -> x509.Certificate:
        begin = datetime.datetime.now(datetime.UTC) - DAY
        key = subject.private.public_key()
        # Since Python 3.13 a certificate must name the keys that it is of and from.
        of = x509.SubjectKeyIdentifier.from_public_key(key)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.private.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject.name)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + 2 * DAY)
            .add_extension(x509.BasicConstraints(subject is self, None), critical=True)
            .add_extension(of, critical=False)
            .add_extension(signer, critical=False)
            .add_extension(purpose, critical=subject is self)
            .sign(self.private, hashes.SHA256())
        )
