"""`python -m replaysvc` and the `replaysvc` command."""

import os
import sys


def main() -> None:
    """Runs the command line; says what to install if only the thin client is."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else each failed handshake is logged, and whoever likes fills the log
    try:
        from replaysvc.top import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("replaysvc"):
            raise
        sys.exit(f"replaysvc: {error.name} is missing; the command line needs: pip install 'replaysvc[server]'")
    app(prog_name="replaysvc")


if __name__ == "__main__":
    main()
