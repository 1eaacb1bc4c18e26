"""The live page: what the processes of this machine publish about themselves, in a browser, on loopback only."""
