# SPDX-License-Identifier: MIT
"""Summarizes results of CTest (--output-junit): every failure, every skipped test with its reason,
and last "N passed, N failed, N skipped". Exits with 1 if a test failed, or was skipped although
allowed_skips does not allow it in $FILETIMER_ENVIRONMENT.
usage: summary.py FILE...
"""
import collections
import os
import re
import sys
import xml.etree.ElementTree

passed = 0
failed = []
skipped = collections.defaultdict(list)  # "NAME: REASON": the suites that skipped it



def allowed_in(environment):
    """Returns the regular expressions of skips that are allowed there."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "allowed_skips")) as file:
        lines = [line.rstrip("\n").split(" ", 1) for line in file if line.strip() and line[0] != "#"]
    return [text for names, text in lines if {"any", environment} & set(names.split(","))]


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
environment = os.environ.get("FILETIMER_ENVIRONMENT")
if environment:
    allowed = allowed_in(environment)
    failed += [f"{what}: tests/support/allowed_skips has no such skip in '{environment}'"
               for what in sorted(skipped) if not any(re.search(each, what) for each in allowed)]
for what in failed:
    print(f"failed: {what}")
print(f"{passed} passed, {len(failed)} failed, {sum(map(len, skipped.values()))} skipped")
sys.exit(1 if failed else 0)
