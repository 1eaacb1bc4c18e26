"""The live page: the published states of the processes on this machine, in a browser, on loopback only."""
