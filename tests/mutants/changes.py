# SPDX-License-Identifier: MIT
"""Finds the small changes of a source in C++ or Python that make it another program: one operator,
constant, condition, argument or statement each. Declarations, but for constants and, in Python, defaults
of arguments, comments, texts and lines of the preprocessor stay as they are. A change may not compile.

C++ is read by its tokens and brackets, and as clang-format writes it: a binary operator has a space
on both sides, a bracket of a template and the sign of a reference do not.
"""
import ast
import re
from typing import NamedTuple


class Change(NamedTuple):
    file: str
    function: str
    kind: str
    start: int  # what text[start:end] is replaced with
    end: int
    new: str

    def apply(self, text):
        return text[:self.start] + self.new + text[self.end:]

    def line(self, text):
        return text.count("\n", 0, self.start) + 1

    def lines(self, text):
        """The lines that the change touches, before and after, each as one line."""
        begin = text.rfind("\n", 0, self.start) + 1
        end = text.find("\n", self.end)
        end = len(text) if end < 0 else end
        return (" ".join(text[begin:end].split()),
                " ".join((text[begin:self.start] + self.new + text[self.end:end]).split()))


OPERATORS = {
    "==": ["!="], "!=": ["=="], "<": ["<=", ">"], "<=": ["<", ">"], ">": [">=", "<"],
    ">=": [">", "<"], "&&": ["||"], "||": ["&&"], "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"],
    "%": ["/"], "+=": ["-="], "-=": ["+="], "&": ["|"], "|": ["&"], "|=": ["="], "<<": [">>"],
}
WORDS = {"true": ["false"], "false": ["true"], "min": ["max"], "max": ["min"], "any_of": ["all_of"],
         "all_of": ["any_of"], "none_of": ["any_of"]}

TOKEN = re.compile(r"""
    (?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\\n|[^\n])*)
  | (?P<text>R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
  | (?P<number>\.?\d(?:'?[\w.]|(?<=[eE])[+-])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign><<=|>>=|<=>|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\S)
  """, re.X | re.S | re.M)

NO_STATEMENT = set(
    "const auto static constexpr using typedef struct class enum union thread_local unsigned int bool char "
    "double long short static_assert namespace template goto delete case default break".split())
HEADS = {"if", "for", "while", "switch", "catch"}


def number_changes(text):
    match = re.fullmatch(r"([\d']+)(\D.*)?", text)
    if not match or text.startswith("0x") or (text[0] == "0" and len(text) > 1 and text[1].isdigit()):
        return []
    value, unit = int(match[1].replace("'", "")), match[2] or ""
    if unit[:1] in (".", "e"):
        return []
    values = {0: [1], 1: [0, 2]}.get(value, [value - 1, value + 1] if value <= 16
                                     else [value // 4, value * 4])
    return [f"{number}{unit}" for number in values]


class Cpp:
    """Walks once over the tokens. A frame is an open bracket: "scope" (a namespace, a class), "list" (what
    is not code), "block", "(" and "[" within code, "outside" within declarations."""

    def __init__(self, name, text):
        self.name = name
        self.text = text
        self.tokens = [(match.lastgroup if match.lastgroup != "mark" else "text", match.group(), match.start(),
                        match.end()) for match in TOKEN.finditer(text) if match.lastgroup != "skip"]
        self.words = [token[1] if token[0] != "text" else '"' for token in self.tokens]
        self.partner = self._partners()
        self.found = []

    def _partners(self):
        partner, open_ones = {}, []
        for at, word in enumerate(self.words):
            if word in ("(", "[", "{"):
                open_ones.append(at)
            elif word in (")", "]", "}") and open_ones:
                begin = open_ones.pop()
                partner[begin], partner[at] = at, begin
        return partner

    def _add(self, kind, first, behind, new):
        """Replaces the tokens [first, behind)."""
        self.found.append(Change(self.name, self.function, kind, self.tokens[first][2],
                                 self.tokens[behind - 1][3], new))

    def _between(self, first, behind):
        return self.text[self.tokens[first][2]:self.tokens[behind - 1][3]] if first < behind else ""

    def changes(self):
        self._declarations(0, len(self.tokens))
        return self.found

    def _declarations(self, at, end):
        """Tokens of a namespace or class."""
        begin = at  # of the declaration
        while at < end:
            word = self.words[at]
            if word in ("(", "["):
                at = self.partner.get(at, end) + 1
            elif word == "{":
                close = self.partner.get(at, end)
                kind = self._kind_outside(begin, at)
                if kind == "scope":
                    self._declarations(at + 1, close)
                elif kind == "body":
                    self._initialisers(begin, at)
                    self._block(at, is_outermost=True)
                at = close + 1
                if kind != "list":
                    begin = at
            else:
                if word == ";" or (word == ":" and self.words[at - 1] in ("public", "private", "protected")):
                    if "constexpr" in self.words[begin:at]:
                        self._constant(begin, at)
                    begin = at + 1
                at += 1

    def _constant(self, begin, end):
        equals = next((at for at in self._top_level(begin, end) if self.words[at] == "="), end)
        self.function = self.words[equals - 1]
        self._expressions(equals + 1, end)

    def _top_level(self, begin, end):
        """The places in [begin, end) that are in no bracket."""
        at = begin
        while at < end:
            yield at
            if self.words[at] in ("(", "[", "{"):
                at = self.partner.get(at, end)
            at += 1

    def _behind_template(self, at):
        while self.words[at] == "template":
            depth = 0
            while True:
                at += 1
                depth += {"<": 1, ">": -1, ">>": -2}.get(self.words[at], 0)
                if depth <= 0:
                    break
            at += 1
        return at

    def _kind_outside(self, begin, brace):
        begin = self._behind_template(begin)
        words = [self.words[at] for at in self._top_level(begin, brace)]
        if "(" not in words:
            return "scope" if set(words) & {"namespace", "class", "struct", "union", "extern"} and (
                "=" not in words) else "list"
        if "=" in words[:words.index("(")] and "operator" not in words:
            return "list"
        opening = next(at for at in self._top_level(begin, brace) if self.words[at] == "(")
        name = opening
        while name > begin and (self.tokens[name - 1][0] == "word" or self.words[name - 1] in ("::", "~")):
            if self.tokens[name - 1][0] == "word" and name < opening and self.words[name] not in ("::", "~"):
                break
            name -= 1
        self.function = "".join(self.words[name:opening]) or "operator"
        is_word = self.tokens[brace - 1][0] == "word"
        if is_word and self.words[brace - 1] not in ("const", "override", "noexcept", "final", "try") and (
                ":" in words and "->" not in words):
            return "list"  # a member that a constructor initialises
        return "body"

    def _initialisers(self, begin, brace):
        colon = next((at for at in self._top_level(begin, brace) if self.words[at] == ":"), brace)
        self._expressions(colon + 1, brace)

    def _block(self, brace, is_outermost):
        """The statements between two braces."""
        at, end = brace + 1, self.partner.get(brace, len(self.tokens) - 1)
        while at < end:
            at = self._statement(at, end, is_outermost)

    def _statement(self, at, end, is_outermost):
        """Returns where the next one begins."""
        word = self.words[at]
        if word == "{":
            self._block(at, is_outermost)
            return self.partner[at] + 1
        if word in ("else", "do", "try", ";"):
            return at + 1
        if word in ("case", "default"):
            while self.words[at] != ":":
                at += 1
            return at + 1
        if word in HEADS:
            opening = at + 1 + (self.words[at + 1] == "constexpr")
            close = self.partner[opening]
            if word in ("if", "while") and opening == at + 1:
                self._condition(opening + 1, close)
            if word != "catch":
                self._expressions(opening + 1, close)
            behind = self._nested(close + 1, end)
            if word == "switch" and self.words[behind - 3:behind] == ["break", ";", "}"]:
                self.found = [change for change in self.found if change.start != self.tokens[behind - 3][2]]
            return behind
        behind = next((place for place in self._top_level(at, end) if self.words[place] == ";"), end)
        if word in ("static_assert", "assert") or "reserve" in self.words[at:at + 4]:
            return behind + 1  # without it a right program does the same
        if not is_outermost and (word in ("return", "continue", "throw") or (word == "break")):
            self._add("no " + word, at, behind + 1, "")
        elif not self._is_declaration(at, behind) and word not in ("return", "continue", "throw"):
            self._add("no statement", at, behind + 1, "")
        self._expressions(at, behind)
        return behind + 1

    def _nested(self, at, end):
        if self.words[at] == "{":
            self._block(at, is_outermost=False)
            return self.partner[at] + 1
        return self._statement(at, end, is_outermost=False)

    def _is_declaration(self, at, end):
        words = self.words
        if words[at] in NO_STATEMENT:
            return True
        while at < end and (self.tokens[at][0] == "word" or words[at] == "::"):
            at += 1
            if at < end and words[at] == "<" and self.tokens[at - 1][3] == self.tokens[at][2]:
                depth = 0
                while at < end:
                    depth += {"<": 1, ">": -1, ">>": -2}.get(words[at], 0)
                    at += 1
                    if depth <= 0:
                        break
            while at < end and words[at] in ("&", "*", "const", "&&"):
                at += 1
            if at < end and self.tokens[at][0] == "word" and words[at - 1] != "::":
                return True
        return False

    def _condition(self, begin, end):
        for at in self._top_level(begin, end):
            if self.words[at] == ";":
                begin = at + 1
        if begin >= end or any(self.words[at] == "=" for at in self._top_level(begin, end)):
            return
        inside = self._between(begin, end)
        self._add("negated", begin, end, f"!({inside})")
        self._add("never", begin, end, f"false && ({inside})")
        self._add("always", begin, end, f"true || ({inside})")

    def _expressions(self, at, end):
        while at < end:
            kind, word, start, stop = self.tokens[at]
            if word == "{" and self._opens_block(at):
                self._block(at, is_outermost=True)  # of a lambda
                at = self.partner[at] + 1
                continue
            is_spaced = self.text[start - 1].isspace() and self.text[stop:stop + 1].isspace()
            if kind == "sign" and is_spaced:
                for new in OPERATORS.get(word, []):
                    self._add("operator", at, at + 1, new)
            elif word in ("++", "--"):
                self._add("operator", at, at + 1, "--" if word == "++" else "++")
            elif word == "!" and self.text[stop] != "=" and self.words[at - 1] != ")":  # of "(void)!write()"
                self._add("no !", at, at + 1, "")
            elif kind == "word" and word in WORDS and (word in ("true", "false") or self.words[at + 1] == "("):
                self._add("word", at, at + 1, WORDS[word][0])
            elif kind == "number":
                for new in number_changes(word):
                    self._add("number", at, at + 1, new)
            if word == "?" and is_spaced:
                self._swap_branches(at, end)
            if word == "(" and (self.tokens[at - 1][0] == "word" and self.words[at - 1] not in HEADS):
                self._swap_arguments(at)
            at += 1

    def _opens_block(self, brace):
        before = self.words[brace - 1]
        if before == "]":
            return True
        if before in ("mutable", "noexcept"):
            return True
        if before == ")":
            return self.words[self.partner[brace - 1] - 1] == "]"
        arrow = next((at for at in range(brace - 1, max(brace - 8, 0), -1)
                      if self.words[at] in ("->", ")", ";", "{")), 0)
        return self.words[arrow] == "->" and self.words[arrow - 1] in (")", "mutable")

    def _swap_branches(self, at, end):
        depth, colon, stop = 0, 0, end
        for place in self._top_level(at + 1, end):
            word = self.words[place]
            depth += word == "?"
            if word == ":" and not colon and depth == 0:
                colon = place
            elif word == ":" and not colon:
                depth -= 1
            elif word in (",", ";") or (word in (")", "}", "]")):
                stop = place
                break
        if colon:
            first, second = self._between(at + 1, colon), self._between(colon + 1, stop)
            if first != second:
                self._add("branches", at + 1, stop, f"{second} : {first}")

    def _swap_arguments(self, opening):
        close = self.partner[opening]
        commas = [at for at in self._top_level(opening + 1, close) if self.words[at] == ","]
        ends = [opening, *commas, close]
        parts = [(begin + 1, stop) for begin, stop in zip(ends, ends[1:])]
        for (first, middle), (second, stop) in zip(parts, parts[1:]):
            one, two = self._between(first, middle), self._between(second, stop)
            if one and two and one != two and "[" not in (self.words[first], self.words[second]):
                self._add("arguments", first, stop, f"{two}, {one}")


PYTHON = {
    ast.Eq: ("==", ["!="]), ast.NotEq: ("!=", ["=="]), ast.Lt: ("<", ["<=", ">"]), ast.LtE: ("<=", ["<", ">"]),
    ast.Gt: (">", [">=", "<"]), ast.GtE: (">=", [">", "<"]), ast.Is: ("is", ["is not"]),
    ast.IsNot: ("is not", ["is"]), ast.In: ("in", ["not in"]), ast.NotIn: ("not in", ["in"]),
    ast.Add: ("+", ["-"]), ast.Sub: ("-", ["+"]), ast.Mult: ("*", ["/"]), ast.Div: ("/", ["*"]),
    ast.And: ("and", ["or"]), ast.Or: ("or", ["and"]),
}


def python_changes(name, text):
    found = []
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)

    def place(line, column):  # `column` counts bytes
        begin = starts[line - 1]
        return begin + len(text[begin:starts[line]].encode()[:column].decode())

    def span(node):
        return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)

    def visit(node, function, is_nested):
        def add(kind, start, end, new):
            found.append(Change(name, function, kind, start, end, new))

        def operator(left, right, kind):
            word, others = PYTHON.get(type(kind), ("", []))
            start, end = span(left)[1], span(right)[0]
            at = text.find(word, start, end)
            for other in others:
                if at >= 0:
                    add("operator", at, at + len(word), other)

        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}" if function else node.name
            children, is_nested = [*filter(None, (getattr(node, "args", None), *node.body))], False
        elif isinstance(node, ast.arguments):
            children = [*node.defaults, *filter(None, node.kw_defaults)]
        else:
            children = ast.iter_child_nodes(node)
            if isinstance(node, ast.Assign) and not function:
                function = text[slice(*span(node.targets[0]))]
        if isinstance(node, ast.AnnAssign) or (
                isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return
        if function:
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                operator(node.left, node.comparators[0], node.ops[0])
            elif isinstance(node, ast.BinOp):
                operator(node.left, node.right, node.op)
            elif isinstance(node, ast.BoolOp):
                for left, right in zip(node.values, node.values[1:]):
                    operator(left, right, node.op)
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                add("no !", span(node)[0], span(node.operand)[0], "")
            elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
                add("word", *span(node), str(not node.value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, int):
                for new in number_changes(text[slice(*span(node))]):
                    add("number", *span(node), new)
            elif isinstance(node, ast.IfExp):
                add("branches", *span(node), " if ".join(text[slice(*span(part))] for part in (
                    node.orelse, node.test)) + " else " + text[slice(*span(node.body))])
            elif isinstance(node, ast.Call) and len(node.args) >= 2:
                for one, two in zip(node.args, node.args[1:]):
                    add("arguments", span(one)[0], span(two)[1],
                        f"{text[slice(*span(two))]}, {text[slice(*span(one))]}")
            if isinstance(node, (ast.If, ast.While)):
                inside = text[slice(*span(node.test))]
                add("negated", *span(node.test), f"not ({inside})")
                add("never", *span(node.test), f"False and ({inside})")
                add("always", *span(node.test), f"True or ({inside})")
            is_call = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Yield)
            is_field = isinstance(node, (ast.Assign, ast.AugAssign)) and isinstance(
                getattr(node, "targets", [getattr(node, "target", None)])[0], (ast.Attribute, ast.Subscript))
            is_exit = isinstance(node, (ast.Return, ast.Continue, ast.Break, ast.Raise)) and is_nested
            if is_call or is_field or is_exit:
                add("no statement", *span(node), "pass")
        for child in children:
            visit(child, function, is_nested or isinstance(node, (ast.If, ast.For, ast.While, ast.With,
                                                                   ast.Try)))

    visit(ast.parse(text), "", False)
    return found


def changes(name, text):
    return python_changes(name, text) if name.endswith(".py") else Cpp(name, text).changes()
