"""Many runs: grids of settings and seeds, comparisons and reports of their results, and what is in their batches."""
