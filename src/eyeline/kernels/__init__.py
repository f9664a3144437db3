"""The kernels, in the order in which ``auto`` tries them. Each has NAME, refusal and run."""

from eyeline.kernels import decode, flex, reference, sdpa, short, tiles

# Tiles serve every pattern, the reference every request: flex is used by name only.
KERNELS = (decode, sdpa, short, tiles, reference, flex)
