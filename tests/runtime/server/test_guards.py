"""Who may call a daemon: names, origins, keys; and what every answer bears."""

import hashlib
import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from patience import PATIENCE
from serving import Running, running

from anespec.model import Model
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.keys import Key, KeyRing
from anespec.runtime.server.http.listening import AddressTakenError, Hosts, _has_ipv6, is_loopback, listen_on
from anespec.runtime.server.options import ServeOptions
from anespec.system.errors import StorageError, UsageError

FIRST, SECOND = "first-key-0123456789", "second-key-0123456789"


def _key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture(scope="module")
def guarded(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon with two keys that another origin's page may call."""
    path = _key_file(tmp_path_factory.mktemp("keys"), f"# ours\nfirst:{FIRST}\n\nsecond:{SECOND}\n")
    with running(
        {"chatty": model},
        KeyRing.of_file(path),
        api_key_file=path,
        allow_origin=("https://page.example",),
        allow_host=("Box.example",),
    ) as found:
        yield found


def _raw(running: Running, request: bytes) -> tuple[int, dict[str, str], bytes]:
    host, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
        client.sendall(request)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def test_a_key_is_needed_but_for_what_says_how_the_daemon_is(guarded: Running) -> None:
    for path in ("/metrics", "/props", "/v1/models"):
        refused = guarded.client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        for key in (FIRST, SECOND):
            assert guarded.client.get(path, headers={"authorization": f"Bearer {key}"}).status_code == 200
    for path in ("/livez", "/health", "/openapi.json"):
        assert guarded.client.get(path).status_code == 200


@pytest.mark.parametrize("value", ["", "Bearer", "Basic x", f"Basic {FIRST}", f"Bearer {FIRST}x", "é"])
def test_a_wrong_key_is_none(guarded: Running, value: str) -> None:
    answer = guarded.client.get("/v1/models", headers={"authorization": value.encode()})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


def test_without_keys_everybody_may_come_in() -> None:
    ring = KeyRing()
    assert not ring.needed
    assert ring.caller("Bearer whatever").tenant == ""


def test_a_ring_takes_anothers_keys(tmp_path: Path) -> None:
    ring = KeyRing.of_file(_key_file(tmp_path, f"first:{FIRST}\nsecond:{SECOND}"))
    assert [ring.caller(f"bearer {key}").name for key in (FIRST, SECOND)] == ["first", "second"]
    ring.take(KeyRing.of_file(_key_file(tmp_path, f"third:{FIRST}")))
    assert ring.caller(f"Bearer {FIRST}").name == "third"
    with pytest.raises(ApiError):
        ring.caller(f"Bearer {SECOND}")


def test_who_has_a_name_next_is_another_owner() -> None:
    first, next_one = (Key("bob", hashlib.sha256(secret.encode()).digest()) for secret in (FIRST, SECOND))
    assert first.tenant == Key("bob", first.digest).tenant
    assert first.tenant.split()[0] == next_one.tenant.split()[0] == "bob"
    assert len({first.tenant, next_one.tenant, Key("eve", first.digest).tenant}) == 3
    assert FIRST not in first.tenant and hashlib.sha256(FIRST.encode()).hexdigest()[:8] not in first.tenant


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        (f"first:{FIRST}", 0o640, "chmod 600"),
        (f"first:{FIRST}", 0o604, "chmod 600"),
        ("", 0o600, "contains no key"),
        ("first:short", 0o600, "line 1"),
        (f"{FIRST}", 0o600, "line 1"),
        (f"first key:{FIRST}", 0o600, "line 1"),
        ("first:a key with spaces in it", 0o600, "line 1"),
        (f"first:{FIRST}\nfirst:{SECOND}", 0o600, "the same name"),
        (f"first:{FIRST}\nsecond:{FIRST}", 0o600, "the same key"),
    ],
)
def test_a_file_of_keys_that_keeps_nobody_out_is_refused(
    tmp_path: Path, text: str, mode: int, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        KeyRing.of_file(_key_file(tmp_path, text, mode))
    assert FIRST not in str(caught.value)


def test_what_is_no_file_of_keys_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(UsageError, match="is not a file"):
        KeyRing.of_file(tmp_path / "pipe")
    with pytest.raises(StorageError, match="cannot be read"):
        KeyRing.of_file(tmp_path / "none")
    path = _key_file(tmp_path, f"first:{FIRST}")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not text"):
        KeyRing.of_file(path)


def test_no_log_holds_a_key(guarded: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(1):
        guarded.client.get("/v1/models", headers={"authorization": f"Bearer {FIRST}"})
        guarded.client.get("/v1/models", headers={"authorization": f"Bearer {FIRST}x"})
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith("httpcore")]
    assert not any(FIRST in line for line in ours)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_that_others_reach_needs_a_key(host: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--api-key-file"):
        listen_on(ServeOptions(host=host, port=0))
    path = _key_file(tmp_path, f"first:{FIRST}")
    try:
        (found,) = listen_on(ServeOptions(host=host, port=0, api_key_file=path))
    except StorageError:
        pytest.skip("this machine has no such addresses")
    found.close()


def test_a_name_is_judged_by_what_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("0.0.0.0", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UsageError, match=r"box\.example can be reached from other machines"):
        listen_on(ServeOptions(host="box.example", port=0))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 300, "a\x00b"])
def test_a_name_that_stands_for_nothing_is_one_sentence(host: str) -> None:
    with pytest.raises(StorageError, match="cannot listen there"):
        listen_on(ServeOptions(host=host, port=0))


def test_an_address_in_use_is_one_sentence() -> None:
    message = "another program listens there; choose another --port"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match=message):
        listen_on(ServeOptions(port=taken.getsockname()[1]))


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="needs the address ::1")


@needs_ipv6
@pytest.mark.parametrize("host", ["localhost", "LocalHost"])
def test_localhost_is_both_of_its_addresses(host: str) -> None:
    first, second = listen_on(ServeOptions(host=host, port=0))
    with first, second:
        port = first.getsockname()[1]
        assert (first.getsockname()[0], second.getsockname()[:2]) == ("127.0.0.1", ("::1", port))
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), PATIENCE).close()


@needs_ipv6
def test_localhost_is_taken_if_either_address_is() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressTakenError) as error:
            listen_on(ServeOptions(host="localhost", port=port))
        assert error.value.address == f"http://[::1]:{port}"
        socket.create_server(("127.0.0.1", port)).close()


def test_localhost_is_one_address_on_a_machine_without_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anespec.runtime.server.http.listening._has_ipv6", lambda: False)
    (found,) = listen_on(ServeOptions(host="localhost", port=0))
    with found:
        assert found.getsockname()[0] == "127.0.0.1"


@needs_ipv6
def test_a_daemon_at_localhost_is_served_at_both(model: Model) -> None:
    with running({"chatty": model}, host="localhost") as found:
        port = found.url.rsplit(":", 1)[1]
        for address in ("127.0.0.1", "[::1]"):
            assert httpx.get(f"http://{address}:{port}/livez").status_code == 200


def test_loopback_is_what_only_this_machine_reaches() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost", ""]))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:8080", "box.example:1"])
def test_a_loopback_daemon_goes_by_its_own_names(host: str) -> None:
    assert host in Hosts.of(ServeOptions(allow_host=("Box.example",)))


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "10.0.0.1", "u@localhost", "localhost/x", "[::1"]
)
def test_and_by_no_others(host: str) -> None:
    assert host not in Hosts.of(ServeOptions(allow_host=("Box.example",)))


def test_a_daemon_that_others_reach_goes_by_any_address_and_no_strange_name(tmp_path: Path) -> None:
    found = Hosts.of(ServeOptions(host="0.0.0.0"))
    for host in ("192.168.1.7:8080", "[fe80::1]:8080", socket.gethostname(), "localhost"):
        assert host in found
    for host in ("evil.example", "192.168.1.7.evil.example", "", "1.2.3"):
        assert host not in found
    assert "whatever" in Hosts.of(ServeOptions(unix=tmp_path / "socket"))


def test_a_name_that_was_bound_to_this_machine_is_refused(served: Running) -> None:
    answer = served.client.get("/v1/models", headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_refused")


def test_a_target_with_a_host_of_its_own_is_judged_by_that(served: Running) -> None:
    status, _, _ = _raw(served, b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status == 403
    status, _, _ = _raw(served, b"GET http://localhost/health HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
    ],
)
def test_two_hosts_or_none_are_no_request(served: Running, head: bytes) -> None:
    assert _raw(served, head)[0] == 400


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://", "//", "http://[", ""])
def test_pages_of_other_origins_are_refused(guarded: Running, origin: str) -> None:
    answer = guarded.client.get("/health", headers={"origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_of_the_daemon_itself_may_call(served: Running) -> None:
    answer = served.client.get("/health", headers={"origin": served.url})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8080", "http://LOCALHOST:8080", 200),
        ("localhost", "http://localhost:80", 200),
        ("localhost:80", "http://localhost", 200),
        ("[::1]:8080", "http://[::1]:8080", 200),
        ("localhost:8080", "https://localhost:8080", 403),
        ("localhost", "https://localhost", 403),
        ("localhost:8080", "ftp://localhost:8080", 403),
        ("localhost:8080", "//localhost:8080", 403),
        ("localhost:8080", "http://localhost", 403),
        ("localhost:8080", "http://localhost:8081", 403),
        ("localhost:8080", "http://user@localhost:8080", 403),
        ("localhost:8080", "http://localhost:8080/page", 403),
        ("localhost:8080", "http://localhost:x", 403),
    ],
)
def test_an_origin_is_compared_with_its_scheme_and_port(
    served: Running, host: str, origin: str, status: int
) -> None:
    answer = served.client.get("/health", headers={"host": host, "origin": origin})
    assert answer.status_code == status


def test_an_origin_that_may_call_is_told_so(guarded: Running) -> None:
    asks = {
        "origin": "https://page.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, X-Stainless-OS, anthropic-version, x-other",
    }
    answer = guarded.client.options("/v1/chat/completions", headers=asks)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "content-type", "x-stainless-os", "x-api-key", "anthropic-version"} <= set(
        allowed
    )
    assert "x-other" not in allowed
    assert int(answer.headers["access-control-max-age"]) > 0
    # The key is asked for with the request itself, and a refusal can be read by the page.
    answer = guarded.client.get("/v1/models", headers={"origin": "https://page.example"})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    refused = guarded.client.options("/v1/models", headers=asks | {"origin": "https://evil.example"})
    assert refused.status_code == 403
    assert "access-control-allow-origin" not in refused.headers


def test_without_allowed_origins_a_preflight_allows_nothing(served: Running) -> None:
    answer = served.client.options(
        "/v1/models", headers={"origin": served.url, "access-control-request-method": "GET"}
    )
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/health", "/nothing", "/v1/completions"])
def test_every_answer_bears_what_browsers_must_know(served: Running, path: str) -> None:
    headers = served.client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "default-src 'self'" in headers["content-security-policy"]
    assert headers["x-request-id"].startswith("req-")
    assert "server" not in headers


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-1.2_3", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ("a\tb", False)],
)
def test_a_clients_request_id_is_kept_where_it_can_stand_in_a_log(
    served: Running, given: str, kept: bool
) -> None:
    found = served.client.get("/health", headers={"x-request-id": given}).headers["x-request-id"]
    assert (found == given) is kept
    assert found


def test_unknown_paths_and_methods_are_said_as_openai_does(served: Running) -> None:
    missing = served.client.get("/nothing")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert served.client.post("/v1/completions/", json={}).status_code == 404
    wrong = served.client.delete("/v1/models")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert served.client.get("/v1/completions").headers["allow"] == "POST"


def test_head_is_get_without_its_body(served: Running) -> None:
    for path in ("/health", "/v1/models", "/metrics"):
        answer = served.client.head(path)
        assert answer.status_code == 200
        assert answer.content == b""
        assert int(answer.headers["content-length"]) > 0
    assert served.client.head("/nothing").status_code == 404
