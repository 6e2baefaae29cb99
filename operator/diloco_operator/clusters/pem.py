"""Certificates and keys as a kubeconfig holds them: base64 of PEM, checked before anything opens a connection with it.

Written again from what was read: text around the PEM blocks is dropped. Pure; no error contains what was read.
"""

import base64
import binascii
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)


class BadPemError(ValueError):
    """Text without usable PEM. The message continues ``FIELD: ``."""


def certificates_from(text: str) -> str:
    """The certificates in a field, as PEM.

    Raises:
        BadPemError: there is none, or one that cannot be read.
    """
    try:
        found = x509.load_pem_x509_certificates(_decoded(text))
    except (ValueError, UnsupportedAlgorithm):
        raise BadPemError("is not base64 text of PEM certificates") from None
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in found)


def key_from(text: str, certificates: str) -> str:
    """The key in a field, as PEM; ``certificates``: the PEM whose first one it must belong to.

    Raises:
        BadPemError: it cannot be read, is encrypted, or belongs to another certificate.
    """
    try:
        private = load_pem_private_key(_decoded(text), None)
    except TypeError:
        raise BadPemError("is an encrypted key, and nobody is there to ask for its passphrase") from None
    except (ValueError, UnsupportedAlgorithm):
        raise BadPemError("is not base64 text of a PEM key") from None
    spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    first = x509.load_pem_x509_certificate(certificates.encode())
    if private.public_key().public_bytes(*spki) != first.public_key().public_bytes(*spki):
        raise BadPemError("is not the key of client-certificate-data")
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def validity(pem: str) -> tuple[datetime, datetime]:
    """From when to when the first certificate in `pem` is valid."""
    certificate = x509.load_pem_x509_certificate(pem.encode())
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadPemError("is not base64 text") from None
