"""The HTTP side: vLLM's endpoints, with answers of the same shape."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import select
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vllm import __version__, logs
from vllm.ranks import Ranks

_WORDS = ("These", "words", "come", "from", "a", "stand-in", "and", "mean", "nothing.")
_DEFAULT_TOKENS = 16
_GUARDED = ("/v1", "/v2", "/inference")
_GET = ("/health", "/ping", "/load", "/version", "/metrics", "/v1/models")
_POST = ("/ping", "/v1/chat/completions", "/v1/completions")


class State:
    """What the API server and the process's main thread share."""

    def __init__(self, names: list[str], root: str, context: int, keys: list[str]) -> None:
        self.names, self.root, self.context, self.keys = names, root, context, keys
        self.dead = False  # the engine is gone though nobody asked for it
        self.stopping = False  # the engine has been told to go
        self.aborted = False  # and it went without finishing what it had
        self.running = 0  # requests in flight
        self.prompt_tokens = self.generated_tokens = self.finished = 0
        self.ranks: Ranks | None = None
        self.lock, self.turn = threading.Lock(), threading.Lock()

    def count(self, **changes: int) -> None:
        """Add to counters, by name."""
        with self.lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)


class Server(ThreadingHTTPServer):
    """Serves on a socket that was bound earlier; ``quiet`` paths are not logged, None: none is."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, listener: socket.socket, state: State, quiet: set[str] | None) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.state, self.quiet = listener, state, quiet

    def start(self) -> None:
        """Listen, say so as uvicorn does, and serve in the background."""
        self.server_activate()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        logs.plain(f"INFO:     Started server process [{os.getpid()}]")
        logs.plain("INFO:     Waiting for application startup.")
        logs.plain("INFO:     Application startup complete.")


class _Refused(Exception):
    def __init__(self, code: int, kind: str, message: str, param: str | None) -> None:
        error = {"message": message, "type": kind, "param": param, "code": code}
        super().__init__(code, {"error": error})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "uvicorn", ""
    server: Server

    def do_GET(self) -> None:
        state, path = self.server.state, self.path.partition("?")[0]
        if not self._admitted(path, _GET, _POST):
            return
        if path in ("/health", "/ping"):
            self._send(503 if state.dead or _mode() == "unhealthy" else 200)
        elif path == "/load":
            self._send(200, {"server_load": 0})
        elif path == "/version":
            self._send(200, {"version": __version__})
        elif path == "/metrics":
            self._send(200, _metrics(state), "text/plain; version=1.0.0; charset=utf-8")
        else:
            self._send(200, {"object": "list", "data": [_card(state, n) for n in state.names]})

    def do_POST(self) -> None:
        state, path = self.server.state, self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if not self._admitted(path, _POST, _GET):
            return
        if path == "/ping":
            self._send(503 if state.dead else 200)
            return
        state.count(running=1)
        try:
            self._generate(json.loads(body), chat="chat" in path)
        except _Refused as refusal:
            self._send(*refusal.args)
        except ValueError as problem:
            self._send(
                *_Refused(400, "Bad Request", f"1 validation error:\n  {problem}", "body").args
            )
        except OSError:
            self.close_connection = True  # the client hung up
        finally:
            state.count(running=-1)

    def _admitted(self, path: str, here: tuple[str, ...], elsewhere: tuple[str, ...]) -> bool:
        keys = self.server.state.keys
        if keys and path.startswith(_GUARDED) and not os.environ.get("STANDIN_IGNORE_API_KEY"):
            scheme, _, given = self.headers.get("authorization", "").partition(" ")
            same = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]
            if scheme.lower() != "bearer" or not any(same):
                self._send(401, {"error": "Unauthorized"})
                return False
        if path not in here:
            code = 405 if path in elsewhere else 404
            self._send(code, {"detail": HTTPStatus(code).phrase})
            return False
        return True

    def _generate(self, request: dict[str, Any], chat: bool) -> None:
        state = self.server.state
        model = request.get("model") or state.names[0]
        if model not in state.names:
            known = ", ".join(state.names)
            message = f"The model `{model}` does not exist. Valid aliases: {known}."
            raise _Refused(404, "NotFoundError", message, "model")
        prompt_tokens = _prompt_tokens(request, chat)
        limit = request.get("max_completion_tokens") or request.get("max_tokens") or _DEFAULT_TOKENS
        if prompt_tokens + limit > state.context:
            raise _Refused(
                400,
                "BadRequestError",
                f"max_tokens={limit} cannot be greater than max_model_len={state.context}. Please "
                f"request fewer output tokens. (parameter=max_tokens, value={limit})",
                "max_tokens",
            )
        mode = _mode()
        if state.dead or mode == "error":
            raise _Refused(500, "InternalServerError", logs.DEAD, None)
        head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex[:16]}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        tokens = self._in_turn(limit) if mode == "queue" else self._tokens(limit, mode)
        finish = "stop" if mode in ("empty", "none") else "length"
        usage = {"prompt_tokens": prompt_tokens, "total_tokens": 0, "completion_tokens": 0}
        if request.get("stream"):
            options = request.get("stream_options") or {}
            self._stream(head, chat, tokens, finish, usage, bool(options.get("include_usage")))
        else:
            text = "".join(_counted(tokens, usage))
            choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
            choice |= (
                {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            )
            self._send(200, {**head, "choices": [choice | {"stop_reason": None}], "usage": usage})
        state.count(prompt_tokens=prompt_tokens, finished=1)

    def _tokens(self, limit: int, mode: str) -> Iterator[str]:
        """Give tokens one by one, at the pace and of the kind that the environment says."""
        if mode == "hang":
            self._wait_for_client()
        for number in range({"empty": 1, "none": 0}.get(mode, limit)):
            time.sleep(float(os.environ.get("STANDIN_TOKEN_SECONDS", "0")))
            if self.server.state.dead or self.server.state.aborted:
                self._wait_for_client()
            ranks = self.server.state.ranks
            if ranks and not ranks.step(self._is_alone):
                self._wait_for_client()
            text = {"empty": "", "garbage": "!"}.get(mode)
            # One by one as vLLM does, so that the count is right before the answer is sent.
            self.server.state.count(generated_tokens=1)
            yield _WORDS[number % len(_WORDS)] + " " if text is None else text

    def _in_turn(self, limit: int) -> Iterator[str]:
        with self.server.state.turn:
            yield from self._tokens(limit, "")

    def _is_alone(self) -> bool:
        """True when the client hung up, or the engine is dead."""
        return self.server.state.dead or self._hung_up(0)

    def _hung_up(self, wait: float) -> bool:
        """True when the client closes its connection within so many seconds."""
        readable = select.select([self.connection], [], [], wait)[0]
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _wait_for_client(self) -> None:
        """Do nothing until the client hangs up or the engine dies."""
        while not self.server.state.dead:
            if self._hung_up(0.1):
                raise ConnectionResetError
        raise _Refused(500, "InternalServerError", logs.DEAD, None)

    def _stream(
        self,
        head: dict[str, Any],
        chat: bool,
        tokens: Iterator[str],
        finish: str,
        usage: dict[str, int],
        include_usage: bool,
    ) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        head = {**head, "object": "chat.completion.chunk"} if chat else head

        def choice(text: str, end: str | None = None, **delta: str) -> dict[str, Any]:
            said = {"delta": {**delta, "content": text}} if chat else {"text": text}
            return {"choices": [{"index": 0, **said, "logprobs": None, "finish_reason": end}]}

        if chat:
            self._event({**head, **choice("", role="assistant")})
        try:
            for token in _counted(tokens, usage):
                self._event({**head, **choice(token)})
            self._event({**head, **choice("", finish)})
        except _Refused as refusal:
            self._event(refusal.args[1])
        if include_usage:
            self._event({**head, "choices": [], "usage": usage})
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, content: dict[str, Any] | str) -> None:
        data = f"data: {_text(content)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _send(self, code: int, content: Any = None, kind: str = "application/json") -> None:
        body = b""
        if content is not None:
            text = (
                content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))
            )
            body = text.encode()
        self.send_response(code)
        self.send_header("content-length", str(len(body)))
        if body:
            self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Write uvicorn's access line."""
        quiet, path = self.server.quiet, self.path.partition("?")[0]
        if quiet is None or path in quiet:
            return
        host, port = self.client_address[:2]
        status = HTTPStatus(code)
        logs.plain(
            f'INFO:     {host}:{port} - "{self.command} {self.path} HTTP/1.1" '
            f"{status.value} {status.phrase}"
        )


def _mode() -> str:
    """How to misbehave, by the file that may be there now, else by the environment."""
    with contextlib.suppress(OSError), open(os.environ.get("STANDIN_SWITCH", "")) as file:
        return file.read().strip()
    return os.environ.get("STANDIN_GENERATE", "")


def _text(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))


def _counted(tokens: Iterator[str], usage: dict[str, int]) -> Iterator[str]:
    """Pass tokens on and keep the usage up to date."""
    usage["total_tokens"] = usage["prompt_tokens"]
    for token in tokens:
        usage["completion_tokens"] += 1
        usage["total_tokens"] += 1
        yield token


def _prompt_tokens(request: dict[str, Any], chat: bool) -> int:
    """Count tokens as the lab's tiny model does: one a byte, one a special token."""
    if not chat:
        prompt = request.get("prompt")
        if not isinstance(prompt, str):
            raise ValueError("{'type': 'string_type', 'loc': 'body.prompt'}")
        return len(prompt.encode())
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise ValueError("{'type': 'list_type', 'loc': 'body.messages'}")
    texts = [f"{message['role']}{message['content']}".encode() for message in messages]
    return sum(len(text) + 4 for text in texts) + len("\nassistant\n")


def _card(state: State, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": state.root,
        "parent": None,
        "max_model_len": state.context,
    }


def _metrics(state: State) -> str:
    name = state.names[0]
    values = {
        "num_requests_running": ("gauge", state.running),
        "num_requests_waiting": ("gauge", 0),
        "kv_cache_usage_perc": ("gauge", 0),
        "prompt_tokens_total": ("counter", state.prompt_tokens),
        "generation_tokens_total": ("counter", state.generated_tokens),
    }
    lines = []
    for metric, (kind, value) in values.items():
        lines.append(f"# TYPE vllm:{metric} {kind}")
        lines.append(f'vllm:{metric}{{engine="0",model_name="{name}"}} {float(value)}')
    lines.append("# TYPE vllm:request_success_total counter")
    labels = f'engine="0",finished_reason="length",model_name="{name}"'
    lines.append(f"vllm:request_success_total{{{labels}}} {float(state.finished)}")
    return "\n".join(lines) + "\n"
