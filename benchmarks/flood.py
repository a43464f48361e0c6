"""The program of a client that sends requests as fast as they are answered: `fairness.py` starts it.

Its arguments are the daemon's port, how many connections, and a key. It reads a JSON array of requests on a
line, [method, path, headers, body, whether with the key] each, begins, says `begun`, and at the end of its
input says how those were answered, by status. It is nice to the daemon, since an attacker computes on a
machine of its own.
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
    """Send one request, where `key` is None without one; the status of its answer, all of which was read."""
    known = {"content-type": "application/json"} if body else {}
    known |= {"authorization": f"Bearer {key}"} if key is not None else {}
    connection.request(method, path, body or None, {**known, **headers})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def main() -> None:
    """Run."""
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
