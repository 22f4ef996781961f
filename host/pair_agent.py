"""Tell the other host of a pair how the rank here is, and end it when its partner is gone.

usage: pair_agent.py

Runs as sparkwright-pair.service on both hosts of a pair. It answers on the fabric only, which is
not authenticated, so it tells nothing secret and changes nothing for who asks:
  GET /                  driver and QSFP port of this host
  GET /NAME              state of the rank and of the transaction here (pairing.Peer)
  GET /prove/NAME        have the head here generate; `?limit=` seconds
  GET /bandwidth/RAIL    let the other host measure rail 0 or 1 once

vLLM does not notice a partner that is gone: the worker outlives its head, and the head says healthy
without its worker (docs/two-sparks.md). So a rank whose partner ended, started anew or can't be
reached is killed here; systemd starts it again, and it waits for the other one (pair.py).
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import alike
import bandwidth
import rails
import service
import transaction
from common import ETC, VAR, Refusal, main, read_json, say
from pairing import PORT, Pair, UnreachableError, look, served, start_of
from undoing import strings

LOOK_EVERY_S = 2
LOST_AFTER_S = 15
"""Without an answer on a rail for so long, the partner is gone. Longer than a restart of its
agent, shorter than anybody's patience."""
IDLE_S = 120
"""Without any pair on this host for so long, the agent ends."""
_UNSETTLED = ("stopping", "switching", "undoing")
"""Phases of a transaction that itself stops and starts ranks."""
_FREEBIND = getattr(socket, "IP_FREEBIND", 15)


def names() -> list[str]:
    """Instances that are, or are about to be, one half of a pair."""
    coming = glob.glob(f"{VAR}/transaction/*/next/pair.json")
    return sorted({*served(), *(path.split("/")[-3] for path in coming)})


def describe(name: str) -> dict[str, object]:
    """What the other host is told of an instance here (pairing.Peer)."""
    known, start = transaction.record(), start_of(name)
    own = Pair.load(name)
    wanted = Pair.coming(name) if known else None
    ended = transaction.result()
    model = (wanted or own).model if wanted or own else ""
    return {
        "driver": rails.driver(),
        "weights": alike.weights(model) if model else "",
        "key": own.key if own else "",
        "start": start.get("id", ""),
        "partner": start.get("partner", ""),
        "unit": service.show(f"vllm@{name}.service").active,
        "phase": known.get("phase", "") if wanted else "",
        "target": wanted.key if wanted else "",
        "stops": name in strings(known.get("stopped")),
        "proven": name in strings(known.get("proven")),
        "ended": {
            "id": ended.get("id"),
            # The words of an engine may be in it, and anybody on the fabric may ask.
            "error": bool(ended.get("error")),
            "keys": ended.get("keys", {}),
        },
    }


def prove(name: str, limit: float) -> str:
    """Have the head here generate. Raises Refusal."""
    start = read_json(f"{ETC}/{name}/start.json")
    if not start:
        raise Refusal(f"nothing of {name} is in service")
    server = service.endpoint(start, name)
    return service.prove(f"vllm@{name}.service", server, limit_s=limit)


def greet() -> dict[str, object]:
    """What the other host is told of this one."""
    first = [rail["device"] for rail in _rails()[:1]]
    ports = [rail.port for rail in rails.devices() if rail.device in first]
    return {"driver": rails.driver(), "port": ports[0] if ports else None}


def _rails() -> list[dict[str, str]]:
    found = read_json(f"{ETC}/fabric.json").get("rails")
    return found if isinstance(found, list) else []


def let_measure(number: str) -> bool:
    """Listen for one measurement of a rail; False when that can't be."""
    known = _rails()
    if number not in ("0", "1") or len(known) != 2:
        return False
    index = int(number)
    own = strings(read_json(f"{ETC}/fabric.json").get("own"))[index]
    found = [rail for rail in rails.devices() if rail.device == known[index]["device"]]
    return bool(found) and bandwidth.serve(found[0], own, index)


class Handler(BaseHTTPRequestHandler):
    """Answers one request of the other host."""

    timeout = 10

    def do_GET(self) -> None:
        """Answer with JSON; 404 for a name that is no pair's."""
        try:
            status, answer = self._answer()
        except Exception as problem:  # whatever it is: the other host must not wait for nothing
            status, answer = 503, {"text": f"{type(problem).__name__}: {problem}"}
        body = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def _answer(self) -> tuple[int, dict[str, object]]:
        where = urlsplit(self.path)
        *verb, name = unquote(where.path).strip("/").split("/")
        if not verb and not name:
            return 200, greet()
        if verb == ["bandwidth"]:
            return (200 if let_measure(name) else 503), {}
        if name not in names() or verb not in ([], ["prove"]):
            return 404, {"text": f"{name[:80]!r} is no pair's profile here"}
        if not verb:
            return 200, describe(name)
        limit = float(parse_qs(where.query).get("limit", ["30"])[0])
        try:
            return 200, {"text": prove(name, limit)}
        except Refusal as refusal:
            return 503, {"text": str(refusal)}

    def log_message(self, *_: object) -> None:
        """Nothing: two lines a second, for ever."""


class Server(ThreadingHTTPServer):
    """Listens on an address that this host may not have yet."""

    daemon_threads = True

    def server_bind(self) -> None:
        """Bind before the network is up."""
        self.socket.setsockopt(socket.SOL_IP, _FREEBIND, 1)
        # Not HTTPServer's, which asks a name server for the address' name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), PORT

    def handle_error(self, *_: object) -> None:
        """A partner that went away in the middle is no error here."""


class Guard:
    """Looks at the partner of each rank here, and ends a rank that lost its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.heard: dict[str, tuple[object, float]] = {}

    def tend(self, pair: Pair) -> None:
        """One look at one rank."""
        unit, start = service.show(f"vllm@{pair.name}.service"), start_of(pair.name)
        phase = transaction.record().get("phase")
        if not unit.main_pid or not start.get("met") or phase in _UNSETTLED:
            self.heard.pop(pair.name, None)
            return
        own, now = start.get("id"), self.clock()
        if self.heard.get(pair.name, (None, 0.0))[0] != own:
            self.heard[pair.name] = (own, now)
        try:
            other = look(pair)
        except UnreachableError as problem:
            silent = now - self.heard[pair.name][1]
            if silent > LOST_AFTER_S:
                self._end(pair, f"{problem}, for {silent:.0f} s")
            return
        self.heard[pair.name] = (own, now)
        if other.start != start.get("partner"):
            self._end(pair, f"the rank on {pair.peer_host} was started anew")
        elif other.unit in ("inactive", "failed"):
            self._end(pair, f"the rank on {pair.peer_host} is {other.unit}")

    def _end(self, pair: Pair, why: str) -> None:
        """Kill the rank; it starts again by itself and waits for the other one."""
        unit = f"vllm@{pair.name}.service"
        say(f"ending {unit}, it starts again with the other rank: {why}")
        self.heard.pop(pair.name, None)
        # Its limit of starts is for an engine that fails, not for one that lost its partner.
        service.systemctl("reset-failed", unit, check=False)
        service.systemctl("kill", "--signal=SIGKILL", unit, check=False)


def _edition() -> list[float]:
    """Changes when this program or the fabric's addresses do."""
    folder = os.path.dirname(os.path.abspath(__file__))
    files = [*sorted(glob.glob(f"{folder}/*.py")), f"{ETC}/fabric.json"]
    return [os.stat(file).st_mtime for file in files if os.path.exists(file)]


def program() -> None:
    fabric = read_json(f"{ETC}/fabric.json")
    addresses = strings(fabric.get("own"))
    if not addresses:
        raise Refusal(f"{ETC}/fabric.json names no address: deploy it again")
    for address in addresses:
        server = Server((address, PORT), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    say(f"answers on {' and '.join(addresses)}, port {PORT}")
    edition, guard, used = _edition(), Guard(), time.monotonic()
    while time.monotonic() - used < IDLE_S:
        time.sleep(LOOK_EVERY_S)
        if _edition() != edition:
            os.execv(sys.executable, [sys.executable, *sys.argv])
        for name in names():
            used = time.monotonic()
            pair = Pair.load(name)
            if pair:
                with contextlib.suppress(Refusal, OSError):  # the next look comes soon
                    guard.tend(pair)
    say("no pair is left on this host")


if __name__ == "__main__":
    main(program)
