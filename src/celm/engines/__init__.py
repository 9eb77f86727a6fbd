"""Who runs the clients: this process, worker processes, and how a whole run is carried out."""
