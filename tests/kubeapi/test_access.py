"""Kubeconfig files and service accounts: what is read of them, and what is said about a bad one."""

from __future__ import annotations

import base64
from collections.abc import Mapping
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


def a_robot(user: Mapping[str, object]) -> dict[str, object]:
    return {"users": [{"name": "robot", "user": user}]}


def a_cluster(cluster: Mapping[str, object]) -> dict[str, object]:
    return {"clusters": [{"name": "one", "cluster": {"server": "https://one:6443", **cluster}}]}


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


def test_everything_a_user_and_a_cluster_may_have(tmp_path: Path) -> None:
    (tmp_path / "identity.key").write_bytes(b"key")
    user = {"tokenFile": "token", "client-certificate-data": _b64(b"cert"), "client-key": "identity.key"}
    changes = {**a_robot(user), **a_cluster({"tls-server-name": "inside", "disable-compression": True})}
    found = read_kubeconfig(kubeconfig(tmp_path, **changes))
    assert (found.token_file, found.server_name) == (tmp_path / "token", "inside")
    assert (found.certificate_pem, found.key_pem) == (b"cert", b"key")


def test_a_program_beside_the_file_is_told_of_the_cluster_where_it_asks_to_be(tmp_path: Path) -> None:
    spec = {"command": "./bin/tool", "apiVersion": "client.authentication.k8s.io/v1", "provideClusterInfo": True}
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    changes = {
        **a_robot({"exec": spec}),
        **a_cluster({"certificate-authority-data": _b64(CA), "extensions": [extension]}),
    }
    program = read_kubeconfig(kubeconfig(tmp_path, **changes)).program
    assert program is not None
    assert program.command == (str(tmp_path / "bin/tool"),)
    authority = {"certificate-authority-data": _b64(CA)}
    assert program.about_cluster == {"server": "https://one:6443", **authority, "config": {"audience": "x"}}


# ------------------------------------------------------------------------------------------------------- several files


def several(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: object) -> None:
    """KUBECONFIG names them in this order; of None it names one that is not there."""
    for name, content in files.items():
        (folder / name).mkdir()
        if content is not None:
            (folder / name / "config").write_text(yaml.safe_dump(content) if content else "")
    monkeypatch.setenv("KUBECONFIG", ":".join(str(folder / name / "config") for name in files))


def a_part(server: str = "", current: str = "", **users: object) -> dict[str, object]:
    clusters = [{"name": "one", "cluster": {"server": server, "certificate-authority": "ca.crt"}}] if server else []
    context = {"cluster": "one", "user": "robot", "namespace": server.removeprefix("https://")}
    return {
        "clusters": clusters,
        "contexts": [{"name": "it", "context": context}] if server else [],
        "users": [{"name": name, "user": user} for name, user in users.items()],
        "current-context": current,
    }


def test_of_several_files_the_first_that_says_something_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = a_part(robot={"token": "first"})
    second = a_part("https://second", current="it", robot={"token": "second"})
    third = a_part("https://third", current="other")
    several(tmp_path, monkeypatch, a=first, b=None, c={}, d=second, e=third)
    (tmp_path / "d" / "ca.crt").write_bytes(CA)
    found = find_access()
    assert (found.server, found.namespace, found.token) == ("https://second", "second", "first")
    assert found.authority_pem == CA, "what a file names is looked for beside that file"


def test_one_name_twice_and_empty_names_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kubeconfig(tmp_path)
    monkeypatch.setenv("KUBECONFIG", f":{path}:{path}:")
    assert find_access().server == "https://one:6443"


def test_where_none_of_several_files_is_there_all_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several(tmp_path, monkeypatch, a=None, b=None)
    with pytest.raises(InputError, match=r"KUBECONFIG names no file that is there: .*a/config, .*b/config"):
        find_access()


def test_what_is_wrong_names_the_file_it_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several(tmp_path, monkeypatch, a=a_part(current="it"), b=a_part("https://b"))
    with pytest.raises(InputError, match=r"b/config: .*has no user \"robot\""):
        find_access()


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
        (a_robot({"password": "p"}), None, "no longer has"),
        (a_robot({"client-certificate-data": "!", "client-key-data": "!"}), None, "not base64"),
        (a_robot({"client-certificate": "gone.crt", "client-key": "k"}), None, "gone.crt cannot be read"),
        (a_robot({"client-certificate": "c"}), None, "has a client-certificate and no client-key"),
        (a_robot({"client-key-data": "eA=="}), None, "has a client-key and no client-certificate"),
        (a_robot({"token": "t", "as": "admin"}), None, "acts as somebody else"),
        (a_robot({"token": "t", "as-groups": ["system:masters"]}), None, "acts as somebody else"),
        (a_robot({"exec": {"command": "tool", "interactiveMode": "Always"}}), None, "tool asks at a terminal"),
        (a_cluster({"proxy-url": "http://proxy:3128"}), None, "proxy-url is set for https://one:6443"),
        (
            a_cluster({"insecure-skip-tls-verify": True, "certificate-authority-data": "eA=="}),
            None,
            "both insecure-skip-tls-verify and a certificate-authority",
        ),
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
