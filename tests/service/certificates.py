"""Certificates for tests, made by openssl as SECURITY.md does."""

import subprocess
from pathlib import Path

from replay_client import Tls

_NEW = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]


def make_ca(folder: Path, name: str = "ca") -> Path:
    """Makes NAME.pem and NAME.key; returns the former."""
    _run([*_NEW, "-subj", f"/CN={name}", "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem"])
    return folder / f"{name}.pem"


def issue(ca: Path, name: str, *names: str) -> tuple[Path, Path]:
    """Makes NAME.pem and NAME.key beside the CA, for subject alternative names as "DNS:localhost"; returns both."""
    certificate, key = ca.with_name(f"{name}.pem"), ca.with_name(f"{name}.key")
    extensions = ["-addext", "basicConstraints=critical,CA:FALSE"]
    if names:
        extensions += ["-addext", f"subjectAltName={','.join(names)}"]
    signed = ["-CA", ca, "-CAkey", ca.with_suffix(".key"), "-subj", f"/CN={name}"]
    _run([*_NEW, *signed, *extensions, "-keyout", key, "-out", certificate])
    return certificate, key


def tls_of(ca: Path, client: tuple[Path, Path] | None = None) -> Tls:
    """Returns a client's options: the CA that it trusts, and its own certificate and key."""
    chain, key = (path.read_bytes() for path in client) if client is not None else (None, None)
    return Tls(root_certificates=ca.read_bytes(), certificate_chain=chain, private_key=key)


def _run(command: list[object]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
