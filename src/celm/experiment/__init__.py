"""The settings of an experiment: typed tables, presets, a commented template."""
