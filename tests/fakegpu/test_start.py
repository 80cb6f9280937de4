"""A command about fake GPUs starts without loading the scheduling core."""

import subprocess
import sys


def test_the_fake_gpus_do_not_load_the_core() -> None:
    program = (
        "import gpuyard.fakegpu.daemon, sys; print(*[name for name in sys.modules if 'gpuyard.scheduler' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
