"""What a client shows a server: a token, a certificate; and why a server that is there may not be reached by them."""

import re
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any

from replaysvc.errors import SpecMismatchError

_TOKEN = re.compile(r"[!-~]{1,1024}")
_PROBE_S = 1.0
_TOLD_NAMES = 8  # of the hosts in a certificate


class Token:
    """A token's secret, which no message, log or repr shows."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        if not isinstance(secret, str) or not _TOKEN.fullmatch(secret):
            what = f"{len(secret)} characters, not all of them so" if isinstance(secret, str) else type(secret).__name__
            raise SpecMismatchError("token", "1 to 1024 printable ASCII characters, no space or line end", what)
        self._secret = secret

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Returns the metadata that shows it to a server."""
        return (("authorization", f"Bearer {self._secret}"),)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Token, (self._secret,))

    def __repr__(self) -> str:
        return "Token(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Transport security: PEM bytes. `root_certificates` None trusts the system's; a key and chain make it mutual."""

    root_certificates: bytes | None = field(default=None, repr=False)
    private_key: bytes | None = field(default=None, repr=False)
    certificate_chain: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("root_certificates", "private_key", "certificate_chain"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, bytes) and b"-----BEGIN" in value):
                raise SpecMismatchError(f"tls.{name}", "the bytes of a PEM file", f"other {type(value).__name__}")
        if (self.private_key is None) != (self.certificate_chain is None):
            raise SpecMismatchError("tls", "private_key and certificate_chain together", "one of them")


def mismatch(address: str, tls: Tls | None, failure: str) -> str | None:
    """Returns why calls to a server cannot work however often they are made, None if it may just be away.

    `failure` is what gRPC said; it does not tell a server that speaks TLS from one that closes connections, so this looks.
    """
    if tls is not None and "CERTIFICATE_VERIFY_FAILED" in failure:
        return f"the certificate of the server at {address} is not signed by a CA in tls.root_certificates"
    if tls is not None and "Hostname Verification" in failure:
        return f"the certificate of the server at {address} is for another host{_names_of(address, tls)}"
    if tls is not None and "WRONG_VERSION_NUMBER" in failure:
        return f"the server at {address} does not speak TLS, expected it to since tls is given"
    if tls is not None and "create security handshaker" in failure:
        return "tls: expected PEM of certificates and a key that belong together, found others"
    wants_certificate = _handshake(address)
    if wants_certificate is not None and tls is None:
        return f"the server at {address} speaks TLS: connect with tls=Tls(root_certificates=...)"
    if wants_certificate and tls is not None:
        found = "none" if tls.certificate_chain is None else "one that it does not accept"
        return f"the server at {address} asks for a client certificate, found {found} in tls"
    return None


def _names_of(address: str, tls: Tls) -> str:
    """Returns what hosts the certificate of a server is for, in words; "" if that cannot be seen."""
    host, _, port = address.rpartition(":")
    roots = tls.root_certificates.decode(errors="replace") if tls.root_certificates is not None else None
    try:
        context = ssl.create_default_context(cadata=roots)  # without a trusted signer, Python tells nothing of it
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_S) as plain, context.wrap_socket(plain) as secure:
            found: dict[str, Any] = secure.getpeercert() or {}
            names = [f"{kind}:{name}" for kind, name in found.get("subjectAltName", ())]
    except (OSError, ValueError):
        return ""
    return f", found one for {', '.join(names[:_TOLD_NAMES])}" if names else ""


def _handshake(address: str) -> bool | None:
    """Makes a TLS handshake and nothing more. Returns None if there was none, else whether the server then closed the
    connection, as it does when it wants a certificate and got none."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent and nothing believed
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_S) as plain, context.wrap_socket(plain) as secure:
            try:
                return secure.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True
    except OSError:
        return None
