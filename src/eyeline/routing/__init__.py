"""Who looks at whom, found in the content: hashing, clustering, sorting and picking the best."""

from eyeline.kernels.route import Route as Route
