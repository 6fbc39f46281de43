"""What is changed of the Hub's client: it gives up on a silent server, and its token goes to the Hub alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import constants, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, HTTPError

from ..compat import new_hub_client

SILENCE = 60.0  # seconds without a byte after which a connection has failed; the client itself would wait for ever
TOKEN_HEADERS = ("authorization", "x-hub-token")
LIMITS = ("ratelimit", "ratelimit-policy")  # headers for which the client would wait up to an hour without a word
_changed = False


def be_careful() -> None:
    """Let huggingface_hub use such a client from now on."""
    global _changed
    if not _changed:
        set_client_factory(careful_client)
        _changed = True


def careful_client() -> Any:
    """A client of the Hub with a time limit, whose token is sent to no other host, whatever address a server names."""
    client = new_hub_client()
    client.timeout = SILENCE
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], keep_token_home],
        "response": [*hooks["response"], shorten_wait],
    }
    return client


def keep_token_home(request: Any) -> None:
    if origin(str(request.url)) != origin(str(constants.ENDPOINT)):
        for name in TOKEN_HEADERS:
            request.headers.pop(name, None)


def origin(address: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of an address."""
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def shorten_wait(response: Any) -> None:
    """Waiting is left to `with_retries`, which says for how long."""
    for name in LIMITS if response.status_code == 429 else ():
        response.headers.pop(name, None)


@contextmanager
def unwrapped() -> Iterator[None]:
    """The client wraps what fails in an upload of weights; here it is raised as it was."""
    try:
        yield
    except (HfHubHTTPError, HTTPError):
        raise
    except Exception as error:
        cause = error.__cause__ or error.__context__
        while cause is not None and not isinstance(cause, HfHubHTTPError | HTTPError | ConnectionError | TimeoutError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from None
