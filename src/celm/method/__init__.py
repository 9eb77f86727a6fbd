"""The paper as pure functions: tensors in, tensors out; no files, no settings, no loop over rounds."""
