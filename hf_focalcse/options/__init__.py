"""What can be asked for: each option is one dataclass field whose metadata say how the rest of the package treats it.

To add an option of training, write one field in `training.py` and use it where it applies. The command line, recipes
and grids, the check of its range, run.json, the checks on resuming, sweeping and comparing, and what is published
follow from the field (see `tables.py`).
"""
