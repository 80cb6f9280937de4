"""gpuyard shares a GPU cluster between teams: one scheduling core decides who runs where, and says why."""

__version__ = "0.1.0"
