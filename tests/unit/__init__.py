"""Tests of one package each, in process, with fakes of the clock, the spawner and the transport at most."""
