"""A network that fails on demand: a TCP proxy that delays, throttles, cuts, freezes, swallows, and loses answers."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

_PIECE = 1 << 16
_REQUEST_BYTES = 1500  # what is larger is an append, and no call that only asks


class _Link:
    """One connection of a client, and its counterpart to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.swallow = False  # what comes from the client goes nowhere
        self.losing = False  # its answers are held back until it is cut

    def cut(self, *, reset: bool) -> None:
        """Ends both sides: with RST as when a machine is gone, or with FIN as when a process is."""
        for writer in (self.client, self.server):
            if reset:
                if not writer.transport.is_closing():  # else its socket is gone
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    """Forwards connections to a port of this machine. A context manager; its thread ends with it.

    delay_s: seconds that each piece takes longer. bytes_per_s: of each direction of each connection; None: no bound.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.accepted = self.lost_answers = 0
        self.port = 0
        self._links: set[_Link] = set()
        self._lose: list[tuple[float, bool]] = []  # how long answers are held back, and whether it ends with RST
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # -- what fails ---------------------------------------------------------------------------------------------------

    def cut(self, *, reset: bool = True) -> None:
        """Ends all connections; new ones may be made at once."""
        self._call(lambda: [link.cut(reset=reset) for link in list(self._links)])

    def freeze(self) -> None:
        """From now on nothing passes, and nobody is told: connections stay, and new ones are made that carry nothing."""
        self._call(self._flowing.clear)

    def thaw(self) -> None:
        """Lets everything pass again, also what gathered meanwhile."""
        self._call(self._flowing.set)

    def half_open(self) -> None:
        """Ends the server's side of all connections; the clients' stay open, are answered by nobody, and never told so."""

        def apply() -> None:
            for link in self._links:
                link.swallow = True
                link.server.transport.abort()

        self._call(apply)

    def lose_answer(self, hold_s: float, *, reset: bool = True) -> None:
        """Lets the next append through, but not its answer: the connection is cut `hold_s` after the append has passed."""
        self._call(lambda: self._lose.append((hold_s, reset)))

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _call(self, what: Callable[[], Any]) -> None:
        async def call() -> None:
            what()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(10)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop)
        self._server = listening.result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        self._call(self._flowing.set)
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            for link in list(self._links):
                link.cut(reset=True)
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # no server there now: neither is there one here
            writer.transport.abort()
            return
        link = _Link(writer, to_server)
        self._links.add(link)
        for pump in (self._pump(link, reader, to_server, answers=False), self._pump(link, from_server, writer, answers=True)):
            task = asyncio.get_running_loop().create_task(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await reader.read(_PIECE):
                await self._flowing.wait()
                if answers and link.losing:
                    continue
                if not answers and self._lose and len(data) >= _REQUEST_BYTES and not link.losing:
                    hold_s, reset = self._lose.pop(0)
                    link.losing = True
                    asyncio.get_running_loop().call_later(hold_s, self._lost, link, reset)
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                if link.swallow:
                    continue
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):  # the connection was cut, or the proxy ends
            pass
        if not link.swallow:  # one that ended ends the other, too
            link.cut(reset=False)
            self._links.discard(link)

    def _lost(self, link: _Link, reset: bool) -> None:
        self.lost_answers += 1
        link.cut(reset=reset)
