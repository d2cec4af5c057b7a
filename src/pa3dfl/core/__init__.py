"""What every other package uses: options, trees of tensors, randomness, files, signals, errors, messages, progress.

Imports no other room and knows nothing of learning.
"""
