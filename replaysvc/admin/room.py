"""How much room there is for requests, in all and of each caller, so that nobody keeps the pages of others from being answered.

A request takes its place once all of it has come. Those whose bodies are on their way have places of their own, and the one
that has kept us waiting for longest gives way to a newcomer: whoever sends at once is hardly ever among them.
"""

import asyncio
from collections import Counter
from collections.abc import Hashable

from starlette.types import Message, Receive

from replaysvc.errors import UnavailableError

MOST_REQUESTS = 64  # at once; probes and what holds no data are let in beside them
MOST_OF_ONE = 32  # of one caller: the others' pages find room beside a flood
MOST_BODIES = 16  # on their way at once


class Room:
    """Who is in it. Lives in the event loop of its server."""

    def __init__(self) -> None:
        self._requests: Counter[Hashable] = Counter()
        self._bodies: dict[Body, None] = {}  # those on their way, the oldest first

    def enter(self, who: Hashable) -> None:
        """Takes a place. Raises UnavailableError: there is none."""
        if self._requests[who] >= MOST_OF_ONE:
            raise UnavailableError(f"{MOST_OF_ONE} requests of this caller are under way; come again")
        if self._requests.total() >= MOST_REQUESTS:
            raise UnavailableError(f"{MOST_REQUESTS} requests are under way; come again")
        self._requests[who] += 1

    def leave(self, who: Hashable) -> None:
        """Gives a place back."""
        self._requests[who] -= 1
        if not self._requests[who]:
            del self._requests[who]

    def begin(self, body: "Body") -> None:
        """Notes a body that is on its way. If there are too many, the oldest gives way, of whoever has most of them."""
        self._bodies[body] = None
        if len(self._bodies) > MOST_BODIES:
            ((most, _),) = Counter(one.who for one in self._bodies).most_common(1)
            next(one for one in self._bodies if one.who == most).give_way()

    def end(self, body: "Body") -> None:
        """A body is on its way no more."""
        self._bodies.pop(body, None)


class Body:
    """One request, as it comes. who: on whose account it goes."""

    def __init__(self, room: Room, who: Hashable, receive: Receive) -> None:
        self.who = who
        self._room, self._receive = room, receive
        self._gives_way = asyncio.Event()
        self._began = self._is_whole = self._is_in = False

    def enter(self) -> None:
        """Takes a place for a request that is whole. Raises UnavailableError: there is none."""
        self._room.enter(self.who)
        self._is_whole = self._is_in = True

    def leave(self) -> None:
        """Gives back what was taken; may be called again."""
        self._room.end(self)
        if self._is_in:
            self._is_in = False
            self._room.leave(self.who)

    def give_way(self) -> None:
        """Ends the wait for what has not come yet."""
        self._room.end(self)
        self._gives_way.set()

    async def receive(self) -> Message:
        """Returns the next part of the body. With the last one, the request takes its place.

        Raises:
          UnavailableError: there is none, or others came while this one kept us waiting.
        """
        if self._is_whole:
            return await self._receive()
        if not self._began:
            self._began = True
            self._room.begin(self)
        message = await self._next()
        if not message.get("more_body", False):  # or there will be no more
            self._room.end(self)
            self.enter()
        return message

    async def _next(self) -> Message:
        part, gives_way = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._gives_way.wait())
        try:
            await asyncio.wait((part, gives_way), return_when=asyncio.FIRST_COMPLETED)
            if not part.done():
                raise UnavailableError("body: expected sooner, now that others send theirs; come again")
            return part.result()
        finally:
            part.cancel()
            gives_way.cancel()
