"""Tests with Vagrant itself: `make test-vagrant`."""
