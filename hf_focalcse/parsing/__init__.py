"""Command line and recipes -> settings: the parser, the recipes, the flags of older scripts."""
