"""Downloads, from a server on this machine."""

import dataclasses
import hashlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from pa3dfl.core.errors import UserError
from pa3dfl.data import sources
from pa3dfl.data.download import Published, fetch, fetch_all
from pa3dfl.data.sources import load

BODY = bytes(range(256)) * 1000  # more than one chunk
MD5 = hashlib.md5(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"file": BODY, "short": BODY}
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path[1:]
        self.server.asked.append(name)
        if name not in self.server.files:
            return self.send_error(404)
        body = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:1000] if name == "short" else body)
        return None

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def failure(url: str, md5: str, target: Path) -> str:
    """The error of a fetch that must fail, in one line, leaving nothing behind."""
    with pytest.raises(UserError) as error:
        fetch(url, md5, target)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(url)
    assert not target.parent.is_dir() or list(target.parent.iterdir()) == []
    return str(error.value)


def test_fetch(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "folder" / "file"
    fetch(server.url + "file", MD5, target)
    assert target.read_bytes() == BODY
    assert list(target.parent.iterdir()) == [target]
    assert capfd.readouterr() == ("", "")


def test_progress_is_for_terminals_and_on_standard_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    fetch(server.url + "file", MD5, tmp_path / "file")
    out, err = capfd.readouterr()
    assert out == ""
    assert "256.0/256.0 kB" in err
    assert err.endswith("\x1b[2K")  # and is wiped when done


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    wrong = MD5.replace(MD5[0], "x")
    assert f"its MD5 is {MD5}, published is {wrong}" in failure(server.url + "file", wrong, tmp_path / "d" / "f")


def test_wrong_checksum_keeps_the_existing_file(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with pytest.raises(UserError):
        fetch(server.url + "file", "0" * 32, target)
    assert target.read_bytes() == b"old"


def test_http_error(server: Server, tmp_path: Path) -> None:
    assert "404" in failure(server.url + "nothing", MD5, tmp_path / "d" / "f")


def test_short_read(server: Server, tmp_path: Path) -> None:
    reason = "the connection ended after 1,000 of 256,000 bytes"
    assert reason in failure(server.url + "short", MD5, tmp_path / "d" / "f")


def test_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as held:  # bound but not listening: nothing else can answer on this port
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/file"
        assert "refused" in failure(url, MD5, tmp_path / "d" / "f").lower()


def test_silent_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("pa3dfl.data.download._TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as held:
        url = f"http://127.0.0.1:{held.getsockname()[1]}/file"
        assert "timed out" in failure(url, MD5, tmp_path / "d" / "f")


@pytest.mark.parametrize("url", ["nonsense", "http://[bad/file", "http://127.0.0.1:port/file"])
def test_bad_address(tmp_path: Path, url: str) -> None:
    failure(url, MD5, tmp_path / "d" / "f")


def test_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    failure(server.url + "file", MD5, tmp_path / "cache" / "pa3dfl" / "file")


def test_interrupt_leaves_no_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> str:
        assert [p.suffix for p in tmp_path.iterdir()] == [".part"]
        raise KeyboardInterrupt

    monkeypatch.setattr("pa3dfl.data.download._stream", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("http://unused/", MD5, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_mirror_and_files_already_there(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PA3DFL_MIRROR", server.url.rstrip("/"))
    server.files["other"] = BODY
    files = [Published("http://nowhere.invalid/", name, MD5) for name in ("file", "other")]
    fetch_all(files[:1], tmp_path)
    fetch_all(files, tmp_path)
    assert server.asked == ["file", "other"]


@pytest.fixture
def cifar100(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> bytes:
    """An archive of two images, which the catalogue then takes for the published one; nothing is on disk."""
    monkeypatch.delenv("PA3DFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_DEBIAN", tmp_path / "debian")
    record = np.zeros((2, 3074), np.uint8)
    record[:, 1] = 5, 99
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("cifar-100-binary/train.bin")
        info.size = record.size
        archive.addfile(info, io.BytesIO(record.tobytes()))
    source = sources.CATALOGUE["cifar100"]
    download = dataclasses.replace(source.downloads[0], md5=hashlib.md5(packed.getvalue()).hexdigest())
    tiny = dataclasses.replace(source, count=2, downloads=(download,))
    monkeypatch.setitem(sources.CATALOGUE, "cifar100", tiny)
    return packed.getvalue()


def test_load_downloads_once(server: Server, cifar100: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PA3DFL_MIRROR", server.url)
    server.files["cifar-100-binary.tar.gz"] = cifar100
    assert load("cifar100").y.tolist() == [5, 99]
    assert [p.name for p in (tmp_path / "cache" / "pa3dfl").iterdir()] == ["cifar-100-binary.tar.gz"]
    assert load("cifar100").y.tolist() == [5, 99]
    assert server.asked == ["cifar-100-binary.tar.gz"]


def test_load_reports_why_a_download_failed(
    server: Server, cifar100: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PA3DFL_MIRROR", server.url)
    url = f"{server.url}cifar-100-binary.tar.gz"
    with pytest.raises(UserError) as error:
        load("cifar100")
    assert str(error.value) == (
        f"cifar100 was not found in {tmp_path}/cache/pa3dfl, {tmp_path}/debian and could not be downloaded "
        f"({url}: HTTP Error 404: Not Found): "
        "put cifar-100-binary.tar.gz or cifar100.npz into one of them or pass --data-dir"
    )


def test_load_without_download_contacts_no_server(
    server: Server, cifar100: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PA3DFL_MIRROR", server.url)
    server.files["cifar-100-binary.tar.gz"] = cifar100
    with pytest.raises(UserError, match="was not found in"):
        load("cifar100", download=False)
    assert server.asked == []


def test_published_addresses_and_checksums() -> None:
    listed = {file.base + file.name: file.md5 for source in sources.CATALOGUE.values() for file in source.downloads}
    fashion = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    cifar = "https://www.cs.toronto.edu/~kriz/"
    assert listed == {
        f"{fashion}train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        f"{fashion}train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        f"{cifar}cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        f"{cifar}cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    }
