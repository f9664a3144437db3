"""The kernels, in the order in which ``auto`` tries them. Each has NAME, refusal and run."""

from eyeline.kernels import decode, flex, reference, sdpa, tiles

# tiles serve everything: what stands after them is served by name only.
KERNELS = (decode, sdpa, tiles, flex, reference)
