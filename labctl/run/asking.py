"""Asking a language model through LiteLLM, in a process of its own.

LiteLLM takes seconds to import, prints to standard output, and has providers whose time-outs differ. In a process
of its own it costs nothing to commands that ask no model, it cannot spoil what labctl prints, and it can be ended
when its time is over. It is told to look nothing up: prices and the like come from its package.

`python -m labctl.run.asking` reads a :class:`Request` from standard input and prints a :class:`Reply`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from labctl.errors import UnsupportedError

START_S = 60.0
"""How long a busy machine may take to import LiteLLM."""

OFFLINE: Mapping[str, str] = {"LITELLM_OFFLINE_MODE": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""https://docs.litellm.ai/docs/proxy/outbound_requests"""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Request(_Value):
    """What a model is asked. `model` is LiteLLM's word for it, such as `openai/gpt-4o` or `ollama/llama3`.

    Keys and addresses of providers come from the environment, as LiteLLM documents them. `timeout_s` is for one
    attempt; only what may pass by itself is tried again: time-outs, broken connections, limits of rate, errors of
    the server.
    """

    model: str = Field(min_length=1)
    messages: tuple[Mapping[str, str], ...]
    temperature: float = 0.0
    max_tokens: int = Field(default=8192, gt=0)
    timeout_s: float = Field(default=120.0, gt=0)
    attempts: int = Field(default=3, ge=1, le=10)
    pause_s: float = Field(default=1.0, ge=0)
    """Between the first two attempts; twice as long before each further one."""

    @property
    def patience_s(self) -> float:
        """How long all of it may take."""
        return START_S + self.attempts * self.timeout_s + self.pause_s * float(2**self.attempts)


class Reply(_Value):
    """What came back: an `answer`, or in `error` why there is none. `served` is the provider's name and version of
    the model that answered; tokens and cost (US dollars; None: LiteLLM has no price) are of that one answer.
    """

    answer: str = ""
    error: str = ""
    served: str = ""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    litellm: str = ""
    attempts: int = 1


def ask(request: Request, environment: Mapping[str, str] | None = None) -> Reply:
    """Ask, within :attr:`Request.patience_s`. Whatever goes wrong is told in the reply.

    Raises :class:`UnsupportedError` where LiteLLM is not installed.
    """
    if importlib.util.find_spec("litellm") is None:
        raise UnsupportedError("asking a model needs LiteLLM", "install it: pip install 'groundfault[judge]'")
    argv = (sys.executable, "-m", "labctl.run.asking")
    own = {**(os.environ if environment is None else environment), **OFFLINE}
    try:
        done = subprocess.run(argv, input=request.model_dump_json().encode(), env=own, capture_output=True,
                              timeout=request.patience_s, check=False)  # fmt: skip
        return Reply.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        return Reply(error=f"no answer within {request.patience_s:.0f} s")
    except ValidationError:
        told = done.stderr.decode(errors="replace").strip().splitlines()
        return Reply(error=f"LiteLLM crashed: {told[-1] if told else f'exit code {done.returncode}'}")


def complete(request: Request) -> Reply:
    """Ask in this process."""
    import litellm
    from openai import OpenAIError  # what all errors of LiteLLM descend from

    litellm.suppress_debug_info = True
    passing = (litellm.Timeout, litellm.APIConnectionError, litellm.RateLimitError, litellm.InternalServerError,
               litellm.ServiceUnavailableError, litellm.BadGatewayError)  # fmt: skip
    version = importlib.metadata.version("litellm")
    for attempt in range(1, request.attempts + 1):
        try:
            found = litellm.completion(
                model=request.model, messages=[dict(m) for m in request.messages], timeout=request.timeout_s,
                temperature=request.temperature, max_tokens=request.max_tokens, max_retries=0, drop_params=True,
                response_format={"type": "json_object"},
            )  # fmt: skip
            return _reply(found, version, attempt)
        except OpenAIError as error:
            if attempt == request.attempts or not isinstance(error, passing):
                return Reply(error=_first_line(error), litellm=version, attempts=attempt)
        time.sleep(request.pause_s * 2 ** (attempt - 1))
    raise AssertionError("an attempt either answers or is the last")


def _reply(found: Any, version: str, attempt: int) -> Reply:
    usage = getattr(found, "usage", None)
    served = ", ".join(filter(None, (found.model, found.system_fingerprint)))
    message = found.choices[0].message if found.choices else None
    return Reply(answer=(message and message.content) or "", served=served, litellm=version, attempts=attempt,
                 tokens_in=getattr(usage, "prompt_tokens", 0), tokens_out=getattr(usage, "completion_tokens", 0),
                 cost_usd=found._hidden_params.get("response_cost"))  # fmt: skip


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def main() -> int:
    """Standard input to standard output, which LiteLLM itself never gets to print to."""
    request = Request.model_validate_json(sys.stdin.buffer.read())
    with contextlib.redirect_stdout(sys.stderr):
        reply = complete(request)
    sys.stdout.write(reply.model_dump_json())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
