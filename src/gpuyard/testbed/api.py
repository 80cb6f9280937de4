"""The API server of a testbed, asked over HTTPS as its admin; only what the testbed itself needs.

Place in the flow: up, bed, status ─▶ **api** ─▶ the API server.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import httpx2

from gpuyard.errors import KubeSilentError, KubeTestbedError
from gpuyard.platform.clock import monotonic_ms, sleep_ms
from gpuyard.testbed.credentials import pki_folder, server_url
from gpuyard.testbed.record import Record

ANSWER_S: Final = 20.0
POLL_MS: Final = 100
UNABLE: Final = (429, 500, 502, 503, 504)
"""What a server says that has too much to do, or has only just begun."""
OWNER: Final = "gpuyard-testbed"


class Api:
    """Paths and JSON, as the API server has them."""

    def __init__(self, record: Record) -> None:
        pki = pki_folder(record)
        token = (pki / "admin.token").read_text(encoding="ascii")
        trusted = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        self._http = httpx2.Client(
            base_url=server_url(record),
            headers={"Authorization": f"Bearer {token}"},
            verify=trusted,
            timeout=ANSWER_S,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def answers(self, path: str) -> bool:
        """Whether there is an answer, and it is a good one."""
        try:
            return self._http.get(path).is_success
        except httpx2.HTTPError:
            return False

    def get(self, path: str) -> Any:  # noqa: ANN401 - whatever lies there
        return self._sent("GET", path)

    def create(self, path: str, value: dict[str, Any]) -> Any:  # noqa: ANN401
        """`path` is the collection's."""
        return self._sent("POST", path, json=value)

    def apply(self, path: str, value: dict[str, Any]) -> Any:  # noqa: ANN401
        """Made or changed, so that it is as `value` says; `path` is the object's own."""
        from msgspec import json

        headers = {"Content-Type": "application/apply-patch+yaml"}
        query = {"fieldManager": OWNER, "force": "true"}
        return self._sent("PATCH", path, params=query, headers=headers, content=json.encode(value))

    def delete(self, path: str, **options: Any) -> Any:  # noqa: ANN401
        return self._sent("DELETE", path, params=options)

    def _sent(self, method: str, path: str, **content: Any) -> Any:  # noqa: ANN401
        try:
            answer = self._http.request(method, path, **content)
        except httpx2.HTTPError as error:
            raise KubeSilentError(f"the API server does not answer {method} {path}: {error!r}") from None
        if answer.status_code in UNABLE:
            raise KubeSilentError(f"the API server cannot answer {method} {path} just now: {_said(answer)}")
        if not answer.is_success:
            raise KubeTestbedError(f"the API server answers {method} {path} with {answer.status_code}: {_said(answer)}")
        return answer.json()


def _said(answer: httpx2.Response) -> str:
    """The sentence in an answer that says no."""
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text


def holds_now(holds: Callable[[], bool]) -> bool:
    """An API server that is silent for a moment, on a busy machine, is no answer and no reason to give up."""
    try:
        return holds()
    except KubeSilentError:
        return False


def wait_until(holds: Callable[[], bool], what: str, *, timeout_ms: int) -> None:
    """Ask again until it holds; what never does is an error that says what was waited for."""
    until_ms = monotonic_ms() + timeout_ms
    while not holds_now(holds):
        if monotonic_ms() > until_ms:
            raise KubeTestbedError(f"{what} did not happen within {timeout_ms // 1000} s")
        sleep_ms(POLL_MS)
