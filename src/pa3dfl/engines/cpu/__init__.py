"""The CPU engine: several clients at once, one thread each; TorchScript makes their steps faster."""
