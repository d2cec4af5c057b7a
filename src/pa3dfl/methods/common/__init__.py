"""What several methods build on: slices of a full model, hyper-networks, factored layers."""
