"""Whether and how a model or program of one framework equals its twin in another: files, traces, conversion, parity."""
