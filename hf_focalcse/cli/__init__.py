"""The command line: main.py has one row for each command, and one file for each has its options and its job."""
