"""The command line. The only package that prints, knows typer and rich, or ends the process."""


def main() -> None:
    """The `clusterctl` program."""
    from clusterctl.cli.app import run

    run()
