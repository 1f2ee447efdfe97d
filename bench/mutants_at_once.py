"""Builds all mutants of an area into one program: an environment variable selects the active
one when a test program starts. bench/mutants --at-once uses it.

cargo-mutants lists the mutants. This puts each one beside the original, in a copy of the
tree: `a < b` becomes `(match crate::mutant__::id() { 7 => { a <= b } _ => { a < b } })`. A
mutant that does not compile in this form, or has no place for a switch, is built and tested
alone, or found not to compile at all.
"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import tree_sitter
import tree_sitter_rust

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))
# Operators in one expression share a switch: a part of it is no expression by itself.
CHAIN = {"binary_expression", "unary_expression", "type_cast_expression"}
# In here a value is computed when the program is compiled: no switch can stand there.
CONSTANT = {"const_item", "static_item", "enum_variant", "array_type", "type_arguments", "const_block"}

RUNTIME = """
#[allow(missing_docs, warnings, clippy::all)]
pub mod mutant__ {
    pub static mut ACTIVE: u32 = 0;
    #[inline(never)]
    pub const fn id() -> u32 { unsafe { ACTIVE } }
    extern "C" fn init() {
        if let Ok(n) = std::env::var("OVERLANE_MUTANT") { unsafe { ACTIVE = n.parse().unwrap() } }
    }
    #[used]
    #[unsafe(link_section = ".init_array")]
    static INIT: extern "C" fn() = init;
}
"""


def alone(source, mutant):
    """The text with this mutant only."""
    return source[: mutant["start"]] + mutant["replacement"].encode() + source[mutant["end"] :]


class Source:
    """One file, and where its mutants are."""

    def __init__(self, text, mutants):
        self.text = text
        lines = text.decode().split("\n")
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line.encode()) + 1)

        def offset(place):
            line = lines[place["line"] - 1]
            return starts[place["line"] - 1] + len(line[: place["column"] - 1].encode())

        self.root = PARSER.parse(text).root_node
        # By kind and by where it begins; those of whole functions by where the function ends.
        self.mutants = collections.defaultdict(list)
        for mutant in mutants:
            mutant["start"] = offset(mutant["span"]["start"])
            mutant["end"] = offset(mutant["span"]["end"])
            at = mutant["start"]
            if mutant["genre"] == "FnValue":
                at = offset(mutant["function"]["span"]["end"])
            self.mutants[mutant["genre"], at].append(mutant)
        self.placed = set()

    def switched(self, refused):
        """The text with all mutants but those refused."""
        self.placed, self.refused = set(), refused
        return self.inner(self.root)

    def of(self, node):
        return self.text[node.start_byte : node.end_byte]

    def here(self, kind, at):
        return [mutant for mutant in self.mutants[kind, at] if mutant["id"] not in self.refused]

    def marked(self, mutant, text):
        """Text of a mutant between marks, which assign compiler errors to it."""
        self.placed.add(mutant["id"])
        return b"/*<%d*/ %s /*>%d*/" % (mutant["id"], text, mutant["id"])

    def switch(self, choices, original):
        arms = [b"%d => { %s }" % (mutant["id"], self.marked(mutant, text)) for mutant, text in choices]
        return b"(match crate::mutant__::id() { %s _ => { %s } })" % (b" ".join(arms), original)

    def is_constant(self, node):
        while node is not None and node.type not in ("function_item", "closure_expression"):
            if node.type in CONSTANT:
                return True
            node = node.parent
        return False

    def emit(self, node):
        choices = []
        if node.type in CHAIN or node.type == "compound_assignment_expr":
            choices = self.operators(node)
        elif node.type == "struct_expression":
            for field in node.child_by_field_name("body").named_children:
                end = field.end_byte + (self.text[field.end_byte : field.end_byte + 1] == b",")
                for mutant in self.here("StructField", field.start_byte):
                    rest = self.text[node.start_byte : field.start_byte] + self.text[end : node.end_byte]
                    choices.append((mutant, rest))
        if choices and not self.is_constant(node):
            return self.switch(choices, self.inner(node, in_chain=True))
        return self.inner(node)

    def operators(self, root):
        """The mutants of the operators of one expression, each with the whole of it."""
        choices, has_let = [], False

        def walk(node):
            nonlocal has_let
            if node.type in ("binary_expression", "compound_assignment_expr"):
                at = node.child_by_field_name("operator").start_byte
                found = self.here("BinaryOperator", at)
            else:
                found = self.here("UnaryOperator", node.start_byte)
            for mutant in found:
                before = self.text[root.start_byte : mutant["start"]]
                after = self.text[mutant["end"] : root.end_byte]
                choices.append((mutant, before + mutant["replacement"].encode() + b" " + after))
            for child in node.children:
                has_let = has_let or child.type == "let_condition"
                if child.type in CHAIN:
                    walk(child)

        walk(root)
        return [] if has_let else choices

    def inner(self, node, in_chain=False):
        if not node.children:
            return self.of(node)
        if node.type == "function_item":
            return self.function(node)
        return self.children(node, node.start_byte, node.children, in_chain)

    def children(self, node, at, children, in_chain=False):
        out = []
        for child in children:
            out.append(self.text[at : child.start_byte])
            if child.type in CHAIN and in_chain:
                out.append(self.inner(child, in_chain=True))
            elif child.type == "match_arm":
                out.append(self.arm(child))
            else:
                out.append(self.emit(child))
            at = child.end_byte
        out.append(self.text[at : node.end_byte])
        return b"".join(out)

    def function(self, node):
        """A function whose first statement may return another value."""
        body = node.child_by_field_name("body")
        found = self.here("FnValue", node.end_byte)
        # `impl Trait` stands for one type only.
        if b"impl " in (self.of(node.child_by_field_name("return_type")) if node.child_by_field_name("return_type") else b""):
            found = []
        if body is None or not found:
            return self.children(node, node.start_byte, node.children)
        returns = [
            b" if crate::mutant__::id() == %d { return %s; }"
            % (mutant["id"], self.marked(mutant, mutant["replacement"].encode()))
            for mutant in found
        ]
        head = self.text[node.start_byte : body.start_byte + 1]
        return head + b"".join(returns) + self.inner(body)[1:]

    def arm(self, node):
        """A match arm that may be deleted, or whose guard may be changed."""
        pattern = node.child_by_field_name("pattern")
        condition = pattern.child_by_field_name("condition")
        guards = self.here("MatchArmGuard", condition.start_byte) if condition else []
        # A name matches the remaining values: with a guard, the compiler reports missing patterns.
        takes_all = not condition and pattern.named_children[:1] and pattern.named_children[0].type == "identifier"
        deleted = [] if takes_all else self.here("MatchArm", node.start_byte)
        if not guards and not deleted:
            return self.inner(node)
        shown = self.of(pattern)
        tests = [self.marked(mutant, b"crate::mutant__::id() != %d" % mutant["id"]) for mutant in deleted]
        if condition:
            shown = self.text[pattern.start_byte : condition.start_byte].rstrip().removesuffix(b"if")
            guard = self.emit(condition)
            if guards and b"let " not in self.of(condition):
                guard = self.switch([(each, each["replacement"].encode()) for each in guards], guard)
            tests.append(guard)
        head = self.text[node.start_byte : pattern.start_byte] + shown
        head += (b" if " + b" && ".join(tests) if tests else b"") + b" "
        after = [child for child in node.children if child.start_byte >= pattern.end_byte]
        return head + self.children(node, pattern.end_byte, after)


class Area:
    """The copy of the tree in which the mutants of an area are built."""

    def __init__(self, name, select, tests, directory):
        self.package, self.tests = select[select.index("-p") + 1], tests
        self.crate = self.package.removeprefix("overlane-")
        self.copy = directory / "tree"
        listed = subprocess.run(
            ["cargo", "mutants", "--list", "--json", *select], check=True, capture_output=True, text=True
        )
        self.mutants = json.loads(listed.stdout)
        by_file = collections.defaultdict(list)
        for number, mutant in enumerate(self.mutants, 1):
            mutant["id"] = number
            by_file[mutant["file"]].append(mutant)
        self.copy.mkdir(parents=True, exist_ok=True)
        files = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], check=True, capture_output=True)
        for path in files.stdout.decode().split("\0"):
            # A file that is as it was keeps its time: less is built anew.
            if path and os.path.isfile(path):
                target = self.copy / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists() or target.read_bytes() != pathlib.Path(path).read_bytes():
                    shutil.copy(path, target)
        # This gives our crates other artifact names: builds here and outside share the artifacts
        # of dependencies, but never each other's.
        manifest = self.copy / "Cargo.toml"
        text = pathlib.Path("Cargo.toml").read_text()
        manifest.write_text(re.sub(r'(?m)^version = "([\d.]+)"', rf'version = "\1+{name}"', text, count=1))
        self.sources = {path: Source(pathlib.Path(path).read_bytes(), found) for path, found in by_file.items()}
        self.lib = f"crates/{self.crate}/src/lib.rs"
        self.programs = []

    def write(self, path, text):
        target = self.copy / path
        if target.read_bytes() != text:
            target.write_bytes(text)

    def restore(self):
        for path in [*self.sources, self.lib]:
            self.write(path, pathlib.Path(path).read_bytes())

    def cargo(self, *command):
        environment = dict(os.environ, CARGO_TARGET_DIR=os.path.abspath("target"))
        command = ["nice", "-n", "19", "cargo", *command, "-p", self.package, "--message-format=json"]
        done = subprocess.run(command, cwd=self.copy, env=environment, capture_output=True, text=True)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self.programs = [
            (each["target"]["kind"] != ["lib"], each["executable"])
            for each in messages
            if each["reason"] == "compiler-artifact" and each.get("executable") and each["profile"]["test"]
        ]
        # The unit tests first: they are the fastest.
        self.programs = [path for _, path in sorted(self.programs)]
        errors = [each["message"] for each in messages if each["reason"] == "compiler-message"]
        errors = [error for error in errors if error["level"] == "error"]
        if done.returncode and not errors:
            sys.exit(f"bench/mutants: cargo failed:\n{done.stderr[-3000:]}")
        return done.returncode == 0, errors

    def build(self):
        """Builds the mutants into one program; returns the numbers of those in it."""
        refused = set()
        for _ in range(20):
            regions = {}
            for path, source in self.sources.items():
                self.write_switched(path, source.switched(refused), regions)
            if self.lib not in self.sources:
                self.write_switched(self.lib, pathlib.Path(self.lib).read_bytes(), regions)
            built, errors = self.cargo("test", "--no-run", *self.tests)
            if built:
                return set().union(*(source.placed for source in self.sources.values()))
            found = set().union(*(blamed(error, regions) for error in errors))
            if not found:
                shown = "\n".join(error.get("rendered") or error["message"] for error in errors)
                sys.exit(f"bench/mutants: no mutant has to do with these errors:\n{shown[:6000]}")
            print(f"  {len(found)} mutants do not compile in one build with the others", flush=True)
            refused |= found
        sys.exit("bench/mutants: the mutants do not compile in one build after 20 attempts")

    def write_switched(self, path, text, regions):
        if path == self.lib:
            text = text.replace(b"#![forbid(unsafe_code)]", b"") + RUNTIME.encode()
        regions[path] = [
            (int(mark[1]), mark.start(), text.index(b"/*>%s*/" % mark[1], mark.end()))
            for mark in re.finditer(rb"/\*<(\d+)\*/", text)
        ]
        self.write(path, text)

    def build_alone(self, mutant):
        """Builds one mutant by itself; whether it compiles."""
        source = self.sources[mutant["file"]].text
        self.write(mutant["file"], alone(source, mutant))
        try:
            checked, _ = self.cargo("check")
            return checked and self.cargo("test", "--no-run", *self.tests)[0]
        finally:
            self.write(mutant["file"], source)

    def test(self, number, limit):
        """Result of the tests for a built mutant: caught, timeout or missed."""
        environment = dict(os.environ, OVERLANE_MUTANT=str(number), RUST_BACKTRACE="0", RUSTC_BOOTSTRAP="1")
        # A failing case is not kept: the next mutant would be tested by other cases.
        environment["PROPTEST_DISABLE_FAILURE_PERSISTENCE"] = "1"
        for program in self.programs:
            # A mutant may allocate without end.
            command = 'ulimit -v 8000000; exec nice -n 19 "$0" -q -Zunstable-options --fail-fast'
            try:
                done = subprocess.run(
                    ["bash", "-c", command, program], cwd=self.copy / "crates" / self.crate,
                    env=environment, capture_output=True, timeout=limit,
                )
            except subprocess.TimeoutExpired:
                return "timeout"
            if done.returncode:
                return "caught"
        return "missed"


def blamed(error, regions):
    """The mutants within which an error of the compiler is."""

    def spans(message):
        for span in sorted(message["spans"], key=lambda span: not span["is_primary"]):
            while span:
                yield span
                span = (span.get("expansion") or {}).get("span")
        for child in message["children"]:
            yield from spans(child)

    for span in spans(error):
        found = {
            number
            for number, start, end in regions.get(span["file_name"], [])
            if start <= span["byte_start"] <= end
        }
        if found:
            return found
    return set()
