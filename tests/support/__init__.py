"""Helpers shared by several test packages. Put `tests` on sys.path and import `support.openssh` and so on."""
