"""``spark-jetstream doctor``: checks of everything that a job needs."""
