"""Makes a throw-away certificate authority for ``diloco run``, whose processes are all on one machine.

Jobs in a cluster have an authority of their own and must not use this one.
"""

import datetime as dt
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from diloco.wire.tls.tls import ClientTls, Identity, ServerTls

_ONE_DAY = dt.timedelta(days=1)


class Authority:
    """Signs certificates and writes them with their keys into a directory. Its own key is stored nowhere."""

    def __init__(self, directory: Path, name: str = "test authority", *, valid: dt.timedelta = _ONE_DAY) -> None:
        """Make the authority's own key and certificate; ``valid``: how long this and all its certificates are valid.

        Raises:
            OSError: the directory cannot be written.
        """
        self._directory = directory
        self._valid = valid
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        certificate = self._sign(self._name, self._key, x509.SubjectAlternativeName([]), constraints)
        self.certificate_path = directory / "ca.pem"
        self.certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, file_name: str = "server", name: str | None = None) -> ServerTls:
        """A certificate for a syncer of this name, or for one at localhost, 127.0.0.1 or ::1."""
        hosts = [x509.IPAddress(ipaddress.ip_address(host)) for host in ("127.0.0.1", "::1")]
        names: list[x509.GeneralName] = [x509.DNSName("localhost"), *hosts] if name is None else [x509.DNSName(name)]
        certificate, key = self._issue(file_name, names)
        return ServerTls(self.certificate_path, certificate, key)

    def learner(self, job: str, learner: str, file_name: str = "learner") -> ClientTls:
        """A certificate for a learner, ``region/pool/index``, or for every learner of a pool, ``region/pool``."""
        identity = Identity(job, learner)
        certificate, key = self._issue(file_name, [x509.UniformResourceIdentifier(identity.uri)])
        return ClientTls(self.certificate_path, certificate, key)

    def nobody(self, file_name: str = "nobody") -> ClientTls:
        """A valid certificate that names no learner."""
        certificate, key = self._issue(file_name, [x509.DNSName("nobody")])
        return ClientTls(self.certificate_path, certificate, key)

    def _issue(self, file_name: str, names: list[x509.GeneralName]) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=False, path_length=None)
        certificate = self._sign(_name(file_name), key, x509.SubjectAlternativeName(names), constraints)
        certificate_path = self._directory / f"{file_name}.pem"
        key_path = self._directory / f"{file_name}.key"
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        plain = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        # Created with mode 0600, so that no other user can ever read it, even if an earlier file could be read.
        key_path.unlink(missing_ok=True)
        with os.fdopen(os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(plain)
        return certificate_path, key_path

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: x509.SubjectAlternativeName,
        constraints: x509.BasicConstraints,
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _ONE_DAY)
            .not_valid_after(now + self._valid)
            .add_extension(constraints, critical=True)
        )
        if len(list(names)) > 0:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
