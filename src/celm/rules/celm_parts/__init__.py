"""Parts of the rule `celm` that Algorithm 1 leaves open or that extend it, one per file."""
