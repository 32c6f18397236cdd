"""Services in processes of their own, so that they can be killed, and scripts that need an interpreter of their own."""

import subprocess
import sys
from pathlib import Path

_LISTENING, _DASHBOARD = "listening on ", "dashboard on "


class ServiceProcess:
    """`python -m replaysvc serve` on a store. Starts again on the port that it had before; a context manager that cleans up."""

    def __init__(self, data: Path, *options: str) -> None:
        self._data, self._options = data, options
        self._process: subprocess.Popen[str] | None = None
        self.port = 0
        self.dashboard = ""  # its address, with the option --admin-port
        self.printed = ""  # on standard output after the line that says where it listens; known once it has ended
        self.log = data.parent / f"{data.name}.log"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> "ServiceProcess":
        """Starts the process; returns when it listens."""
        assert self._process is None, "it runs already"
        command = [sys.executable, "-m", "replaysvc", "serve", "--data", str(self._data), "--port", str(self.port)]
        with self.log.open("a") as log:
            self._process = subprocess.Popen([*command, *self._options], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_LISTENING):
            status = self._end()
            raise AssertionError(f"the server ended with status {status}: {self.log.read_text()}")
        self.port = int(line.rpartition(":")[2])
        if "--admin-port" in self._options:
            line = self._process.stdout.readline()
            assert line.startswith(_DASHBOARD), f"expected where the dashboard is, found {line!r}"
            self.dashboard = line.removeprefix(_DASHBOARD).strip()
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def kill(self) -> None:
        """Ends the process with SIGKILL, as a crash would."""
        assert self._process is not None, "it does not run"
        self._process.kill()
        self._end()

    def signal(self, number: int) -> None:
        """Sends a signal and returns at once."""
        assert self._process is not None, "it does not run"
        self._process.send_signal(number)

    def wait(self) -> int:
        """Waits for the process to end; returns its exit status."""
        assert self._process is not None, "it does not run"
        self._process.wait()
        return self._end()

    def terminate(self) -> int:
        """Ends the process with SIGTERM, as an operator would; returns its exit status."""
        assert self._process is not None, "it does not run"
        self._process.terminate()
        return self.wait()

    def restart(self) -> None:
        """Kills the process and starts it again on the same store and port."""
        self.kill()
        self.start()

    def _end(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdout is not None
        self.printed = process.stdout.read()
        process.stdout.close()
        return process.wait()

    def __enter__(self) -> "ServiceProcess":
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()


def run_script(script: str, *arguments: str) -> str:
    """Runs a Python script in an interpreter of its own; returns what it printed. Fails if it fails."""
    command = [sys.executable, "-W", "error", "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
