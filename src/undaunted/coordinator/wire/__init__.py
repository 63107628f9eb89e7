"""Messages over TCP between agents that know the job's token: frames, handshake, server, client."""
