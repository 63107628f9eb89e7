"""The node agent's shell: processes, pages, signals, sockets and files around the pure core."""
