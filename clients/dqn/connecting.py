"""How a process of a run reaches the service: its address, and what a secured one wants to see."""

import argparse
from contextlib import AbstractContextManager
from pathlib import Path

import replay_client
from replay_client import Replay, Tls


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `connect` reads."""
    parser.add_argument("--address", required=True, help="of the replay service, HOST:PORT")
    parser.add_argument("--token-file", type=Path, help="file with the token to show the service")
    parser.add_argument("--tls-ca", type=Path, help="PEM file of the CA that signed its certificate")


def connect(options: argparse.Namespace) -> AbstractContextManager[Replay]:
    """Returns a connection to the service. Raises OSError for a file that cannot be read, ReplayError for bad content."""
    token = options.token_file.read_text(errors="replace").strip() if options.token_file else None
    tls = Tls(root_certificates=options.tls_ca.read_bytes()) if options.tls_ca else None
    return replay_client.connect(options.address, token=token, tls=tls)
