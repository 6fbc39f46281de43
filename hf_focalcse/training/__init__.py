"""The story of a run: the trainer, its engines, checkpoints and memory."""
