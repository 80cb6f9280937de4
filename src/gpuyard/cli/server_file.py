"""`/etc/gpuyard/server.toml`: how the server of a machine is started where no flag and no variable says otherwise.

Place in the flow: the file ─**server_file**─defaults─▶ flags of `gpuyard up` and `gpuyard serve`. Invariant: the file
can say what flags can, by their names, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

SERVER_FILE: Final = Path("/etc/gpuyard/server.toml")
NOT_IN_FILE: Final = frozenset({"help", "home", "detach"})
"""Where the state is, is said by GPUYARD_HOME, which every command reads."""
OF_ITS_MACHINE: Final = frozenset({"node", "fake_gpus", "product"})
"""Settings for `gpuyard up`, which `gpuyard serve` leaves alone: one file serves both."""


class ServerCommand(click.Command):
    """A command whose flags have their defaults from the machine's file."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 - as click declares it
    ) -> click.Context:
        if not extra.get("resilient_parsing"):
            extra["default_map"] = self._defaults()
        return super().make_context(info_name, args, parent, **extra)

    def _defaults(self) -> dict[str, Any]:
        """By the names of the parameters; the file has those of the flags, with or without dashes."""
        names = {
            flag.removeprefix("--").replace("-", "_"): param.name
            for param in self.params
            for flag in param.opts
            if flag.startswith("--") and param.name and param.name not in NOT_IN_FILE
        }
        told = {key.replace("-", "_"): value for key, value in read_server_file(SERVER_FILE).items()}
        return {_known(key, names): told[key] for key in told if key in names or key not in OF_ITS_MACHINE}


def read_server_file(path: Path) -> dict[str, Any]:
    """What the file says; nothing where there is none."""
    import tomllib

    from gpuyard.errors import InputError, Where

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        fix = "let whoever starts the server read it"
        raise InputError(f"cannot be read: {error.strerror}", where=Where(str(path)), fix=fix) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        fix = 'write flags of gpuyard up without their dashes: listen = "0.0.0.0:7400"'
        raise InputError(str(error), where=Where(str(path)), fix=fix) from None


def _known(key: str, names: dict[str, str]) -> str:
    from gpuyard.errors import InputError, Where
    from gpuyard.files.suggest import did_you_mean

    name = names.get(key)
    if name is None:
        what = f'there is no setting "{key}"{did_you_mean(key, names)}'
        raise InputError(what, where=Where(str(SERVER_FILE)), fix=f"there are: {', '.join(names)}")
    return name
