"""Run an experiment from start to end: run folder, checkpoints, loop over rounds."""
