"""The measures by which a run is judged."""
