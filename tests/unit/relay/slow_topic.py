"""A fake topic that takes its time, and its clients: messages arrive one by one, late, or after their relay is dead."""

from __future__ import annotations

from collections.abc import Callable

from tests.contract.relay.fakes import FakePublisher, FakeTopic


class Topic(FakeTopic):
    """A topic whose broker may be slow, and may still have in its socket what a client has given up."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once: int | None = None
        """How many messages of a client arrive in one wait; None: all of them."""

    def resume(self) -> None:
        """See `FakeTopic.resume`: a broker that goes on is there."""
        self.breaks_after = None
        super().resume()

    def leave(self, client: FakePublisher) -> None:
        """Nothing of this client arrives any more."""
        if client in self.clients:
            self.clients.remove(client)


class Client(FakePublisher):
    """A publisher whose messages arrive one after the other."""

    def __init__(self, topic: Topic, sleep: Callable[[float], None]) -> None:
        super().__init__(topic, sleep=sleep)
        self._topic: Topic = topic

    def wait(self, timeout_seconds: float) -> bool:
        """See `Publisher.wait`."""
        if self._topic.at_once is None or self._topic.paused:
            return super().wait(timeout_seconds)
        self._check()
        rest = self._queue[self._topic.at_once :]
        self._queue = self._queue[: self._topic.at_once]
        self.deliver()
        self._queue = rest
        if rest:
            self._sleep(timeout_seconds)
        return not rest

    def close(self) -> None:
        """See `Publisher.close`: what a broker that hangs has in its socket arrives when it goes on."""
        if self._topic.paused and self._queue:
            remains = Client(self._topic, self._sleep)
            remains._queue = list(self._queue)
        super().close()

    def perish(self, arriving: int) -> None:
        """The process was killed: so many of the rows that were handed over arrive nevertheless, in order."""
        if self._topic.paused:
            return
        self._queue = self._queue[:arriving]
        if self._topic.down is None and self._topic.breaks_after is None:
            self.deliver()
        self._topic.leave(self)
