"""Which server, which team, which token: precedence, contexts, signing in and out."""

import json
import stat
from pathlib import Path

import pytest

from gpuyard.errors import GpuyardError, InputError, NotSignedInError
from gpuyard.sdk.config import Flags, read_config, resolve, user_config_path
from gpuyard.service.settings import Settings
from tests.cli.conftest import Run, run
from tests.sdk.yard import TOKEN, Yard

pytestmark = pytest.mark.slow

USER = """
context = "lab"
output = "wide"
[contexts.lab]
url = "https://lab:1"
team = "lab-team"
token_file = "lab.token"
ca = "ca.pem"
[contexts.other]
url = "https://other:1"
token_file = "/keys/other"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project" / "deep"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def user_file(tmp_path: Path, text: str = USER) -> Path:
    return write(tmp_path / "settings" / "gpuyard" / "config.toml", text)


def held(flags: Flags = Flags()) -> dict[str, str]:  # noqa: B008
    return {name: setting.value for name, setting in resolve(flags).values.items()}


# ---------------------------------------------------------------------------------------------------------- precedence


def test_each_place_wins_over_those_below_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GpuyardError, match="no server runs on this machine"):
        _ = resolve().url
    write(here / "home" / "server.json", '{"url": "http://127.0.0.1:7400", "ca": "", "version": "1"}')
    assert held() == {"url": "http://127.0.0.1:7400", "token_file": str(here / "home" / "admin.token")}
    write(here / "machine.toml", 'context = "m"\nteam = "m-team"\n[contexts.m]\nurl = "https://m:1"\n')
    assert held()["url"] == "https://m:1"
    assert "token_file" not in held()
    user_file(here)
    assert (held()["url"], held()["team"], held()["output"]) == ("https://lab:1", "lab-team", "wide")
    write(here / "project" / ".gpuyard.yaml", "context: other\nteam: p-team\n")
    assert (held()["url"], held()["team"]) == ("https://other:1", "p-team")
    monkeypatch.setenv("GPUYARD_CONTEXT", "lab")
    monkeypatch.setenv("GPUYARD_TEAM", "e-team")
    monkeypatch.setenv("GPUYARD_OUTPUT", "json")
    assert (held()["url"], held()["team"], held()["output"]) == ("https://lab:1", "e-team", "json")
    monkeypatch.setenv("GPUYARD_URL", "https://env:1")
    assert held()["url"] == "https://env:1"
    assert held(Flags(context="other"))["url"] == "https://other:1"
    assert held(Flags(url="https://flag:1", team="f"))["url"] == "https://flag:1"


@pytest.mark.parametrize("url", ["ftp://x", "localhost:80", "http://"])
def test_an_address_that_is_none_is_wrong_usage(here: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("GPUYARD_URL", url)
    result = run("ls")
    assert (result.exit_code, "is no address of a server" in result.stderr) == (2, True)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999"])
def test_an_address_to_listen_on_that_is_none_is_wrong_usage(here: Path, address: str) -> None:
    result = run("up", "--listen", address)
    assert (result.exit_code, "is no address" in result.stderr) == (2, True)


def test_paths_in_a_file_count_from_where_it_lies(here: Path) -> None:
    folder = user_file(here).parent
    assert (held()["token_file"], held()["ca"]) == (str(folder / "lab.token"), str(folder / "ca.pem"))


def test_a_token_is_only_sent_to_the_server_it_was_kept_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file(here)
    write(here / "home" / "server.json", '{"url": "http://127.0.0.1:7400", "ca": ""}')
    assert held(Flags(url="https://evil:1")) == {"url": "https://evil:1", "context": "lab", "output": "wide"}
    assert "token_file" in held(Flags(url="https://lab:1"))
    monkeypatch.setenv("GPUYARD_TOKEN", "mine")
    assert held()["token"] == "mine"
    assert "token_file" not in held()
    assert held(Flags(context="other"))["token_file"] == "/keys/other"


def test_a_file_of_a_project_cannot_name_a_server(here: Path) -> None:
    write(here / "project" / ".gpuyard.yaml", "url: https://evil:1\n")
    with pytest.raises(InputError, match="unknown field `url`") as caught:
        resolve()
    assert "gpuyard login" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("context = [1]", "Expected `str`"),
        ("nonsense", "Expected '='"),
        ("colour = 1", "unknown field `colour`"),
        ('context = "lbb"\n[contexts.lab]\nurl = "http://x"', 'there is no context "lbb"; did you mean "lab"?'),
    ],
)
def test_a_broken_file_of_settings_is_told_with_its_name(here: Path, text: str, told: str) -> None:
    path = user_file(here, text)
    with pytest.raises(InputError, match=told.replace("?", ".").replace("[", ".")) as caught:
        resolve()
    assert str(path) in str(caught.value)


def test_the_file_of_settings_can_be_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_CONFIG", str(here / "mine.toml"))
    assert user_config_path() == here / "mine.toml"


def test_a_token_that_cannot_be_read_is_told(here: Path) -> None:
    user_file(here)
    with pytest.raises(NotSignedInError, match="does not exist"):
        resolve().secret()


# ------------------------------------------------------------------------------------------------------------ commands


def test_origins_are_shown_and_secrets_are_not(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user_file(here)
    monkeypatch.setenv("GPUYARD_TOKEN", "very-secret")
    result = run("config", "view", "--show-origin")
    assert result.exit_code == 0
    assert "url = https://lab:1    # context lab" in result.stdout
    assert "token = (hidden)    # GPUYARD_TOKEN" in result.stdout
    assert "* context lab: https://lab:1, team lab-team" in result.stdout
    assert "very-secret" not in run("config", "view", "-o", "json").stdout
    assert json.loads(run("config", "view", "-o", "json").stdout)["settings"]["url"]["origin"] == "context lab"


def test_contexts_are_made_chosen_and_changed(here: Path) -> None:
    assert run("config", "set-context", "a b", "--url", 'https://x:1/"', "--team", "t\u00e9\x7f").exit_code == 0
    assert run("config", "use-context", "a b").exit_code == 0
    file = read_config(user_config_path())
    assert (file.context, file.contexts["a b"].url, file.contexts["a b"].team) == (
        "a b",
        'https://x:1/"',
        "t\u00e9\x7f",
    )
    assert stat.S_IMODE(user_config_path().stat().st_mode) == 0o600
    assert run("config", "use-context", "nope").exit_code == 2
    assert run("config", "set-context", "a b").exit_code == 2


def test_another_address_loses_the_token(here: Path) -> None:
    user_file(here)
    result = run("config", "set-context", "lab", "--url", "https://elsewhere:1")
    assert "was for another server" in result.stderr
    assert read_config(user_config_path()).contexts["lab"].token_file == ""


def test_signing_in_and_out(here: Path, url: str, yard: Yard) -> None:
    assert run("ls").exit_code == 6
    result = run("login", url, "--context", "lab/1", "--team", "vision", input=f"{TOKEN}\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "signed in to lab as ann" in result.stderr
    kept = user_config_path().parent / "tokens" / "lab%2F1"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert TOKEN not in user_config_path().read_text(encoding="utf-8")
    assert run("whoami").exit_code == 0
    run("submit", "--", "date")
    assert yard.asked[-1].json["team"] == "vision"
    assert "still valid" in run("logout").stderr
    assert not kept.exists()
    assert run("whoami").exit_code == 4
    assert run("logout", "nowhere").exit_code == 2


def test_a_token_that_is_not_valid_is_not_kept(here: Path, url: str) -> None:
    assert run("login", url, input="gy_wrong_one\n").exit_code == 4
    assert run("login", url, input="\n").exit_code == 4
    assert not user_config_path().exists()


def test_a_token_can_be_revoked_on_the_way_out(here: Path, url: str, yard: Yard) -> None:
    run("login", url, input=TOKEN)
    assert run("logout", "--revoke").exit_code == 3
    assert yard.asked[-1].path == {"id": "admin"}


# ---------------------------------------------------------------------------------------------------------- exit codes


def test_no_server_ends_with_six_and_says_how_to_start_one(here: Path) -> None:
    result = run("ls")
    assert (result.exit_code, "gpuyard up" in result.stderr) == (6, True)
    result = run("ls", "--url", "http://127.0.0.1:9")
    assert (result.exit_code, "no server answers at http://127.0.0.1:9" in result.stderr) == (6, True)


def test_no_token_ends_with_four(here: Path, url: str) -> None:
    result = run("ls", "--url", url)
    assert (result.exit_code, "gpuyard login" in result.stderr) == (4, True)


def test_a_token_comes_from_a_file(gpuyard: Run, here: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUYARD_TOKEN")
    path = write(here / "token", f"{TOKEN}\n")
    assert gpuyard("ls", "--token-file", path).exit_code == 0
    monkeypatch.setenv("GPUYARD_TOKEN_FILE", str(path))
    assert gpuyard("ls").exit_code == 0


# -------------------------------------------------------------------------------------------------------- the server


@pytest.fixture
def server_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "server.toml"
    monkeypatch.setattr("gpuyard.cli.server_file.SERVER_FILE", path)
    return path


def started_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Settings:
    """What a server would be started with."""
    told: list[Settings] = []
    monkeypatch.setattr("gpuyard.cli.up._run", lambda settings, faces: told.append(settings))
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return told[0]


def test_the_machines_file_says_how_its_server_is_started(server_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_file.write_text(
        'listen = "127.0.0.1:7500"\naccept-shared-user = true\nname = ["a", "b"]\nlease = "90s"\nfake_gpus = 4\n',
        encoding="utf-8",
    )
    settings = started_with(monkeypatch, "up")
    assert (str(settings.listen), str(settings.agents_listen)) == ("127.0.0.1:7500", "127.0.0.1:7501")
    assert (settings.accept_shared_user, settings.names, settings.lease_ms) == (True, ("a", "b"), 90_000)
    assert settings.fake_gpus == 4
    assert settings.max_job_bytes == 1 << 20
    # A flag and a variable are nearer than the file; a server without an agent leaves alone what is about its machine.
    server_file.write_text('listen = "127.0.0.1:7500"\ndatabase = "/srv/a"\nproduct = "H100"\n', encoding="utf-8")
    monkeypatch.setenv("GPUYARD_DATABASE", "/srv/b")
    monkeypatch.setenv("GPUYARD_MAX_JOB_BODY", "512Ki")
    settings = started_with(monkeypatch, "serve", "--listen", "127.0.0.1:7600")
    assert (str(settings.listen), settings.database) == ("127.0.0.1:7600", "/srv/b")
    assert settings.max_job_bytes == 512 << 10


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('max-job-body = "17Mi"', "--max-job-body 17Mi is out of range"),
        ('max-job-body = "1Ki"', "from 64Ki to 16Mi; 1Mi unless given"),
        ('lisen = "127.0.0.1:7500"', 'there is no setting "lisen"; did you mean "listen"?'),
        ('home = "/srv"', 'there is no setting "home"'),
        ("listen = ", "Invalid value"),
        ('listen = "nowhere"', "is no address"),
    ],
)
def test_a_mistake_in_the_machines_file_is_told(server_file: Path, text: str, told: str) -> None:
    server_file.write_text(text, encoding="utf-8")
    result = run("up")
    assert (result.exit_code, told in result.stderr) == (2, True), result.stderr
