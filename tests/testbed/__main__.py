"""The testbed's command line: `python -m tests.testbed COMMAND`."""

import argparse
import sys

from tests import testbed
from tests.testbed.console import say
from tests.testbed.errors import ClusterError
from tests.testbed.images.catalog import RECIPES


def prepare() -> None:
    """Everything that tests on a cluster need: the running cluster with all images in it."""
    cluster = testbed.up()
    for recipe in RECIPES:
        cluster.load(recipe.build())
    say(f"images in the cluster: {', '.join(recipe.image for recipe in RECIPES)}")


def _command(arguments: argparse.Namespace) -> None:
    match arguments.command:
        case "up":
            cluster = testbed.up()
            say(f"cluster is up; kubectl: {cluster.tool('kubectl')} --kubeconfig {cluster.kubeconfig}")
        case "down":
            say("cluster removed" if testbed.down() else "there is no cluster of ours to remove")
        case "status":
            print(testbed.backend(quiet=True).status())
        case "kubeconfig":
            print(testbed.backend(quiet=True).kubeconfig())
        case "load-image":
            cluster = testbed.up()
            for name in arguments.name:
                cluster.load_image(name)
        case "images" | "prepare":
            prepare()


def main() -> int:
    """Run one command; return 1 with a message on standard error if it fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed", description="The throw-away cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="start or find the cluster")
    commands.add_parser("down", help="remove it and every trace of it")
    commands.add_parser("status", help="say in one line how it is")
    commands.add_parser("kubeconfig", help="print the path of its kubeconfig")
    commands.add_parser("images", help="build all images and load them into it")
    commands.add_parser("prepare", help="all that the tests on a cluster need: the cluster and the images")
    load = commands.add_parser("load-image", help="load images that were built here into it")
    load.add_argument("name", nargs="+")
    try:
        _command(parser.parse_args())
    except ClusterError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
