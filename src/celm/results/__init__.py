"""Results of folders as objects, read-only: runs, comparisons, studies, audits and live federations."""
