"""Uploads of finished spools: byte for byte, and only if the program requests them."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from machtrace.reports.spool.spool import Spool
from tests.agent.build import LINKED, build, library, numbers, run
from tests.agent.test_hooks import shared

pytestmark = pytest.mark.live
CALLS = 1000
UNKNOWN_CERTIFICATE = 60
"""CURLE_PEER_FAILED_VERIFICATION."""
LONG = 60_000
"""Milliseconds: an upload that succeeds needs few."""


@pytest.fixture(scope="module")
def _has_libcurl() -> None:
    try:
        CDLL("libcurl.so.4")
    except OSError:
        pytest.skip("libcurl.so.4 is not installed")


needs_libcurl = pytest.mark.usefixtures("_has_libcurl")


class Server(ThreadingHTTPServer):
    """Stores requests, and answers with a status; not at all where that is 0."""

    daemon_threads = True

    def __init__(self, status: int) -> None:
        self.status = status
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.is_over = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    def url(self, host: str = "127.0.0.1") -> str:
        """Return where requests are sent."""
        return f"http://{host}:{self.server_port}/spools?app=1"


class Handler(BaseHTTPRequestHandler):
    """Answers for the server."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Store the request, and answer it."""
        server = self.server
        assert isinstance(server, Server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.command is not None
        server.requests.append((self.command, self.path, dict(self.headers), body))
        if server.status == 0:
            server.is_over.wait()
            self.close_connection = True
            return
        self.send_response(server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_POST = do_PUT = answer  # noqa: N815 - names of the base class

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving(status: int) -> Iterator[Server]:
    with Server(status) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.is_over.set()
            server.shutdown()
            thread.join()


Uploader = Callable[..., dict[str, float]]


def program(built: Path) -> Path:
    link = [str(shared(built, "observed")), f"-Wl,-rpath,{built}"]
    return build(built, "upload.c", LINKED, link=link)


@pytest.fixture
def upload(built: Path, tmp_path: Path) -> Uploader:
    def start(
        url: str, *words: object, timeout: int = LONG, rotations: int = 1
    ) -> dict[str, float]:
        result = numbers(
            run(program(built), tmp_path / "app.spool", url, timeout, rotations, *words)
        )
        assert result["calls"] == CALLS * (rotations + 1)
        assert result["others"] == 0
        return result

    return start


def finished(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("app.spool.*"))


def check_not_uploaded(tmp_path: Path, result: dict[str, float], error: int) -> None:
    assert (result["uploaded"], result["failed"], result["error"]) == (0, 1, error)
    (path,) = finished(tmp_path)
    spool = Spool.read(path)
    assert spool.problems == ()
    assert sum(calls for *_, calls in spool.sums()) == CALLS


@needs_libcurl
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_finished_spool_is_received_byte_for_byte(
    upload: Uploader, tmp_path: Path, method: str
) -> None:
    words = ["header", "Authorization: Bearer secret", "header", "X-App: 7"]
    with serving(201) as server:
        result = upload(server.url(), *words, *(["put"] if method == "PUT" else []), rotations=3)
    assert (result["uploaded"], result["failed"], result["error"]) == (3, 0, 0)
    assert result["status"] == 201
    assert result["ignored"] > 0
    bodies = [body for _, _, _, body in server.requests]
    assert bodies == [path.read_bytes() for path in reversed(finished(tmp_path))]
    for sent_method, path, headers, body in server.requests:
        assert (sent_method, path) == (method, "/spools?app=1")
        assert headers["Authorization"] == "Bearer secret"
        assert headers["X-App"] == "7"
        assert headers["Content-Type"] == "application/octet-stream"
        received = tmp_path / "received.spool"
        received.write_bytes(body)
        spool = Spool.read(received)
        assert spool.problems == ()
        assert sum(calls for *_, calls in spool.sums()) == CALLS


@needs_libcurl
def test_files_are_deleted_once_they_are_uploaded(upload: Uploader, tmp_path: Path) -> None:
    with serving(200) as server:
        result = upload(server.url(), "delete", rotations=2)
        assert result["uploaded"] == 2
        assert finished(tmp_path) == []
        server.status = 404
        result = upload(server.url(), "delete", rotations=1)
    # The last file of the first run is uploaded at the second's start, and fails as well.
    assert (result["uploaded"], result["failed"], result["error"]) == (0, 2, errno.EPROTO)
    assert len(finished(tmp_path)) == 2


@needs_libcurl
@pytest.mark.parametrize("status", [302, 401, 500])
def test_a_file_stays_unless_the_server_accepts_it(
    upload: Uploader, tmp_path: Path, status: int
) -> None:
    with serving(status) as server:
        result = upload(server.url(), "delete")
    assert result["status"] == status
    check_not_uploaded(tmp_path, result, errno.EPROTO)


@needs_libcurl
def test_a_file_stays_if_the_server_never_answers(upload: Uploader, tmp_path: Path) -> None:
    with serving(0) as server:
        result = upload(server.url(), "delete", timeout=300)
    check_not_uploaded(tmp_path, result, errno.ETIMEDOUT)
    assert result["status"] == 0


@needs_libcurl
def test_calls_are_moved_to_the_spool_while_a_server_does_not_answer(
    built: Path, tmp_path: Path
) -> None:
    path = tmp_path / "app.spool"
    with serving(0) as server:
        command = [str(program(built)), str(path), server.url(), "3600000", "1", "hung"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "flushed\n"
            process.kill()
    for file in (path, *finished(tmp_path)):
        assert sum(calls for *_, calls in Spool.read(file).sums()) == CALLS


@needs_libcurl
def test_a_file_stays_if_the_server_closes(upload: Uploader, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.recv(1000)
                connection.close()

        thread = threading.Thread(target=close)
        thread.start()
        result = upload(f"http://127.0.0.1:{server.getsockname()[1]}/", "delete")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    check_not_uploaded(tmp_path, result, errno.ECONNRESET)


@needs_libcurl
def test_a_file_stays_if_nothing_listens(upload: Uploader, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    result = upload(f"http://127.0.0.1:{port}/", "delete")
    check_not_uploaded(tmp_path, result, errno.ECONNREFUSED)


@needs_libcurl
@pytest.mark.parametrize("url", ["file:///tmp/x", "ftp://127.0.0.1/", "127.0.0.1", "", "http://"])
def test_only_addresses_of_http_are_used(upload: Uploader, tmp_path: Path, url: str) -> None:
    check_not_uploaded(tmp_path, upload(url, "delete"), errno.EINVAL)


@needs_libcurl
def test_a_server_with_an_unknown_certificate_gets_nothing(
    upload: Uploader, tmp_path: Path
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    certificate = tmp_path / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    files = ["-keyout", str(certificate), "-out", str(certificate) + ".crt"]
    subprocess.run([*command, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(str(certificate) + ".crt", certificate)
    with serving(200) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        result = upload(server.url("localhost").replace("http:", "https:"), "delete")
    check_not_uploaded(tmp_path, result, errno.EIO)
    assert result["code"] == UNKNOWN_CERTIFICATE
    assert server.requests == []


@needs_libcurl
def test_a_header_of_several_lines_is_refused(upload: Uploader, tmp_path: Path) -> None:
    with serving(200) as server:
        result = upload(server.url(), "header", "X-App: 7\r\nX-Other: 8")
    check_not_uploaded(tmp_path, result, errno.EINVAL)
    assert server.requests == []


@pytest.mark.parametrize("name", ["missing.so", "libc.so.6"])
def test_a_file_stays_where_there_is_no_libcurl(
    upload: Uploader, tmp_path: Path, name: str
) -> None:
    path = name if name == "libc.so.6" else str(tmp_path / name)
    with serving(200) as server:
        result = upload(server.url(), "delete", "library", path)
    check_not_uploaded(tmp_path, result, errno.ENOTSUP)
    assert server.requests == []


def name_of_this_machine() -> str:
    """Return a name that a thread of libcurl looks up: not localhost."""
    for line in Path("/etc/hosts").read_text().splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        for name in names:
            if address == "127.0.0.1" and "localhost" not in name:
                return name
    return pytest.skip("/etc/hosts has no other name for 127.0.0.1")


@needs_libcurl
def test_calls_of_a_thread_that_looks_up_a_name_are_not_the_programs(upload: Uploader) -> None:
    with serving(200) as server:
        result = upload(server.url(name_of_this_machine()), rotations=3)
    assert result["uploaded"] == 3
    assert result["ignored"] > 0


@needs_libcurl
def test_a_program_that_exits_does_not_wait_for_a_server(upload: Uploader, tmp_path: Path) -> None:
    """The upload is that of an earlier process's file; its limit is an hour."""
    upload("http:", rotations=0)
    with serving(0) as server:
        result = upload(server.url(), "entry", timeout=3_600_000, rotations=0)
    assert (result["uploaded"], result["failed"]) == (0, 1)
    assert result["error"] == errno.ECANCELED
    assert Spool.read(tmp_path / "app.spool.1").problems == ()


@needs_libcurl
def test_an_upload_is_requested_by_the_environment(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "app.spool"
    with serving(200) as server:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library(built)),
            "MACHTRACE_WATCH": "getenv",
            "MACHTRACE_SPOOL": str(path),
        }
        for _ in range(2):
            subprocess.run(["true"], check=True, env=environment)
        assert server.requests == []
        environment["MACHTRACE_UPLOAD"] = server.url()
        environment["MACHTRACE_UPLOAD_HEADER"] = "X-App: 7"
        server.status = 500
        with subprocess.Popen(
            ["cat"], env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line == f"machtrace: {path}.1: not uploaded, HTTP status 500\n"
            process.communicate()
    ((method, _, headers, body),) = server.requests
    assert (method, headers["X-App"]) == ("POST", "7")
    assert body == (tmp_path / "app.spool.1").read_bytes()
