"""Stand-in, fault "port-taken": a server on the port that answers /health like an engine."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Stranger(BaseHTTPRequestHandler):
    """Healthy, and nothing else."""

    server_version = "stranger"

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()


ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), Stranger).serve_forever()
