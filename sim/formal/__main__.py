"""``python -m sim.formal [--mutants] [--list] [NAME ...]``: run registered proofs."""

import sys

from sim.cli import Parser, program
from sim.formal.registry import registered
from sim.formal.runner import ProofError


def main() -> int:
    """Returns the number of proofs that failed."""
    parser = Parser(prog="formal", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="proofs to run; default: all")
    parser.add_argument("--mutants", action="store_true", help="check that planted bugs are found")
    parser.add_argument("--list", action="store_true", help="only list the proofs")
    arguments = parser.parse_args()
    proofs = registered()
    unknown = set(arguments.names) - set(proofs)
    if unknown:
        parser.error(f"no proof is called {', '.join(sorted(unknown))}; --list names all")
    failed = 0
    for name in arguments.names or proofs:
        proof = proofs[name]
        if arguments.list:
            print(f"{name}: {proof.mode}, {len(proof.mutants)} mutants")
            continue
        checks = (
            [lambda p=proof, i=i: p.check_mutant(i) for i in range(len(proof.mutants))]
            if arguments.mutants
            else [proof.check]
        )
        for check in checks:
            try:
                check()
            except ProofError as error:
                print(error, file=sys.stderr)
                failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(program("formal", main))
