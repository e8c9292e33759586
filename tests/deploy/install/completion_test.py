# SPDX-License-Identifier: MIT
"""bash completion, called as bash does: a line with the cursor at its end, and the offered
words."""
import os
import re
import subprocess
import unittest

import suite
from installed import CLIENT, SERVER, SOURCE, Case, options_of, run, subcommands
from records import wait_for_record

COMPLETION = os.path.join(SOURCE, "scripts", "packaging", "completion.bash")
# Words as bash splits a line: `=` and `:` are separate words.
SCRIPT = r"""
set -u
. "$1"
COMP_LINE=$2
COMP_WORDS=()
while IFS= read -r word; do COMP_WORDS+=("$word"); done <<<"$3"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
COMP_POINT=${#COMP_LINE}
"_$(basename "${COMP_WORDS[0]}")"
printf '%s\n' "${COMPREPLY[@]}"
"""


class Completion(Case):
    def offered(self, line, program=None):
        """Returns what bash offers at the end of `line`, with the program of the build."""
        program = program or os.path.join(os.path.dirname(SERVER), line.split()[0])
        words = re.findall(r"=|:+|[^\s=:]+", line)
        if line[-1] == " ":
            words.append("")
        words[0] = program
        out = run("bash", "-c", SCRIPT, "bash", COMPLETION, line, "\n".join(words),
                  cwd=self.folder, env={**os.environ, "FILETIMER_DIR": self.path("run")})
        return set(out.splitlines()) - {""}

    def test_every_option_of_the_server(self):
        self.assertEqual(self.offered("timer_server --"), set(options_of(SERVER)))
        self.assertEqual(self.offered("timer_server "), set(options_of(SERVER)) | {"--"})
        self.assertEqual(self.offered("timer_server --ev"),
                         {"--evidence", "--evidence-command", "--evidence-dir", "--evidence-timeout"})

    def test_every_subcommand_and_each_option_of_them(self):
        self.assertEqual(self.offered("timer_client "), set(subcommands()))
        self.assertEqual(self.offered("timer_client --"), set(options_of(CLIENT)))
        self.assertEqual(self.offered("timer_client re"), {"release", "rendezvous", "report"})
        for name in subcommands():
            self.assertEqual(self.offered(f"timer_client {name} --"),
                             set(options_of(CLIENT, name)), name)

    def test_choices(self):
        choices = {option: value.split("|") for option, value in options_of(SERVER).items()
                   if re.fullmatch(r"[a-z|]+", value)}
        self.assertGreaterEqual(len(choices), 3)
        for option, values in choices.items():
            self.assertEqual(self.offered(f"timer_server {option} "), set(values))
            self.assertEqual(self.offered(f"timer_server {option}="), set(values))
            self.assertEqual(self.offered(f"timer_server {option}={values[0][:2]}"), {values[0]})
        self.assertEqual(self.offered("timer_server --grace "), {"off"})
        said = run(CLIENT, "shutdown", "--mode", "?", status=2)
        modes = set(re.search("expected one of (.*)", said)[1].split(", "))
        self.assertEqual(len(modes), 6)
        self.assertEqual(self.offered("timer_client shutdown --mode "), modes)
        self.assertEqual(self.offered("timer_client shutdown --mode=i"), {"if_idle"})
        said = run(CLIENT, "suggest", "--format", "?", status=2)
        formats = set(re.search("expected one of (.*)", said)[1].split(", "))
        self.assertIn("toml", formats)
        self.assertEqual(self.offered("timer_client suggest --format "), formats)
        levels = {"error", "warning", "info", "debug"}
        self.assertEqual(self.offered("timer_server --log-level "), levels)
        self.assertEqual(self.offered("timer_client list --log-level "), levels)
        for level in levels:
            run(CLIENT, "log", "--log-level", level, os.devnull)
        signals = self.offered("timer_client run --signal ")
        self.assertLessEqual({"TERM", "USR1"}, signals)
        self.assertFalse({"RTMIN", "IO", "JUNK(32)"} & signals)
        self.assertEqual(self.offered("timer_client run --signal TER"), {"TERM"})

    def test_events(self):
        said = run(CLIENT, "log", "--event", "?", status=2)
        known = set(re.search("expected one of (.*)", said)[1].split(", "))
        self.assertIn("expired", known)
        self.assertEqual(self.offered("timer_client log --event "), known)

    def test_files_folders_and_processes(self):
        os.makedirs(self.path("place with blanks"))
        with open(self.path("plain.jsonl"), "w"):
            pass
        self.assertEqual(self.offered("timer_server --dir pl"), {"place with blanks"})
        self.assertEqual(self.offered("timer_server --log pl"),
                         {"place with blanks", "plain.jsonl"})
        for subcommand in ("log", "suggest"):
            self.assertEqual(self.offered(f"timer_client {subcommand} pl"),
                             {"place with blanks", "plain.jsonl"})
        for option in ("--output", "-o"):
            self.assertEqual(self.offered(f"timer_client report {option} pl"),
                             {"place with blanks", "plain.jsonl"})
        self.assertIn(str(os.getpid()), self.offered("timer_client acquire --pid "))

    def test_a_command_is_not_taken_for_ours(self):
        for line in ("timer_server --dry-run -- ", "timer_client run --timeout 2s -- "):
            self.assertEqual(self.offered(line + "sle") & {"sleep", "--sleep"}, {"sleep"})
            self.assertEqual(self.offered(line + "sleep --dr"), set())

    def test_scopes_and_ids_of_the_log_and_of_the_server(self):
        worker = subprocess.Popen(["sleep", "1000"])
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        server = subprocess.Popen([SERVER, "--dir", self.path("run")], stdout=subprocess.PIPE)
        self.addCleanup(server.communicate)
        self.addCleanup(server.terminate)
        server.stdout.readline()
        for name in ("still open", "load:data"):
            run(CLIENT, "acquire", "--dir", self.path("run"), "--scope", name, "--timeout", "1h",
                "--pid", str(worker.pid))
        run(CLIENT, "run", "--dir", self.path("run"), "--scope", "too slow", "--timeout", "100ms",
            "--", "sleep", "1000", status=124)
        run(CLIENT, "ping", "--dir", self.path("run"))
        wait_for_record(self, self.path("run/expired.jsonl"), "killed")
        ids = self.offered("timer_client show ")
        self.assertIn("last", ids)
        [expiry] = ids - {"last"}
        self.assertIn("too slow", run(CLIENT, "show", expiry, "--dir", self.path("run")))
        self.assertEqual(self.offered(f"timer_client show --json {expiry[:3]}"), {expiry})
        for line in ("timer_client report ", "timer_client report -o hang.html "):
            self.assertEqual(self.offered(line), ids)
        # Logs follow the id.
        self.assertIn("run", self.offered(f"timer_client show {expiry} "))
        self.assertIn("run", self.offered(f"timer_client report {expiry} "))
        self.assertEqual(self.offered("timer_client log --scope "), {r"too\ slow"})
        self.assertEqual(self.offered("timer_client release --scope "), {r"still\ open", "load:data"})
        for typed in ("load:", "load:d"):
            self.assertEqual(self.offered(f"timer_client release --scope {typed}"), {"data"})
            self.assertEqual(self.offered(f"timer_client release --scope={typed}"), {"data"})
        elsewhere = "timer_client release --dir /nonexistent --scope "
        self.assertEqual(self.offered(elsewhere), set())

    def test_a_program_that_is_not_there_is_no_error(self):
        self.assertEqual(self.offered("timer_server --", "/nonexistent/timer_server"), set())
        self.assertEqual(self.offered("timer_client ", "/nonexistent/timer_client"), set())


if __name__ == "__main__":
    suite.main()
