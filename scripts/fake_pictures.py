"""The pictures of docs/fake-gpus.md, made from what the commands really print: `python -m scripts.fake_pictures`.

Needs nvitop beside the tools of the project. Only the names of folders are replaced in them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import sleep

from rich.text import Text

from scripts.terminal import a_command, draw_terminal

GPUYARD = [sys.executable, "-c", "from gpuyard.cli.main import main; main()"]
COLUMNS = 124
TASKS = (
    (0, "60GiB", "[{utilization: 97}]"),
    (1, "60GiB", "[{utilization: 94}]"),
    (2, "12GiB", "[{utilization: 35}]"),
)
SETTLE_S = 40.0
"""So long that the GPUs are warm."""


def main() -> None:
    if shutil.which("nvitop") is None:
        raise SystemExit("nvitop is not here: python -m pip install nvitop")
    with tempfile.TemporaryDirectory(prefix="fake-") as folder:
        home = Path(folder)
        os.environ.update(GPUYARD_FAKE_HOME=str(home), COLUMNS=str(COLUMNS))
        up = gpuyard("up", "--gpus", "4", "--product", "A100", "--port", "9400")
        programs = [subprocess.Popen(task_command(*task)) for task in TASKS]
        try:
            sleep(SETTLE_S)
            draw_pictures(up, home)
        finally:
            for program in programs:
                program.kill()
                program.wait()
            gpuyard("down")


def task_command(gpu: int, memory: str, profile: str) -> list[str]:
    on = ["--gpu", str(gpu), "--memory", memory, "--profile", profile]
    return [*GPUYARD, "fake", "run", *on, "--", "python3", "-c", "import time; time.sleep(600)"]


def draw_pictures(up: str, home: Path) -> None:
    fault = gpuyard("fault", "node-1", "3", "xid:79", "--for", "5m")
    status = gpuyard("status")
    gpuyard("heal", "node-1", "3")
    session = [("gpuyard fake up --gpus 4 --product A100", up), ("gpuyard fake fault node-1 3 xid:79 --for 5m", fault)]
    draw("fake-status.svg", [*session, ("gpuyard fake status", status)], home)
    draw("fake-nvitop.svg", [('eval "$(gpuyard fake env)"', ""), ("nvitop -1", seen("nvitop -1 --force-color"))], home)
    draw("fake-nvidia-smi.svg", [("nvidia-smi", seen("nvidia-smi"))], home)


def gpuyard(*arguments: str) -> str:
    done = subprocess.run([*GPUYARD, "fake", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def seen(command: str) -> str:
    """What a command prints in a shell that sees the fake GPUs."""
    script = f"{gpuyard('env')}\n{command}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout


def draw(name: str, session: list[tuple[str, str]], home: Path) -> None:
    lines: list[Text] = []
    for command, output in session:
        lines.append(a_command(command))
        if output:
            lines.append(Text.from_ansi(without_places(output, home).rstrip()))
    draw_terminal(name, "fake GPUs", lines, COLUMNS)


def without_places(text: str, home: Path) -> str:
    return text.replace(str(home), "/run/user/1000/gpuyard-fake").replace(str(Path.home()), "~")


if __name__ == "__main__":
    main()
