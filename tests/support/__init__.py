"""What tests of several packages share. Put `tests` on sys.path and import `support.openssh` and so on."""
