"""The job classes, each adding one concern; a job inherits from the first that does what it needs."""
