"""What everything else stands on: trees of tensors, randomness, errors, files, signals. Knows nothing of learning."""
