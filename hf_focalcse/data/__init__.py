"""Files -> rows -> views."""
