"""The round: sampling, training, guarding, aggregating, testing, keeping."""
