"""Certificates and their keys: creates them, writes them as PEM and reads them back.

Keys are NIST P-256 and certificates X.509 v3 (RFC 5280). It reads no clock, and takes randomness only from the
``CertificateMaker`` argument (apart from what a signature itself needs).
"""

import datetime as dt
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE: Final = dt.timedelta(days=3650)
LEAF_LIFE: Final = dt.timedelta(days=90)
CLOCK_SKEW: Final = dt.timedelta(minutes=5)
"""A certificate is valid from this long before its creation, because nodes' clocks differ (ours)."""
RENEWED_WITH_LEFT: Final = 1 / 3
"""A certificate is due for renewal when this share of its lifetime is left (ours)."""

_Kind = TypeVar("_Kind", bound=x509.ExtensionType)
_LONGEST_COMMON_NAME = 64  # ub-common-name, RFC 5280 appendix A.1
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
_USES: Final = {"server": (_SERVER,), "client": (_CLIENT,), "both": (_SERVER, _CLIENT)}


class CertificateMaker(Protocol):
    """The source of keys and serial numbers, which must not be predictable."""

    def private_key(self) -> ec.EllipticCurvePrivateKey:
        """A new key on P-256."""
        ...

    def serial_number(self) -> int:
        """A serial number that no other certificate has; positive, at most 159 bits."""
        ...


class RandomCertificateMaker:
    """The implementation outside tests: the system's random numbers."""

    def private_key(self) -> ec.EllipticCurvePrivateKey:
        """A new key on P-256."""
        return ec.generate_private_key(ec.SECP256R1())

    def serial_number(self) -> int:
        """A random serial number (RFC 5280, 4.1.2.2)."""
        return x509.random_serial_number()


class UnusableError(ValueError):
    """PEM data without a usable certificate or key; the text says why, and never includes the data."""


@dataclass(frozen=True, slots=True)
class LeafNames:
    """The names that a leaf certificate gives its holder."""

    common_name: str
    """For display only."""
    use: Literal["server", "client", "both"]
    dns: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority of one job."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def due(self, now: dt.datetime) -> str | None:
        """Why it is due for replacement at ``now``; None: it is not due."""
        return worn(self.certificate.not_valid_before_utc, self.certificate.not_valid_after_utc, now)

    def signed(self, certificate: x509.Certificate) -> bool:
        """Whether it has signed ``certificate``."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate that a process presents, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def is_for(self, names: LeafNames) -> bool:
        """Whether it gives its holder exactly these names and this use."""
        found = _extension(self.certificate, x509.SubjectAlternativeName)
        use = _extension(self.certificate, x509.ExtendedKeyUsage)
        return (
            found is not None
            and use is not None
            and set(use) == set(_USES[names.use])
            and set(found.get_values_for_type(x509.DNSName)) == set(names.dns)
            and set(found.get_values_for_type(x509.UniformResourceIdentifier)) == set(names.uris)
        )


def new_authority(common_name: str, now: dt.datetime, maker: CertificateMaker) -> Authority:
    """A new self-signed authority. Its subject has the first digits of its serial number, to tell authorities apart."""
    key, serial = maker.private_key(), maker.serial_number()
    name = _name(common_name, f" {serial:x}"[:9])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, key, serial, now, now + AUTHORITY_LIFE)
        .issuer_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def new_leaf(authority: Authority, names: LeafNames, now: dt.datetime, maker: CertificateMaker) -> Leaf:
    """A new certificate for ``names``."""
    key, serial = maker.private_key(), maker.serial_number()
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    general = [*map(x509.DNSName, names.dns), *map(x509.UniformResourceIdentifier, names.uris)]
    issuer_id = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    # An authority is replaced while more than this is left of its life.
    end = now + LEAF_LIFE
    builder = (
        _builder(_name(names.common_name), key, serial, now, end)
        .issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(_USES[names.use]), critical=False)
        .add_extension(x509.SubjectAlternativeName(general), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False)
    )
    return Leaf(builder.sign(authority.key, hashes.SHA256()), key)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """As PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """As unencrypted PKCS 8 in PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_authority(certificate: bytes, key: bytes) -> Authority:
    """An authority's certificate and its key.

    Raises:
        UnusableError: one of them cannot be read, they do not belong together, or it is no authority's.
    """
    found, own = _read_pair(certificate, key)
    if not _is_authority(found):
        raise UnusableError("contains a certificate that is not an authority's")
    return Authority(found, own)


def read_leaf(certificate: bytes, key: bytes) -> Leaf:
    """A certificate and its key.

    Raises:
        UnusableError: one of them cannot be read, or they do not belong together.
    """
    return Leaf(*_read_pair(certificate, key))


def _read_pair(certificate: bytes, key: bytes) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        found = x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise UnusableError("contains no readable certificate") from error
    try:
        own = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:  # TypeError: it is encrypted
        raise UnusableError("contains no readable key") from error
    if not isinstance(own, ec.EllipticCurvePrivateKey):
        raise UnusableError("contains a key that is not an elliptic-curve key")
    if found.public_key() != own.public_key():
        raise UnusableError("contains a key that does not match the certificate")
    return found, own


def worn(start: dt.datetime, end: dt.datetime, now: dt.datetime) -> str | None:
    """Why a certificate that is valid from ``start`` to ``end`` is due for replacement at ``now``; None: it is not."""
    if now > end:
        return f"expired at {end:%Y-%m-%dT%H:%M:%SZ}"
    if end - now <= (end - start) * RENEWED_WITH_LEFT:
        return f"expires at {end:%Y-%m-%dT%H:%M:%SZ}; at most a third of its lifetime is left"
    return None


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return constraints.value.ca


def _extension(certificate: x509.Certificate, kind: type[_Kind]) -> _Kind | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, ValueError):
        return None


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, serial: int, now: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str, suffix: str = "") -> x509.Name:
    text = common_name[: _LONGEST_COMMON_NAME - len(suffix)] + suffix
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
