"""The kernels, in the order in which ``auto`` tries them. Each has NAME, refusal and run."""

from eyeline.kernels import decode, reference, sdpa, tiles

KERNELS = (decode, sdpa, tiles, reference)
