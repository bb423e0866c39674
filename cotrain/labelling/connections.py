"""Connections to the server: none stays open for ever because its client is slow, and there are only so many."""

import asyncio
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 20.0  # for the headers and the body of a request
ANSWER_SECONDS = 60.0  # for taking an answer from the server, or a part of it
MOST = 64  # connections; the smallest usual limit of descriptors is 256
AT_ONCE = 4  # connections that the event loop accepts at a time; it opens some times as many before it counts them
QUEUE = 128  # connections that the system keeps until they are accepted
RECEIVING = (h11.IDLE, h11.SEND_BODY)  # states of a client whose request is not complete


class Listener(socket.socket):
    """asyncio has one number for the connections to accept at a time and for the system's queue; here they differ."""

    def listen(self, backlog: int = QUEUE) -> None:
        super().listen(max(backlog, QUEUE))


class Connection(H11Protocol):
    """HTTP/1.1 for one client. Whoever has no token can open a connection too, so each has its deadlines."""

    _request: asyncio.TimerHandle | None = None  # ends a request that does not become complete
    _answer: asyncio.TimerHandle | None = None  # ends an answer that is not taken
    _since = 0.0
    _is_ended = False  # it still counts as a connection until the event loop has closed it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_request()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        if self._request is None:
            self._begin_request()
        super().data_received(data)
        if self.conn.their_state not in RECEIVING:
            _cancel(self._request)
            self._request = None

    def on_response_complete(self) -> None:
        self._expect_to_be_taken()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._expect_to_be_taken()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._expect_to_be_taken()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._request)
        _cancel(self._answer)
        super().connection_lost(exc)

    def _begin_request(self) -> None:
        self._since = self.loop.time()
        self._request = self.loop.call_later(REQUEST_SECONDS, self._end)

    def _expect_to_be_taken(self) -> None:
        """What is sent now must have left the server in time; every part that the client takes gives it new time."""
        _cancel(self._answer)
        self._answer = self.loop.call_later(ANSWER_SECONDS, self._end_if_not_taken)

    def _end_if_not_taken(self) -> None:
        if self.transport.get_write_buffer_size():
            self._end()

    @property
    def _is_waiting(self) -> bool:
        """Whether the client has to send something, and the server owes it nothing."""
        return self.conn.their_state in RECEIVING or self.cycle is None or self.cycle.response_complete

    def _make_room(self) -> None:
        """If there are too many, end the one that has waited longest: a browser sends its whole request at once."""
        others = [each for each in self.connections if isinstance(each, Connection) and not each._is_ended]
        if len(others) > MOST:
            waiting = (each for each in others if each._is_waiting)
            min(waiting, key=lambda each: each._since, default=self)._end()

    def _end(self) -> None:
        self._is_ended = True
        self.transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
