"""Many runs: grids of settings and seeds, and what may be concluded from them."""
