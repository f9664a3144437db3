"""Fewer keys: learned sums, convolutions, pools and centroids in place of all of them."""
