# SPDX-License-Identifier: MIT
"""Summarizes results of CTest (--output-junit): every failure, every skipped test with its reason,
and last "N passed, N failed, N skipped". Exits with 1 if a test failed.
usage: summary.py FILE...
"""
import collections
import re
import sys
import xml.etree.ElementTree

passed = 0
failed = []
skipped = collections.defaultdict(list)  # "NAME: REASON": the suites that skipped it

for path in sys.argv[1:]:
    suite = path.rpartition("/")[2].removesuffix(".junit.xml")
    for test in xml.etree.ElementTree.parse(path).iter("testcase"):
        name, status = test.get("name"), test.get("status")
        output = test.findtext("system-out") or ""
        # A test file in Python has a line for each case that it skipped.
        reasons = re.findall(r"^skipped: (.*)$", output, re.MULTILINE)
        if status == "fail":
            failed.append(f"{suite}: {name}")
        elif status == "notrun":
            reasons = reasons or [test.find("skipped").get("message")]
        else:
            passed += 1
        for reason in reasons:
            skipped[f"{name}: {reason}"].append(suite)

for what, suites in sorted(skipped.items()):
    print(f"skipped: {what} ({', '.join(suites)})")
for what in failed:
    print(f"failed: {what}")
print(f"{passed} passed, {len(failed)} failed, {sum(map(len, skipped.values()))} skipped")
sys.exit(1 if failed else 0)
