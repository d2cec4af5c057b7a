"""What several methods share: widths, heads, slices of models, weights in factors, the hyper-network.

Uses models and core, and knows no method.
"""
