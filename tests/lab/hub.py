"""A stand-in for a model hub: one repository at one commit, readable with a token.

usage: hub.py PORT FOLDER MODEL COMMIT TOKEN_FILE CUT_FILE

Answers the few requests of the `hf` client. When CUT_FILE holds a number of bytes, the next
download of a larger file breaks off there, as a bad line does.
"""

from __future__ import annotations

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

port, folder, model, commit, token_file, cut_file = sys.argv[1:]
token = Path(token_file).read_text()
files = {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir()) if p.is_file()}


def oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        sys.stderr.write(f"{self.command} {self.path} {self.headers.get('Range')}\n")

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = int(Path(cut_file).read_text() or 0)
        if 0 < cut < len(body):
            Path(cut_file).write_text("0")
            self.wfile.write(body[:cut])
            self.close_connection = True
        else:
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.headers.get("Authorization") != f"Bearer {token}":
            return self.send(
                401,
                b'{"error":"Invalid credentials"}',
                X_Error_Code="GatedRepo",
                X_Error_Message="Access to model is restricted",
            )
        if path == f"/api/models/{model}/revision/{commit}":
            siblings = [{"rfilename": name} for name in files]
            body = {
                "id": model,
                "sha": commit,
                "siblings": siblings,
                "private": True,
                "gated": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
            }
            return self.send(200, json.dumps(body).encode(), Content_Type="application/json")
        if path == f"/api/models/{model}/tree/{commit}":
            tree = [
                {"type": "file", "path": n, "size": len(d), "oid": oid(d)} for n, d in files.items()
            ]
            return self.send(200, json.dumps(tree).encode(), Content_Type="application/json")
        name = path.rsplit("/", 1)[-1]
        if path == f"/{model}/resolve/{commit}/{name}" and name in files:
            data = files[name]
            known = {"ETag": f'"{oid(data)}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
            wanted = self.headers.get("Range", "").removeprefix("bytes=").split("-")[0]
            if wanted:
                start = int(wanted)
                span = f"bytes {start}-{len(data) - 1}/{len(data)}"
                return self.send(206, data[start:], Content_Range=span, **known)
            return self.send(200, data, **known)
        return self.send(404, b'{"error":"Repository not found"}', X_Error_Code="RepoNotFound")

    do_HEAD = do_GET


ThreadingHTTPServer(("127.0.0.1", int(port)), Hub).serve_forever()
