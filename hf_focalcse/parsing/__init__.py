"""Command line, recipes and flags of older scripts -> the frozen `Settings` of a run."""
