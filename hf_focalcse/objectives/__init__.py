"""What a training step computes: an objective turns the views of a batch into a scalar."""
