"""A client program that sends requests as fast as they are answered, started by `fairness.py`.

Its arguments are the daemon's port, the number of connections, and a key. It reads a line with a JSON array
of requests, each [method, path, headers, body, whether with the key], starts, and prints `begun`. When its
input ends it prints the number of answers by status. It runs at low priority, since a real attacker uses
another machine.
"""

import http.client
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

SECONDS = 120.0


def ask(
    connection: http.client.HTTPConnection,
    key: str | None,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
) -> int:
    """Send one request, without a key if `key` is None; read the whole answer and return its status."""
    known = {"content-type": "application/json"} if body else {}
    known |= {"authorization": f"Bearer {key}"} if key is not None else {}
    connection.request(method, path, body or None, {**known, **headers})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def main() -> None:
    """Run the connections until the input ends."""
    port, connections, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.nice(19)
    requests = [
        (key if with_key else None, method, path, headers, body.encode())
        for method, path, headers, body, with_key in json.loads(sys.stdin.readline())
    ]
    counts: Counter[str] = Counter()

    def run(number: int) -> None:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            try:
                while True:
                    request = requests[number % len(requests)]
                    number += 1
                    counts[str(ask(connection, *request))] += 1
            except (OSError, http.client.HTTPException) as error:
                counts[type(error).__name__] += 1
            connection.close()

    for number in range(connections):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    print("begun", flush=True)
    sys.stdin.read()
    print(json.dumps(counts), flush=True)
    with suppress(OSError):
        sys.stdout.close()
    os._exit(0)


if __name__ == "__main__":
    main()
