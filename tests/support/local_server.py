"""An HTTP server on this machine, in a thread of its own."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def serving_on_port(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Answer requests with `handler` while the block lasts, at this port of the loopback address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
