"""What everything may use, the runtime included: files, YAML, values, hosts and processes."""
