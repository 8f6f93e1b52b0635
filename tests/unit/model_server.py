"""A language model behind an OpenAI-compatible API, on loopback, that says what a test wants it to say."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Speaks = Callable[[dict[str, Any]], str]
"""The answer to a request's body."""


@dataclass
class ModelServer:
    """`statuses`: HTTP statuses of the next requests, 200 after them. `hold`: no answer before it is set."""

    speaks: Speaks = lambda body: "{}"
    statuses: list[int] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    hold: threading.Event | None = None
    port: int = 0

    def environment(self) -> dict[str, str]:
        """What LiteLLM has to know to find it, and nothing of the machine's proxies."""
        return {"OPENAI_API_BASE": f"http://127.0.0.1:{self.port}/v1", "OPENAI_API_KEY": "none", "NO_PROXY": "*"}

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(body)
        if self.hold is not None:
            self.hold.wait(60)
        status = self.statuses.pop(0) if self.statuses else 200
        if status != 200:
            return status, {"error": {"message": f"the stub says {status}", "type": "stub", "code": str(status)}}
        message = {"role": "assistant", "content": self.speaks(body)}
        return 200, {
            "id": "1", "object": "chat.completion", "created": 1, "model": "stub-2026-11-30",
            "system_fingerprint": "fp_7", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 700, "completion_tokens": 200, "total_tokens": 900},
        }  # fmt: skip


@contextmanager
def serving(model: ModelServer) -> Iterator[ModelServer]:
    """It answers while this lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, said = model.answer(body)
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield model
    finally:
        if model.hold is not None:
            model.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
