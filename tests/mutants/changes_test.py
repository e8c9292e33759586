# SPDX-License-Identifier: MIT
"""What changes.py makes of a source, and what it leaves alone."""
import unittest

import suite
from changes import changes

CPP = """\
// if (a == b) { return; }
#define LIMIT (1 + 2)
constexpr int kLimit = 3;
constexpr Duration kLong = Duration{20};
static_assert(kLimit == 3);
template <class T, class U = std::vector<T>>
struct Box {
  int size = 4;
  bool is_full() const { return count_ >= size; }
};
Box::Box(int a, int b) : count_(a + 1), other_{b} {}
void work(const Box<int>& box, Box<int>&& other) {
  const auto text = "a == b, true";
  if (box.ok && !other.ok) {
    return;
  }
  std::map<int, int> found;
  send(box, other);
  run([&] { stop(); });
  use(std::ranges::any_of(found, is_full));
  const int most = std::min(box.size, 7) * 2;
  use(most > 5 ? box : other);
  found.reserve(most + 1);
  switch (box.kind) {
    case 1:
      stop();
      break;
    default:
      break;  // as without it
  }
}
"""

PYTHON = '''\
LIMIT = 3

def work(box, limit=4):
    """if box == 3"""
    if box.is_open and not limit:
        return None
    box.size = 1
    box.send(box, limit)
    return box.size + limit if limit < 2 else 0
'''


class Changes(unittest.TestCase):
    def made_of(self, name, text):
        made = {}
        for change in changes(name, text):
            changed = change.apply(text)
            self.assertNotEqual(changed, text)
            made.setdefault(change.kind, set()).add(change.lines(text))
        return made

    def test_of_c_code_statements_and_expressions_change_and_declarations_do_not(self):
        made = self.made_of("a.cpp", CPP)
        old = {lines[0] for kind in made.values() for lines in kind}
        self.assertEqual(old, {
            "constexpr int kLimit = 3;", "constexpr Duration kLong = Duration{20};",
            "bool is_full() const { return count_ >= size; }",
            "Box::Box(int a, int b) : count_(a + 1), other_{b} {}",
            "if (box.ok && !other.ok) {", "return;", "send(box, other);", "run([&] { stop(); });",
            "use(std::ranges::any_of(found, is_full));", "const int most = std::min(box.size, 7) * 2;", "use(most > 5 ? box : other);",
            "stop();", "break;"})
        self.assertEqual(made["no break"], {("break;", "")})
        self.assertIn(("if (box.ok && !other.ok) {", "if (box.ok && other.ok) {"), made["no !"])
        self.assertIn(("if (box.ok && !other.ok) {", "if (!(box.ok && !other.ok)) {"), made["negated"])
        self.assertEqual(made["no return"], {("return;", "")})
        self.assertIn(("run([&] { stop(); });", "run([&] { });"), made["no statement"])
        self.assertIn(("use(std::ranges::any_of(found, is_full));", "use(std::ranges::all_of(found, is_full));"),
                      made["word"])
        self.assertEqual(made["arguments"], {
            ("use(std::ranges::any_of(found, is_full));", "use(std::ranges::any_of(is_full, found));"),
            ("send(box, other);", "send(other, box);"),
            ("const int most = std::min(box.size, 7) * 2;", "const int most = std::min(7, box.size) * 2;")})
        self.assertEqual(made["branches"], {("use(most > 5 ? box : other);", "use(most > 5 ? other : box);")})
        self.assertEqual({change.function for change in changes("a.cpp", CPP)}, {
            "kLimit", "kLong", "is_full", "Box::Box", "work"})

    def test_of_python_the_bodies_of_functions_constants_and_defaults_change(self):
        made = self.made_of("a.py", PYTHON)
        old = {lines[0] for kind in made.values() for lines in kind}
        self.assertEqual(old, {
            "LIMIT = 3", "def work(box, limit=4):", "if box.is_open and not limit:", "return None", "box.size = 1", "box.send(box, limit)",
            "return box.size + limit if limit < 2 else 0"})
        self.assertIn(("return None", "pass"), made["no statement"])
        self.assertIn(("return box.size + limit if limit < 2 else 0",
                       "return 0 if limit < 2 else box.size + limit"), made["branches"])


if __name__ == "__main__":
    suite.main()
