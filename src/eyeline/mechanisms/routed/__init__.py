"""Who attends to whom, found in the content: hashing, clusters, sorting, the best keys."""
