"""What benchmarks take on their command lines: what is wrong is one line, before anything runs."""

import argparse


def count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a count: 1, 2, 3, …")
    return int(text)


def width(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a width: a number above 0, at most 1")
    return value
