"""validate"""

import click


@click.command()
def validate() -> None:
    pass
