"""A service in a process of its own, for tests, scripts and benchmarks: started, killed, started again on the same port."""

import os
import signal
import subprocess
import sys
from pathlib import Path


class ServiceProcess:
    """`python -m replaysvc serve` on a store; a context manager that ends it."""

    def __init__(self, data: Path, *options: str) -> None:
        self._data, self._options = data, options
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, on the same port as before if there was one, and returns when it listens."""
        command = [sys.executable, "-m", "replaysvc", "serve", "--data", str(self._data), "--port", str(self.port)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with Path(f"{self._data}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self._options], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.process.wait()
            raise RuntimeError(f"the service did not start: {Path(f'{self._data}.log').read_text()}")
        self.port = int(line.rpartition(":")[2])

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, returns the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(30)
        self.process.stdout.close()
        return status

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.end(signal.SIGKILL)

    def __enter__(self) -> "ServiceProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()
        self.process.stdout.close()
