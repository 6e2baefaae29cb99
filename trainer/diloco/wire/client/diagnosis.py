"""Finds out why the syncer cannot be reached, with a connection of its own, one step after the other.

gRPC tries again and again, and reports all failures of a connection in one way. Here each step has its own line: the
name in DNS, the connection, the TLS handshake, whose certificate is shown, and what the other side thinks of ours.
Nothing that is found is trusted: it only becomes a line in the log.
"""

import socket
import ssl
from typing import TYPE_CHECKING, Final

from diloco.runtime.addresses import parse_address
from diloco.spec.names.syncer_name import job_of_syncer
from diloco.wire.errors import one_line
from diloco.wire.tls.files import TlsFileError, out_of_date
from diloco.wire.tls.tls import ClientTls

if TYPE_CHECKING:
    from cryptography import x509

STEP_SECONDS: Final = 5.0
"""Longest wait for a connection, for a handshake, and for the first bytes after it."""
_LONGEST_NAMES: Final = 120
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "PACKET_LENGTH_TOO_LONG"})


class _ProblemError(Exception):
    """A step failed; the text is the line."""


def diagnose(address: str, tls: ClientTls | None) -> str | None:
    """Try to connect to ``address`` as a learner with these certificates. Blocks; never raises.

    Returns what is wrong, as one line; None: nothing was found.
    """
    try:
        with _connected(address) as connection:
            if tls is not None:
                _check_own(tls)
                _check_name(address, tls, _shaken(address, tls, connection))
    except _ProblemError as problem:
        return one_line(str(problem))
    return None


def _connected(address: str) -> socket.socket:
    host, port = parse_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of more than 63 characters
        reason = getattr(error, "strerror", None) or error
        raise _ProblemError(f"{address}: the name {host} does not resolve ({reason})") from None
    failure: OSError = OSError("no address")
    for family, kind, protocol, _, place in found[:4]:
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(STEP_SECONDS)
        try:
            connection.connect(place)
        except OSError as error:
            connection.close()
            failure = error
        else:
            return connection
    if isinstance(failure, ConnectionRefusedError):
        raise _ProblemError(f"{address}: nothing listens there (connection refused)")
    if isinstance(failure, TimeoutError):
        raise _ProblemError(f"{address}: no answer within {STEP_SECONDS:g} s; check routes, firewalls and sourceRanges")
    raise _ProblemError(f"{address}: cannot be connected to ({failure.strerror or failure})")


def _check_own(tls: ClientTls) -> None:
    try:
        problem = out_of_date(tls.read())
    except (TlsFileError, ValueError) as error:
        raise _ProblemError(f"this learner's certificate cannot be used: {error}") from None
    if problem is not None:
        raise _ProblemError(f"this learner's own certificate cannot be used: {tls.certificate}: {problem}")


def _shaken(address: str, tls: ClientTls, connection: socket.socket) -> bytes:
    """The syncer's certificate (DER), which the job's authority has issued.

    Raises:
        _ProblemError: a side does not accept the other.
    """
    name = tls.server_name or parse_address(address)[0]
    try:
        with _context(tls).wrap_socket(connection, server_hostname=name) as secured:
            shown = secured.getpeercert(binary_form=True) or b""
            _hear(address, secured)
            return shown
    except ssl.SSLCertVerificationError as error:
        raise _ProblemError(_stranger(address, tls, name, error)) from None
    except TimeoutError:
        text = f"{address}: accepts the connection, but does not answer a TLS handshake within {STEP_SECONDS:g} s"
        raise _ProblemError(text) from None
    except ssl.SSLError as error:
        reason = error.reason or ""
        if reason in _NO_TLS:
            raise _ProblemError(f"{address}: what listens there speaks no TLS") from None
        if isinstance(error, ssl.SSLEOFError) or "UNRECOGNIZED_NAME" in reason:
            raise _ProblemError(_closed(address, name)) from None
        raise _ProblemError(f"{address}: the TLS handshake fails ({_words(reason or str(error))})") from None
    except OSError:
        raise _ProblemError(_closed(address, name)) from None


def _hear(address: str, secured: ssl.SSLSocket) -> None:
    """Read what the syncer sends first: in TLS 1.3 it rejects a learner's certificate only after the handshake.

    gRPC's servers send their settings at once, and end the connection without a word if they reject a certificate.
    """
    why = "it ends the connection"
    try:
        if secured.recv(1):
            return
    except TimeoutError:
        return  # nothing to learn here
    except ssl.SSLError as error:
        why = _words((error.reason or "").partition("_ALERT_")[2]) or why
    except OSError:
        pass
    raise _ProblemError(
        f"{address}: the syncer does not accept this learner's certificate ({why}): it is of another job, of an "
        "authority that was replaced, or has expired by the syncer's clock"
    )


def _stranger(address: str, tls: ClientTls, name: str, error: ssl.SSLCertVerificationError) -> str:
    """The line about a certificate that the job's authority has not issued, or that is not valid."""
    shown = _shown_to_anybody(address, name)
    names = () if shown is None else _dns_names(shown)
    ours = None if tls.server_name is None else job_of_syncer(tls.server_name)
    theirs = next((job for one in names if (job := job_of_syncer(one)) is not None), None)
    if theirs is not None and ours is not None and theirs != ours:
        return f"{address}: leads to the syncer of job {theirs}; this learner belongs to job {ours}"
    if error.verify_message and "expired" in error.verify_message:
        return f"{address}: the syncer's certificate has expired"
    if theirs is not None:
        return (
            f"{address}: leads to a syncer of job {theirs} with another authority: that of another cluster, or of a "
            "job that was deleted and made again"
        )
    whose = "a certificate" if shown is None else f"the certificate of {_some(names) or shown.subject.rfc4514_string()}"
    return (
        f"{address}: shows {whose}, which this job's authority has not issued ({error.verify_message}): something on "
        "the way ends TLS, or it is another server; lead TLS through unopened (layer 4, or passthrough by SNI)"
    )


def _shown_to_anybody(address: str, name: str) -> "x509.Certificate | None":
    """The certificate that is shown to a client that checks nothing and has none of its own."""
    from cryptography import x509  # noqa: PLC0415  # a tenth of a second, only where something is wrong

    try:
        with (
            _connected(address) as connection,
            _plain_context().wrap_socket(connection, server_hostname=name) as secured,
        ):
            return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
    except (_ProblemError, OSError, ValueError):
        return None


def _check_name(address: str, tls: ClientTls, shown: bytes) -> None:
    """Which name a certificate has that the job's authority has issued."""
    from cryptography import x509  # noqa: PLC0415  # likewise

    names = _dns_names(x509.load_der_x509_certificate(shown))
    if tls.server_name is not None and tls.server_name not in names:
        raise _ProblemError(
            f"{address}: the syncer's certificate is for {_some(names) or 'no name'}; use one for {tls.server_name}"
        )


def _context(tls: ClientTls) -> ssl.SSLContext:
    context = _plain_context()
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        read = tls.read()
        context.load_verify_locations(cadata=read.ca.decode("ascii", "replace"))
        context.load_cert_chain(tls.certificate, tls.key, password="")  # none, not a secret
    except (TlsFileError, OSError, ValueError) as error:
        raise _ProblemError(f"this learner's certificate cannot be used: {error}") from None
    return context


def _plain_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])  # gRPC ends a connection that does not ask for it
    return context


def _dns_names(certificate: "x509.Certificate") -> tuple[str, ...]:
    from cryptography import x509  # noqa: PLC0415  # likewise

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return (*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress)))


def _closed(address: str, name: str) -> str:
    return f"{address}: closes the connection in the TLS handshake; a proxy there may have no route for the name {name}"


def _some(names: tuple[str, ...]) -> str:
    text = ", ".join(names)
    return text if len(text) <= _LONGEST_NAMES else f"{text[:_LONGEST_NAMES]}..."


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
