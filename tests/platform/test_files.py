"""Files that only their owner may read."""

from pathlib import Path

import pytest

from gpuyard.platform.files import write_private


@pytest.mark.parametrize("keep", [True, False])
def test_a_private_file_is_closed_to_others_and_replaces_the_old_one(tmp_path: Path, keep: bool) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new", keep=keep)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"of somebody else")
    (tmp_path / "secret").symlink_to(tmp_path / "other")
    write_private(tmp_path / "secret", b"new")
    assert (tmp_path / "other").read_bytes() == b"of somebody else"
    assert not (tmp_path / "secret").is_symlink()


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "full").touch()
    with pytest.raises(OSError, match="directory"):
        write_private(tmp_path / "folder", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
