"""Kubeconfig files and service accounts: what is read of them, and what is said about a bad one."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from gpuyard.errors import InputError
from gpuyard.kubeapi.access import Access, account_access, find_access, read_kubeconfig
from gpuyard.kubeapi.credentials import trust_of

CA = b"-----BEGIN CERTIFICATE-----\n"


def kubeconfig(folder: Path, **changes: object) -> Path:
    content = {
        "clusters": [
            {"name": "one", "cluster": {"server": "https://one:6443", "certificate-authority-data": _b64(CA)}},
            {"name": "two", "cluster": {"server": "https://two:6443/", "insecure-skip-tls-verify": True}},
        ],
        "users": [
            {"name": "robot", "user": {"token": "secret-token"}},
            {"name": "cloud", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "tool",
                                                "args": ["get"], "env": [{"name": "A", "value": "b"}]}}},
        ],
        "contexts": [
            {"name": "first", "context": {"cluster": "one", "user": "robot", "namespace": "team"}},
            {"name": "second", "context": {"cluster": "two", "user": "cloud"}},
        ],
        "current-context": "first",
        **changes,
    }  # fmt: skip
    path = folder / "config"
    path.write_text(yaml.safe_dump(content))
    return path


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_the_current_context(tmp_path: Path) -> None:
    found = read_kubeconfig(kubeconfig(tmp_path))
    assert (found.server, found.namespace, found.token) == ("https://one:6443", "team", "secret-token")
    assert found.authority_pem == CA


def test_another_context_with_a_program(tmp_path: Path) -> None:
    found = read_kubeconfig(kubeconfig(tmp_path), "second")
    assert (found.server, found.namespace, found.insecure) == ("https://two:6443", "default", True)
    assert found.program is not None
    assert found.program.command == ("tool", "get")


def test_certificates_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(CA)
    clusters = [{"name": "one", "cluster": {"server": "https://one", "certificate-authority": "ca.crt"}}]
    assert read_kubeconfig(kubeconfig(tmp_path, clusters=clusters)).authority_pem == CA


@pytest.mark.parametrize(
    ("changes", "context", "words"),
    [
        ({}, "frist", 'has no context "frist"; did you mean "first"?'),
        ({"current-context": ""}, None, "no current-context is set"),
        ({"clusters": []}, None, 'has no cluster "one"'),
        ({"users": []}, None, 'has no user "robot"'),
        ({"clusters": [{"name": "one", "cluster": {"server": "one:6443"}}]}, None, "no address of an API server"),
        ({"clusters": 7}, None, "is no kubeconfig"),
        ({"users": [{"name": "robot", "user": {"auth-provider": {"name": "gcp"}}}]}, None, "no longer has"),
        ({"users": [{"name": "robot", "user": {"client-certificate-data": "!"}}]}, None, "not base64"),
        ({"users": [{"name": "robot", "user": {"client-certificate": "gone.crt"}}]}, None, "gone.crt cannot be read"),
    ],
)
def test_a_bad_file_is_answered_with_what_is_wrong(
    tmp_path: Path, changes: dict[str, object], context: str | None, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_kubeconfig(kubeconfig(tmp_path, **changes), context)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_not_there_and_one_that_is_not_yaml(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_kubeconfig(tmp_path / "none")
    (tmp_path / "odd").write_text("a: [")
    with pytest.raises(InputError, match="is not YAML"):
        read_kubeconfig(tmp_path / "odd")


def test_no_secret_is_in_a_representation(tmp_path: Path) -> None:
    assert "secret-token" not in repr(read_kubeconfig(kubeconfig(tmp_path)))


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in (("token", "t"), ("ca.crt", "ca"), ("namespace", "home\n")):
        (tmp_path / name).write_text(content)
    found = account_access(tmp_path, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})
    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "home")
    assert found.token_file == tmp_path / "token"
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert find_access(account=tmp_path).server == "https://10.0.0.1:443"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path)))
    assert find_access(account=tmp_path).server == "https://one:6443", "what a person names comes first"


def test_nothing_at_all_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match="--kubeconfig"):
        find_access()


def test_certificates_that_are_none_are_a_named_error() -> None:
    with pytest.raises(InputError, match="cannot be used"):
        trust_of(Access(server="https://x", authority_pem=b"nonsense"))
