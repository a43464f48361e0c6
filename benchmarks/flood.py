"""The program of a client that sends requests as fast as they are answered: `fairness.py` starts it.

Its arguments are the daemon's port, how many connections, and a key. It reads a JSON array of requests on a
line, [path, headers, body] each, begins, says `begun`, and at the end of its input says how those were
answered, by status. It is nice to the daemon, since an attacker computes on a machine of its own.
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


def post(
    connection: http.client.HTTPConnection, key: str, path: str, headers: Mapping[str, str], body: bytes
) -> int:
    """Send one request; the status of its answer, all of which was read."""
    known = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    connection.request("POST", path, body, {**known, **headers})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def main() -> None:
    """Run."""
    port, connections, key = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.nice(19)
    requests = [(path, headers, body.encode()) for path, headers, body in json.loads(sys.stdin.readline())]
    counts: Counter[str] = Counter()

    def run(number: int) -> None:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
            try:
                while True:
                    request = requests[number % len(requests)]
                    number += 1
                    counts[str(post(connection, key, *request))] += 1
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
