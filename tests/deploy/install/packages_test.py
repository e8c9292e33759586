# SPDX-License-Identifier: MIT
"""The Debian packages: their content, and that they install, work and are removed completely.

CPack makes them from this build. $FILETIMER_PACKAGES names a folder with other packages to test,
such as build/package, which `cmake --build --preset package` fills; lintian, if installed, checks
these, too. With $FILETIMER_TEST_DEBOOTSTRAP=1 apt also installs them in a new Debian, which takes a
network, root and some minutes.
"""
import glob
import gzip
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import suite
from installed import BUILD, PYTHON_WORKER, SOURCE, VERSION, Case, can_mount, files_below, run
from records import records

GIVEN = os.environ.get("FILETIMER_PACKAGES")
PYTHON = os.environ["PACKAGE_PYTHON"]
NAMES = {"filetimer-server", "filetimer-client", "libfiletimer-dev", "filetimer-doc"}
if PYTHON:
    NAMES.add("python3-filetimer")
CONSUMER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "consumer", "main.cpp")
APT = ("apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0")

# The programs that the maintainer scripts of the server call, on a system that runs systemd.
CALLED_BY_SCRIPTS = ("deb-systemd-helper", "deb-systemd-invoke", "systemctl")
UNDER_SYSTEMD = "mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec \"$@\""


class Packages(Case):
    @classmethod
    def setUpClass(cls):
        if GIVEN:
            cls.packages = os.path.join(SOURCE, GIVEN)
        else:
            cls.packages = tempfile.mkdtemp(prefix="filetimer-packages-")
            cls.addClassCleanup(shutil.rmtree, cls.packages, ignore_errors=True)
            run(os.environ["CPACK"], "-G", "DEB", "-B", cls.packages,
                "--config", os.path.join(BUILD, "CPackConfig.cmake"), umask=0o077)
        cls.debs = {os.path.basename(path).partition("_")[0]: path
                    for path in glob.glob(os.path.join(cls.packages, "*.deb"))}

    def field(self, package, name):
        return run("dpkg-deb", "-f", self.debs[package], name).strip()

    def unpack(self, package):
        run("dpkg-deb", "-x", self.debs[package], self.path(package))
        return files_below(self.path(package))

    def test_there_is_one_for_each_part(self):
        self.assertEqual(set(self.debs), NAMES)
        for package in NAMES:
            self.assertEqual(self.field(package, "Version"), VERSION)
            self.assertEqual(self.field(package, "Maintainer").split(" <")[0],
                             "The filetimer authors")

    def test_each_depends_on_what_it_is_linked_with(self):
        shared = {"libfmt", "libsimdjson"} if os.environ["STATIC"] == "OFF" or GIVEN else {"libstdc++6"}
        needs = {"filetimer-server": {"libc6", *shared - {"libsimdjson"}},
                 "filetimer-client": {"libc6", *shared},
                 "libfiletimer-dev": {"libsimdjson-dev"},
                 "python3-filetimer": {"python3", "libstdc++6"},
                 "filetimer-doc": set()}
        for package in NAMES:
            depends = [each.split()[0] for each in self.field(package, "Depends").split(", ")
                       if each]
            for need in needs[package]:
                self.assertTrue([each for each in depends if each.startswith(need)],
                                f"{package} needs {need}, and has {depends}")
        self.assertEqual(self.field("filetimer-doc", "Architecture"), "all")

    def test_each_has_what_debian_asks_for(self):
        for package in NAMES:
            files = self.unpack(package)
            doc = f"usr/share/doc/{package}"
            self.assertIn(f"{doc}/copyright", files)
            with open(self.path(package, doc, "copyright")) as file:
                self.assertIn("without restriction, including without limitation", file.read())
            with gzip.open(self.path(package, doc, "changelog.gz"), "rt") as file:
                self.assertTrue(file.read().startswith(f"filetimer ({VERSION}) "))
            for name in files:
                if "/man/" in name:
                    with gzip.open(self.path(package, name), "rt") as file:
                        self.assertIn(".Dt ", file.read())
            self.assertEqual({name for name in files if not name.startswith("usr/")}, set())

    def test_every_user_may_read_it(self):
        for package in NAMES:
            for line in run("dpkg-deb", "-c", self.debs[package]).splitlines():
                self.assertRegex(line, "^(drwxr-xr-x|-rw[x-]r-[x-]r-[x-]|lrwxrwxrwx) root/root ", package)

    def test_nothing_has_debug_information(self):
        checked = 0
        for package in NAMES:
            for name in self.unpack(package):
                path = self.path(package, name)
                if not (name.endswith((".so", ".a")) or os.access(path, os.X_OK)):
                    continue
                with open(path, "rb") as file:
                    if file.read(4) not in (b"\x7fELF", b"!<ar"):
                        continue
                self.assertNotIn(".debug_info", run("readelf", "-S", "-W", path), name)
                checked += 1
        self.assertGreaterEqual(checked, 5)

    def test_unpacked_they_work_where_they_are(self):
        for package in NAMES:
            run("dpkg-deb", "-x", self.debs[package], self.path("all"))
        self.check_programs(self.path("all"))

    def check_programs(self, root):
        """A worker that hangs is killed, with its stacks, and one that ends in time is not."""
        server = os.path.join(root, "usr/bin/timer_server")
        client = os.path.join(root, "usr/bin/timer_client")
        folder = self.path("run")
        environment = {"PATH": "/usr/bin:/bin", "HOME": self.folder}
        run(server, "--dir", folder, "--", client, "run", "--timeout", "1m", "--", "true",
            env=environment)
        run(server, "--dir", folder, "--", client, "run", "--timeout", "100ms", "--scope", "slow",
            "--", "sleep", "1000", env=environment, status=124)
        by_event = {record["event"]: record for record in
                    records([os.path.join(folder, "expired.jsonl")])}
        self.assertEqual(by_event["killed"]["verdict"], "dead")
        self.assertNotIn("filetimer-stacks", str(by_event["evidence"]))

    def empty_system(self):
        """Returns the root of a new system, and the dpkg command for it."""
        root = self.path("root")
        database = os.path.join(root, "var/lib/dpkg")
        os.makedirs(os.path.join(database, "updates"))
        os.makedirs(os.path.join(database, "info"))
        for name in ("status", "available"):
            with open(os.path.join(database, name), "w"):
                pass
        # A small image may tell dpkg to leave out man pages and documentation.
        return root, ("dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless",
                      "--path-include=*", f"--log={self.path('log')}")

    @unittest.skipUnless(os.geteuid() == 0, "only root may install")
    def test_dpkg_installs_them_and_leaves_nothing_behind(self):
        root, dpkg = self.empty_system()
        run(*dpkg, "-i", *self.debs.values())
        self.assertIn("usr/share/man/man1/timer_client.1.gz", files_below(root))
        self.assertIn("usr/libexec/filetimer/filetimer-stacks", files_below(root))
        self.assertIn("usr/libexec/filetimer/evidence.d/nvidia", files_below(root))
        self.check_programs(root)
        run(*dpkg, "--purge", *self.debs)
        self.assertEqual({name for name in files_below(root)
                          if not name.startswith("var/lib/dpkg/")}, set())
        self.assertEqual(set(os.listdir(root)), {"var"})

    @unittest.skipUnless(os.geteuid() == 0, "only root may install")
    @unittest.skipUnless(shutil.which("systemctl") and shutil.which("deb-systemd-helper"),
                         "no systemctl or no deb-systemd-helper here")
    def test_units_are_not_enabled_by_installing_and_those_that_were_go_with_a_purge(self):
        root, dpkg = self.empty_system()
        server = self.debs["filetimer-server"]
        units = os.path.join(root, "etc", "systemd")
        run(*dpkg, "-i", server)
        self.assertFalse(os.path.exists(units))
        for manager in ("--system", "--global"):
            run("systemctl", f"--root={root}", manager, "enable", "timer_server.service",
                "timer_server@job.service")
        enabled = files_below(units)
        self.assertEqual(len(enabled), 2 * 2 * 2, enabled)  # managers, services, with sockets
        run(*dpkg, "-i", server)
        run(*dpkg, "--remove", "filetimer-server")
        self.assertEqual(files_below(units), enabled)
        run(*dpkg, "-i", server)
        self.assertEqual(files_below(units), enabled)
        run(*dpkg, "--purge", "filetimer-server")
        self.assertEqual({name for name in files_below(root)
                          if not name.startswith("var/lib/dpkg/")}, set())

    @unittest.skipUnless(can_mount(), "unshare(1) makes no namespace here in which to mount")
    def test_a_server_that_runs_is_restarted_by_an_upgrade_and_stopped_by_a_removal(self):
        run("dpkg-deb", "-e", self.debs["filetimer-server"], self.path("scripts"))
        for name in CALLED_BY_SCRIPTS:
            with open(self.path(name), "w") as file:
                file.write('#!/bin/sh\necho "${0##*/} $*" | grep -v ^deb-systemd-helper >&2\n')
            os.chmod(self.path(name), 0o755)

        def calls(script, *words):
            return run("unshare", "--mount", "sh", "-ec", UNDER_SYSTEMD, "sh",
                       self.path("scripts", script), *words,
                       env={"PATH": f"{self.folder}:/usr/bin:/bin:/usr/sbin:/sbin"}).splitlines()

        reload = "systemctl --system daemon-reload"
        every = ("timer_server.socket timer_server.service "
                 "timer_server@*.socket timer_server@*.service")
        self.assertEqual(calls("postinst", "configure", ""), [reload])
        self.assertEqual(calls("prerm", "upgrade", "9"), [])
        self.assertEqual(calls("postinst", "configure", "0.0.1"), [
            reload,
            "deb-systemd-invoke try-restart timer_server.service timer_server@*.service"])
        self.assertEqual(calls("prerm", "remove"), [f"deb-systemd-invoke --system stop {every}",
                                                    f"deb-systemd-invoke --user stop {every}"])
        self.assertEqual(calls("postrm", "remove"), [reload])

    def test_man_pages_that_a_page_refers_to_come_with_it(self):
        pages = {package: {os.path.basename(name)[:-len(".gz")]: self.path(package, name)
                           for name in self.unpack(package) if "/man/" in name}
                 for package in NAMES}
        ours = set().union(*pages.values())
        checked = 0
        for package, in_package in pages.items():
            fields = self.field(package, "Depends") + ", " + self.field(package, "Recommends")
            near = set(in_package).union(
                *(pages.get(each.split()[0], ()) for each in fields.split(", ") if each))
            for path in in_package.values():
                with gzip.open(path, "rt") as file:
                    wanted = {".".join(words) for words in re.findall(
                        r"^\.Xr (\S+) (\d)", file.read(), re.MULTILINE)} & ours
                self.assertEqual(wanted - near, set(), path)
                checked += len(wanted)
        self.assertGreater(checked, 3)

    @unittest.skipUnless(GIVEN and shutil.which("lintian"),
                         "no $FILETIMER_PACKAGES, or no lintian here")
    def test_lintian_finds_no_error(self):
        done = subprocess.run(["lintian", *self.debs.values()], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, universal_newlines=True)
        self.assertEqual([line for line in done.stdout.splitlines() if line[:2] in ("E:", "W:")],
                         [])

    @unittest.skipUnless(os.environ.get("FILETIMER_TEST_DEBOOTSTRAP") == "1",
                         "no FILETIMER_TEST_DEBOOTSTRAP=1")
    def test_apt_installs_them_in_a_debian_of_their_own(self):
        root = self.path("debian")
        with open("/etc/os-release") as file:
            release = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
        run("debootstrap", "--variant=minbase", release["VERSION_CODENAME"], root)
        os.mkdir(os.path.join(root, "debs"))
        for deb in self.debs.values():
            shutil.copy(deb, os.path.join(root, "debs"))
        shutil.copy(CONSUMER, os.path.join(root, "debs"))
        shutil.copy("/etc/resolv.conf", os.path.join(root, "etc"))
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C",
                       "DEBIAN_FRONTEND": "noninteractive"}

        def inside(*command, **options):
            # With a private /proc, which ends with the namespace.
            return run("unshare", "--mount", "--pid", "--fork", "--kill-child",
                       f"--root={root}", "--mount-proc", *command, env=environment, **options)

        # Dependencies first, so that the difference afterwards is the packages only.
        inside(*APT, "update")
        needed = sorted({each.split()[0] for package in NAMES
                         for each in self.field(package, "Depends").split(", ") if each})
        inside(*APT, "install", "--no-install-recommends", "g++", "pkg-config", *needed)
        before = self.everything_below(root)
        inside(*APT, "install", "--no-install-recommends",
               *(f"/debs/{os.path.basename(deb)}" for deb in self.debs.values()))

        inside("timer_server", "--dir", "/tmp/run", "--", "timer_client", "run", "--timeout",
               "100ms", "--scope", "slow", "--", "sleep", "1000", status=124)
        self.assertIn("hung in `slow`", inside("timer_client", "show", "last", "--dir",
                                               "/tmp/run"))
        inside("sh", "-c", "g++ -std=c++20 /debs/main.cpp $(pkg-config --cflags --libs filetimer)"
                           " -o /tmp/consumer")
        self.assertIn("left in time", inside("timer_server", "--", "/tmp/consumer", "leave"))
        inside("timer_server", "--", "/tmp/consumer", "hang", status=128 + 9)
        if PYTHON:
            self.assertIn(f"{VERSION} 1\n", inside("python3", "-c", PYTHON_WORKER))

        inside(*APT, "purge", *self.debs)
        self.assertEqual({name for name in self.everything_below(root) ^ before
                          if not name.startswith(("tmp/", "root/", "dev/shm/", "var/cache/",
                                                  "var/log/", "var/lib/apt/", "var/lib/dpkg/"))},
                         set())

    @staticmethod
    def everything_below(root):
        """Returns all paths, folders included."""
        return {os.path.relpath(os.path.join(where, name), root)
                for where, folders, files in os.walk(root) for name in folders + files}


if __name__ == "__main__":
    suite.main()
