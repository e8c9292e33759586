# SPDX-License-Identifier: MIT
"""A report of a hang as Chromium shows it: no error on its console, no request, its words and bars."""
import datetime
import json
import os
import re
import shutil
import subprocess
import unittest

import suite

CLIENT = os.environ["FILETIMER_CLIENT"]
CHROMIUM = shutil.which("chromium")
BEGAN = datetime.datetime(2026, 11, 21, 3, 15)
HUNG = 17
HOSTILE = "<script>document.title='owned'</script>\"' onload=x \u202e" + "x" * 65536


class HostLog:
    """The log of a made-up host, whose clock is `ahead` seconds ahead."""

    def __init__(self, number, ahead=0.0):
        self.number = number
        self.ahead = ahead
        self.lines = []

    def mono_ns(self, at):
        return int((1000 * (self.number + 3) + at) * 1e9)

    def add(self, event, at, **fields):
        time = BEGAN + datetime.timedelta(seconds=at + self.ahead)
        self.lines.append(json.dumps({
            "schema": 1, "event": event, "time": time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "mono_ns": self.mono_ns(at), "host": f"node{self.number:02}",
            "boot_id": f"boot {self.number}", **fields}))


def who(rank):
    return {"pid": 1000 + rank, "rank": rank, "comm": "python3", "job_id": "8812"}


# Of a copy of the report, which may run it.
MEASURE = """<script>addEventListener("load", () => {
  const box = (css) => document.querySelector(css).getBoundingClientRect();
  const pre = document.querySelector("pre");
  parent.postMessage({page: document.documentElement.scrollWidth, window: innerWidth,
    figure: document.querySelector("figure").scrollWidth, label: box("svg .lane").x,
    pre: pre.scrollWidth - pre.clientWidth}, "*");
});</script>"""


def write_logs(folder, hosts, ranks_of_each, hung_scope="forward"):
    """Rank HUNG, or the last one, hangs in `hung_scope` for 30 s; the others wait in all_reduce."""
    hung = min(HUNG, hosts * ranks_of_each - 1)
    for number in range(hosts):
        log = HostLog(number, ahead=0.003 * number)
        ranks = range(number * ranks_of_each, (number + 1) * ranks_of_each)
        scopes, ended = [], []
        for rank in ranks:
            name, entered = (hung_scope, 0.0) if rank == hung else ("all_reduce", 0.3)
            for scope, began in (("step", -0.1), (name, entered)):
                scopes.append({**who(rank), "scope": scope, "elapsed_s": 30.001 - began,
                               "timeout_s": 30, "remaining_s": began - 0.001, "tid": 1})
            ended.append({**who(rank), "scope": "data",
                          "ended": [[30.2 + 0.6 * step, 0.05] for step in range(6, -1, -1)]})
        log.add("incident", 30.001, incident=f"{number}-i1", workers=ranks_of_each, open_scopes=scopes,
                in_no_scope=[], omitted=0, ended_scopes=ended, ended_omitted=0)
        for rank in ranks:
            name, at = (hung_scope, 30.0) if rank == hung else ("all_reduce", 30.3)
            own = {**who(rank), "start_time": 5, "cmdline": "python3 train.py", "id": f"{number}-{rank}"}
            waits = ["wait in all_reduce"] if rank != hung else ["train.py:86 in forward"]
            log.add("expired", at + 0.001, **own, incident=f"{number}-i1", scope=name, timeout_s=30,
                    elapsed_s=30.0002, overdue_ms=0.2, deadline_mono_ns=log.mono_ns(at), open_scopes=[])
            log.add("evidence", at + 0.05, **own,
                    python_threads=[{"current": True, "frames": [*waits, "train.py:131 in main"]}],
                    threads=[{"tid": 1, "native_stack": ["read+0xd (libc.so.6)", "main+0x3 (python3)"]}])
            log.add("killed", at + 0.1, **own, incident=f"{number}-i1", scope=name, verdict="dead",
                    signals=[{"signal": 9, "name": "SIGKILL", "mono_ns": log.mono_ns(at + 0.06)}],
                    dead_after_ms=2.5)
        with open(os.path.join(folder, f"node{number:02}.jsonl"), "w") as file:
            file.write("\n".join(log.lines) + "\n")
    return hung


class Report(unittest.TestCase):
    def setUp(self):
        self.folder = suite.folder_of(self, "browser")
        self.logs = os.path.join(self.folder, "logs")
        os.mkdir(self.logs)
        self.html = os.path.join(self.folder, "hang.html")

    def report(self, *more):
        subprocess.run([CLIENT, "report", "last", self.logs, "-o", self.html, *more], check=True,
                       stdout=subprocess.DEVNULL, timeout=suite.BOUND_S)
        with open(self.html) as file:
            return file.read()

    def chromium(self, *options, page=None):
        """Opens the report; returns what the browser prints, after a look at errors and requests."""
        net_log = os.path.join(self.folder, "net.json")
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        done = subprocess.run(
            [CHROMIUM, "--headless=new", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-background-networking", "--disable-component-update", "--no-first-run",
             "--enable-logging=stderr", "--hide-scrollbars", f"--log-net-log={net_log}",
             f"--user-data-dir={self.folder}/profile", *root, *options, f"file://{page or self.html}"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=4 * suite.BOUND_S)
        console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        self.assertEqual(console, [])
        with open(net_log) as file:
            urls = set(re.findall(r'"url":"((?:https?|ftp|ws)[^"]*)"', file.read()))
        self.assertEqual({url for url in urls if "google" not in url and "chrome" not in url}, set())
        return done.stdout

    def picture(self, name, width, height, *options):
        """A screenshot; its size in bytes, which is small where there is nothing to see."""
        path = os.path.join(self.folder, name)
        self.chromium(f"--screenshot={path}", f"--window-size={width},{height}", *options)
        return os.path.getsize(path)

    def measured(self, width):
        """Where things are in the report in a frame of `width` pixels: frames may be narrower than windows."""
        with open(self.html) as file:
            page = re.sub("<meta http-equiv=Content-Security-Policy[^>]*>", "", file.read()) + MEASURE
        with open(os.path.join(self.folder, "measured.html"), "w") as file:
            file.write(page)
        outer = os.path.join(self.folder, "outer.html")
        with open(outer, "w") as file:
            file.write("<script>onmessage = (e) => document.title = JSON.stringify(e.data);</script>"
                       f"<iframe src=measured.html style='width: {width}px; height: 900px; border: 0'></iframe>")
        dom = self.chromium("--dump-dom", "--window-size=1600,1000", "--virtual-time-budget=3000", page=outer)
        return json.loads(re.search("<title>(.*?)</title>", dom)[1])

    def test_in_a_narrow_window_the_picture_scrolls_and_the_page_does_not(self):
        write_logs(self.logs, hosts=2, ranks_of_each=2)
        self.report()
        for width in (400, 1100):
            at = self.measured(width)
            self.assertEqual(at["window"], width)
            self.assertLessEqual(at["page"], width)  # it does not scroll sideways
            self.assertGreater(at["figure"], 800)  # but this may
            self.assertEqual(at["pre"] > 0, width == 400)  # and so may this
            self.assertGreaterEqual(at["label"], 0)

    def test_four_ranks(self):
        hung = write_logs(self.logs, hosts=1, ranks_of_each=4)
        self.report()
        dom = self.chromium("--dump-dom")
        self.assertIn(f"rank {hung} (pid {1000 + hung}, python3) hung in `forward`: open for 30.0 s", dom)
        self.assertEqual(len(re.findall(r'<g class="expired">', dom)), 4)
        self.assertEqual(len(re.findall(r'<g class="ended">', dom)), 28)
        self.assertEqual(len(re.findall(r'class="mark death">', dom)), 4)
        self.assertRegex(dom, f"\\n +rank {hung}\\n +train.py:86 in forward\\n +ranks 0-2\\n +wait in all_reduce\\n")
        self.assertEqual(dom.count(">forward 30.0 s of 30 s</text>"), 1)
        self.assertEqual(dom.count(">all_reduce 30.0 s of 30 s</text>"), 3)
        light = self.picture("light.png", 1280, 1200)
        dark = self.picture("dark.png", 1280, 1200, "--blink-settings=preferredColorScheme=0")
        phone = self.picture("phone.png", 420, 1600)
        for size in (light, dark, phone):
            self.assertGreater(size, 20_000)

    def test_sixty_four_ranks_on_four_hosts(self):
        write_logs(self.logs, hosts=4, ranks_of_each=16)
        self.report()
        dom = self.chromium("--dump-dom")
        self.assertEqual(len(re.findall(r'class="lane"', dom)), 64)
        for host in range(4):
            self.assertIn(f", node0{host}</text>", dom)
        self.assertGreater(self.picture("all.png", 1280, 2600), 50_000)

    def test_hostile_names_are_text(self):
        write_logs(self.logs, hosts=1, ranks_of_each=2, hung_scope=HOSTILE)
        html = self.report()
        dom = self.chromium("--dump-dom")
        self.assertNotIn("<script", dom)
        self.assertNotIn("\u202e", dom)
        self.assertIn("&lt;script&gt;", dom)
        self.assertRegex(dom, r"<title>rank 1 \(pid 1001, python3\) hung in `&lt;script")
        self.assertLess(len(html), 500_000)


if __name__ == "__main__":
    suite.main("no chromium here" if CHROMIUM is None else "")
