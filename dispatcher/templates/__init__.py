"""What a job is started from: training scripts, launcher scripts and command lines."""
