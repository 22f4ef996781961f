"""How large the wheels of a lock are, asked from an index on this machine."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from sparkwright import wheels
from sparkwright.wheels import Wheel, unpacked_bytes, wheels_in


def pylock(*names: str) -> str:
    entries = ", ".join(
        f'{{ url = "https://h/p/{name}", size = {9 + i} }}' for i, name in enumerate(names)
    )
    return f'[[packages]]\nname = "a"\nversion = "1"\nwheels = [{entries}]\n'


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["a-1-py3-none-any.whl", "a-1-cp312-cp312-manylinux_2_28_aarch64.whl"], 1),
        (["a-1-cp38-abi3-manylinux_2_28_aarch64.whl", "a-1-py3-none-any.whl"], 0),
        (
            [
                "a-1-cp312-cp312-manylinux_2_17_aarch64.whl",
                "a-1-cp312-cp312-manylinux_2_34_aarch64.whl",
            ],
            1,
        ),
        (
            [
                "a-1-cp313-cp313-manylinux_2_28_aarch64.whl",
                "a-1-cp311-abi3-manylinux2014_aarch64.whl",
            ],
            1,
        ),
        (["a-1%2Bcpu-cp312-cp312-linux_x86_64.whl", "a-1%2Bcpu-py3-none-any.whl"], 1),
    ],
)
def test_the_wheel_that_an_installer_takes(names: list[str], chosen: int) -> None:
    (wheel,) = wheels_in(pylock(*names), "3.12", "aarch64-manylinux_2_39")
    assert wheel.size == 9 + chosen


class Index(BaseHTTPRequestHandler):
    """Serves a wheel, or its parts."""

    content = b""
    parts = True

    def do_GET(self) -> None:
        first, last = self.headers["Range"].removeprefix("bytes=").split("-")
        body = self.content[int(first) : int(last) + 1] if self.parts else self.content
        self.send_response(206 if self.parts else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of an index on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = HTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/a.whl"
    server.shutdown()
    server.server_close()


def archive(members: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for number in range(members):
            file.writestr(f"package/module_{number}.py", "x" * 1000)
    return buffer.getvalue()


@pytest.mark.parametrize("members", [3, 2000])
def test_unpacked_size_from_the_end_of_a_wheel(
    members: int, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Index, "content", archive(members))
    monkeypatch.setattr(wheels, "_TAIL", 4096)
    told: list[int] = []
    wheel = Wheel("a.whl", index, len(Index.content))
    assert unpacked_bytes([wheel, wheel], told.append) == 2 * members * 1000
    assert told == [1, 2]


def test_unpacked_size_of_a_wheel_in_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "a-1-py3-none-any.whl"
    file.write_bytes(archive(2))
    text = f'[[packages]]\nname = "a"\nversion = "1"\nwheels = [{{ url = "file://{file}" }}]\n'
    found = wheels_in(text, "3.12", "aarch64-manylinux_2_39")
    assert found[0].size == file.stat().st_size
    assert unpacked_bytes(found, lambda _: None) == 2000


def test_an_index_without_parts_or_with_something_else(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Index, "content", b"not a zip at all")
    wheel = Wheel("a.whl", index, len(Index.content))
    with pytest.raises(ValueError, match=r"a\.whl is no zip file"):
        unpacked_bytes([wheel], lambda _: None)
    monkeypatch.setattr(Index, "parts", False)
    with pytest.raises(ValueError, match="does not serve parts of files"):
        unpacked_bytes([wheel], lambda _: None)
