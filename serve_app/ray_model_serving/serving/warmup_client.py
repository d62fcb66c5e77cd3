"""Asks the two that know: the cluster's dashboard for the list of replicas, and the route for what each one says."""

import http.client
import json
import os
import ssl
import urllib.parse
from pathlib import Path
from typing import Any

from ray_model_serving.contract.errors import ModelServingError

# Ray 2.60's names for the dashboard's address and for the token of a cluster that asks for one.
ADDRESS_VARIABLE = "RAY_DASHBOARD_ADDRESS"
LOCAL_ADDRESS = "http://127.0.0.1:8265"
APPLICATIONS_PATH = "/api/serve/applications/"


class UnreachableError(ModelServingError):
    """Nothing answered, or not yet."""

    kind = "unreachable"
    permanent = False


class NotServeError(ModelServingError):
    """Something answered, but not what was asked for."""

    kind = "not_serve"


class TokenError(ModelServingError):
    """The cluster wants a token, or another one."""

    kind = "token_refused"


def dashboard_address(given: str) -> str:
    """``auto`` is RAY_DASHBOARD_ADDRESS or the one of a local Ray. Raises ValueError for what is no http(s) URL."""
    address = (os.environ.get(ADDRESS_VARIABLE) or LOCAL_ADDRESS) if given == "auto" else given
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.port == 0:
        raise ValueError(f"got {address!r}, must be http://host:port or auto")
    return address.rstrip("/")


def cluster_token() -> str | None:
    """As Ray looks for it: RAY_AUTH_TOKEN, the file of RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token; None for none."""
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        return None
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token.strip()
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    try:
        return (Path(path) if path else Path.home() / ".ray" / "auth_token").read_text().strip() or None
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        if path:
            message = f"RAY_AUTH_TOKEN_PATH {path} can't be read: {error}"
            raise TokenError(message, hint="mount the cluster's token there") from error
        return None


def serve_details(address: str, *, timeout_s: float) -> dict[str, Any]:
    """Serve's own document on all applications. Raises the errors above. The token goes nowhere else."""
    token = cluster_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    status, body = send("GET", address + APPLICATIONS_PATH, None, headers=headers, timeout_s=timeout_s)
    where = f"GET {address}{APPLICATIONS_PATH}"
    if status in (401, 403):
        given = "the token that was sent is not the cluster's" if token else "no token was found"
        raise TokenError(
            f"{where} answered {status}: {given}", hint="set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a mounted secret"
        )
    if status >= 500:
        raise UnreachableError(f"{where} answered {status}: {excerpt(body)}", hint="see the head's log")
    document = as_object(body)
    if status != 200 or document is None or not isinstance(document.get("applications"), dict):
        raise NotServeError(
            f"{where} answered {status} and not Serve's document: {excerpt(body)}",
            hint="name the dashboard of the Ray head (port 8265), not the route of an application",
        )
    return document


def send(
    method: str, url: str, body: bytes | None, *, timeout_s: float, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """One request; follows no redirect and uses no proxy. Raises :class:`UnreachableError`."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        link = http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=ssl.create_default_context())
    else:
        link = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    try:
        link.request(method, parts.path or "/", body, headers or {})
        response = link.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(
            f"{method} {url}: {type(error).__name__}: {error}", hint="check the address, and what may connect to it"
        ) from error
    finally:
        link.close()


def as_object(body: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def excerpt(body: bytes) -> str:
    """The start of a body on one line."""
    return " ".join(body[:200].decode(errors="replace").split())
