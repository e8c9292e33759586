# SPDX-License-Identifier: MIT
"""`cmake --install` into a folder that is then moved: its content, and that server, command line,
C++ library and Python package work from there without any other file of filetimer.
"""
import ast
import glob
import os
import re
import unittest

import suite
from installed import BUILD, PYTHON_WORKER, SOURCE, VERSION, Case, files_below, run
from records import records

COMPONENTS = ("server", "client", "dev", "python", "doc")
LIBDIR = os.environ["LIBDIR"]
PYTHON = os.environ["PACKAGE_PYTHON"]


def install(prefix, *options):
    run(os.environ["CMAKE"], "--install", BUILD, "--prefix", prefix, *options)


class Tree(Case):
    def setUp(self):
        super().setUp()
        install(self.path("before"))
        os.rename(self.path("before"), self.path("moved"))
        self.prefix = self.path("moved")
        # A PATH without this build or an earlier installation.
        self.environment = {"PATH": self.path("moved", "bin"), "HOME": self.folder}

    def serve(self, *command, status=0, **environment):
        """Runs `timer_server -- COMMAND` of the installation. Returns the output of both."""
        return run(self.path("moved", "bin", "timer_server"), "--dir", self.path("run"), "--",
                   *command, status=status, env={**self.environment, **environment}, cwd="/")

    def test_files_are_where_people_look_for_them(self):
        files = files_below(self.prefix)
        expected = {
            "bin/timer_server", "bin/timer_client", "libexec/filetimer/filetimer-stacks",
            f"{LIBDIR}/libfiletimer_client.a", f"{LIBDIR}/libfiletimer_admin.a",
            f"{LIBDIR}/libfiletimer_common.a", f"{LIBDIR}/pkgconfig/filetimer.pc",
            f"{LIBDIR}/pkgconfig/filetimer-admin.pc",
            f"{LIBDIR}/cmake/filetimer/filetimer-config.cmake",
            f"{LIBDIR}/cmake/filetimer/filetimer-config-version.cmake",
            "libexec/filetimer/evidence.d/flight-recorder", "libexec/filetimer/evidence.d/nvidia",
            "libexec/filetimer/evidence.d/py-spy",
            "share/man/man1/timer_client.1", "share/man/man7/filetimer.7",
            "share/man/man8/timer_server.8",
            "share/bash-completion/completions/timer_client",
            "share/bash-completion/completions/timer_server",
            "share/doc/filetimer/README.md", "share/doc/filetimer/CHANGELOG.md",
            "share/doc/filetimer/LICENSE", "share/doc/filetimer/THIRD-PARTY",
            "share/doc/filetimer/examples/post_webhook"}
        expected |= {f"share/filetimer/examples/{name}" for name in (
            "evidence_nccl", "post_webhook", "requeue_slurm_job", "server_per_node", "slurm_job")}
        expected |= {f"include/filetimer/{os.path.basename(header)}"
                     for header in glob.glob(f"{SOURCE}/timer_client/include/filetimer/*")}
        expected |= {f"share/doc/filetimer/docs/{os.path.basename(document)}"
                     for document in glob.glob(f"{SOURCE}/docs/*.md")}
        self.assertEqual(expected - files, set())
        self.assertEqual({name for name in files if "__pycache__" in name}, set())

    def test_a_file_belongs_to_one_component(self):
        whole = files_below(self.prefix)
        seen = {}
        for component in COMPONENTS:
            install(self.path(component), "--component", component)
            for name in files_below(self.path(component)):
                self.assertIn(name, whole)
                self.assertNotIn(name, seen, f"in {component} too")
                seen[name] = component
        self.assertEqual(whole - set(seen), set(), "in no component: in no package")

    def test_no_file_to_read_knows_a_folder_of_the_build(self):
        for name in files_below(self.prefix):
            with open(os.path.join(self.prefix, name), "rb") as file:
                content = file.read()
            if b"\0" not in content:  # text only: debug information names sources
                for folder in (BUILD, SOURCE, self.path("before")):
                    self.assertNotIn(folder.encode() + b"/", content, name)

    def test_what_the_documents_link_to_is_there(self):
        doc = os.path.join(self.prefix, "share", "doc", "filetimer")
        checked = 0
        for name in files_below(doc):
            if name.endswith(".md"):
                with open(os.path.join(doc, name)) as file:
                    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", file.read())
                for link in links:
                    there = os.path.join(doc, os.path.dirname(name), link)
                    self.assertTrue(os.path.exists(there), f"{name}: {link}")
                checked += len(links)
        self.assertGreater(checked, 20)

    def build_with_cmake(self):
        run(os.environ["CMAKE"], "-S", os.path.join(os.path.dirname(__file__), "consumer"),
            "-B", self.path("build"), f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_CXX_COMPILER={os.environ['CXX']}")
        run(os.environ["CMAKE"], "--build", self.path("build"))
        return self.path("build")

    def build_with_pkg_config(self):
        environment = {**os.environ, "PKG_CONFIG_PATH": f"{self.prefix}/{LIBDIR}/pkgconfig"}
        for package, source, program in (("filetimer", "main.cpp", "consumer"),
                                         ("filetimer-admin", "admin.cpp", "admin")):
            flags = run("pkg-config", "--cflags", "--libs", package, env=environment).split()
            self.assertEqual(run("pkg-config", "--modversion", package, env=environment),
                             VERSION + "\n")
            run("pkg-config", "--static", "--libs", package, env=environment)
            run(os.environ["CXX"], "-std=c++20",
                os.path.join(os.path.dirname(__file__), "consumer", source), *flags,
                "-o", self.path(program))
        return self.path()

    def check_consumers(self, folder):
        consumer, admin = os.path.join(folder, "consumer"), os.path.join(folder, "admin")
        self.assertIn("left in time\n", self.serve(consumer, "leave"))
        self.assertIn("answered: 0 open\n", self.serve(admin))
        for program, needs_parser in ((consumer, False), (admin, True)):
            self.assertEqual("simdjson" in run("readelf", "-d", program), needs_parser, program)
        self.serve(consumer, "hang", status=128 + 9)
        log = records([self.path("run", "expired.jsonl")])
        by_event = {record["event"]: record for record in log}
        self.assertEqual(by_event["expired"]["scope"], "consumed")
        self.assertEqual(by_event["killed"]["verdict"], "dead")
        self.assertIn("flight-recorder",
                      by_event["server_started"]["settings"]["evidence_drop_ins"])
        # The helper for native stacks is an installed program, too.
        self.assertNotIn("filetimer-stacks", str(by_event["evidence"]))
        shown = run("timer_client", "show", "last", "--dir", self.path("run"),
                    env=self.environment)
        self.assertIn("hung in `consumed`", shown)

    def test_a_worker_that_finds_the_library_by_cmake(self):
        self.check_consumers(self.build_with_cmake())

    def test_a_worker_that_finds_the_library_by_pkg_config(self):
        self.check_consumers(self.build_with_pkg_config())

    def test_another_version_is_not_taken_for_this_one(self):
        major, minor = map(int, VERSION.split(".")[:2])
        for wanted in (f"{major}.{minor + 1}", str(major + 1)):
            with open(self.path("ask.cmake"), "w") as file:
                file.write(f"set(filetimer_DIR {self.prefix}/{LIBDIR}/cmake/filetimer)\n"
                           f"find_package(filetimer {wanted} CONFIG QUIET)\n"
                           "message(\"${filetimer_FOUND} ${filetimer_CONSIDERED_VERSIONS}\")\n")
            self.assertEqual(run(os.environ["CMAKE"], "-P", self.path("ask.cmake")),
                             f"0 {VERSION}\n", wanted)

    @unittest.skipUnless(PYTHON, "the build has no Python package")
    def test_the_python_package_finds_the_installed_server(self):
        [package] = glob.glob(self.path("moved", "lib", "python3*", "*-packages"))
        # Server() leaves its cleanup to a shell.
        environment = {"PATH": self.environment["PATH"] + ":/usr/bin:/bin", "HOME": self.folder,
                       "PYTHONPATH": package}
        out = run(PYTHON, "-c", PYTHON_WORKER, cwd="/", env=environment)
        self.assertEqual(out, f"{VERSION} 1\n")
        known = run(PYTHON, "-c", "import importlib.metadata as m; print(m.version('filetimer'))",
                    cwd="/", env=environment)
        self.assertEqual(known, VERSION + "\n")


class Version(unittest.TestCase):
    def test_it_is_the_same_everywhere(self):
        for program in ("timer_server", "timer_client"):
            self.assertEqual(run(os.path.join(BUILD, "bin", program), "--version"),
                             f"{program} {VERSION}\n")
        with open(f"{SOURCE}/timer_client/python/filetimer/__init__.py") as file:
            [line] = re.findall(r"^__version__ = (.*)$", file.read(), re.MULTILINE)
        self.assertEqual(ast.literal_eval(line), VERSION)


if __name__ == "__main__":
    suite.main()
