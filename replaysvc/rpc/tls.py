"""The server's certificate, its key, and the CA of its clients: read from files, and again when they change."""

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from replaysvc.access import is_readable_by_others
from replaysvc.errors import InvalidRequestError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files. With `client_ca`, only clients with a certificate that it signed get through the handshake."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> Any:
        """Returns gRPC's credentials of a server, which follow changes of the files: a connection gets what is there then.

        Raises:
          InvalidRequestError: a file cannot be read, or certificate and key do not fit.
        """
        current = _Current(self)
        if is_readable_by_others(self.key):
            log.warning("tls_key %s: others on this machine can read it; chmod 600 is better", self.key)
        return grpc.dynamic_ssl_server_credentials(current.configuration, current.changed, self.client_ca is not None)

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """Returns key, certificate and client CA, which fit. Raises InvalidRequestError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except OSError as error:  # an SSLError is one, too
            raise _unusable("tls_certificate and tls_key", f"{self.certificate}, {self.key}", error) from error
        client_ca = None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
                client_ca = self.client_ca.read_bytes()
            except OSError as error:
                raise _unusable("tls_client_ca", str(self.client_ca), error) from error
        try:
            return self.key.read_bytes(), self.certificate.read_bytes(), client_ca
        except OSError as error:
            raise _unusable("tls_certificate and tls_key", f"{self.certificate}, {self.key}", error) from error

    def state(self) -> tuple[tuple[int, ...], ...] | None:
        """Returns what changes when a file does; None when one is not there."""
        try:
            found = [os.stat(path) for path in (self.certificate, self.key, self.client_ca) if path is not None]
        except OSError:
            return None
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev) for status in found)


class _Current:
    """The configuration in force."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._state = files.state()
        self._complaint = ""
        self.configuration = self._read()

    def _read(self) -> Any:
        key, certificate, client_ca = self._files.read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)

    def changed(self) -> Any:
        """Returns a new configuration if the files have changed and fit each other, else None. gRPC calls it before each
        handshake, and wants no exception."""
        state = self._files.state()
        if state == self._state:
            return None
        try:
            configuration = self._read()
        except InvalidRequestError as error:  # perhaps half of an exchange of files: the next handshake looks again
            if str(error) != self._complaint:
                log.error("%s; the certificate that was read before stays in use", error)
            self._complaint = str(error)
            return None
        if self._files.state() != state:  # they changed while they were read
            return None
        self._state, self._complaint = state, ""
        log.info("tls_certificate %s: read again", self._files.certificate)
        return configuration


def _no_password() -> str:
    return ""  # a key with a password is refused: who would type it after a crash?


def _unusable(setting: str, path: str, error: OSError) -> InvalidRequestError:
    reason = (
        "they do not belong together, are no PEM, or ask for a password" if isinstance(error, ssl.SSLError) else error.strerror
    )
    return InvalidRequestError(f"setting {setting}: expected usable PEM files, found {path}: {reason}")
