"""Certificates and keys as a kubeconfig holds them: base64 of PEM, checked before anything opens a connection with it.

Written anew from what was read: text around the PEM blocks is dropped. Pure; no error contains what was read.
"""

import base64
import binascii
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

CERTIFICATE_FIELD: Final = "client-certificate-data"
KEY_FIELD: Final = "client-key-data"


class NoPemError(ValueError):
    """A field without usable PEM. The text continues ``FIELD: ``; `part` is the field, of a key pair."""

    def __init__(self, message: str, part: str = "") -> None:
        super().__init__(message)
        self.part = part


def certificates_from(value: object) -> str:
    """The certificates in a field, as PEM.

    Raises:
        NoPemError: there is none, or one that cannot be read.
    """
    pem = _decoded(value, "")
    try:
        found = x509.load_pem_x509_certificates(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise NoPemError("is not base64 text of PEM certificates") from None
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in found)


def key_pair_from(certificate: object, key: object) -> tuple[str, str]:
    """A client's certificates and the key of the first one, as PEM.

    Raises:
        NoPemError: one of them cannot be read, the key is encrypted, or they do not belong together.
    """
    try:
        found = x509.load_pem_x509_certificates(_decoded(certificate, CERTIFICATE_FIELD))
    except (ValueError, UnsupportedAlgorithm):
        raise NoPemError("is not base64 text of PEM certificates", CERTIFICATE_FIELD) from None
    if key in (None, ""):
        raise NoPemError("is missing", KEY_FIELD)
    try:
        private = load_pem_private_key(_decoded(key, KEY_FIELD), None)
    except TypeError:
        raise NoPemError("is an encrypted key, and nobody is there to ask for its passphrase", KEY_FIELD) from None
    except (ValueError, UnsupportedAlgorithm):
        raise NoPemError("is not base64 text of a PEM key", KEY_FIELD) from None
    spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*spki) != found[0].public_key().public_bytes(*spki):
        raise NoPemError("is not the key of client-certificate-data", KEY_FIELD)
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in found), pem.decode()


def validity(pem: str) -> tuple[datetime, datetime]:
    """From when to when the first certificate in `pem` is valid."""
    certificate = x509.load_pem_x509_certificate(pem.encode())
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _decoded(value: object, part: str) -> bytes:
    if not isinstance(value, str):
        raise NoPemError("is not text", part)
    try:
        return base64.b64decode("".join(value.split()), validate=True)
    except (binascii.Error, ValueError):
        raise NoPemError("is not base64 text", part) from None
