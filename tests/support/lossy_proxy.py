"""A unix-socket proxy that loses one answer: what a broken connection does to a request that had arrived."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class LossyProxy:
    """Passes everything on, but cuts the connection instead of passing on the first answer after `marked` was seen."""

    def __init__(self, path: str, upstream: str, marked: bytes) -> None:
        self._upstream, self._marked = upstream, marked
        self.lost, self._stop = threading.Event(), threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(near,)))
            self._threads[-1].start()

    def _serve(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(self._upstream)
            for each in (near, far):
                each.settimeout(0.05)
            seen = False
            while not self._stop.is_set():
                request = _receive(near)
                if request is not None:
                    if not request:
                        return
                    seen = seen or self._marked in request
                    far.sendall(request)
                answer = _receive(far)
                if answer is not None:
                    if not answer or (seen and not self.lost.is_set()):
                        self.lost.set()
                        return
                    near.sendall(answer)

    def close(self) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


def _receive(source: socket.socket) -> bytes | None:
    try:
        return source.recv(65536)
    except TimeoutError:
        return None


@contextmanager
def lossy_proxy(path: str, upstream: str, marked: bytes) -> Iterator[LossyProxy]:
    proxy = LossyProxy(path, upstream, marked)
    try:
        yield proxy
    finally:
        proxy.close()
