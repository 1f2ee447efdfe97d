//! No test of this workspace can end early without a word.
//!
//! Read from the sources, by lines: in a `#[test]` function no bare `return`, no `else {
//! return }`, no `return` of something printed. A test ends early by `require!`, `skip!`
//! or `inconclusive!`, which say so and are counted. Closures and nested functions have
//! their own returns.

use std::path::{Path, PathBuf};

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns a line without its comment and the content of its literals, so that braces can be counted.
/// Literals over several lines are not supported. Such a function still ends at its last brace,
/// because rustfmt indents that brace like the function.
fn code(line: &str) -> String {
    let mut code = String::new();
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                while let Some(inner) = characters.next() {
                    match inner {
                        '\\' => drop(characters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
                code.push_str("\"\"");
            }
            '/' if characters.peek() == Some(&'/') => break,
            other => code.push(other),
        }
    }
    code
}

/// Returns the early returns in tests that no macro reports, as line numbers and lines.
fn silent(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        if line.trim() != "#[test]" {
            continue;
        }
        let mut indent = None;
        // Brace depths at which a closure or a nested function began.
        let (mut depth, mut own) = (0_usize, Vec::new());
        for (number, line) in lines.by_ref() {
            let code = code(line);
            let words = code.trim();
            let at = line.len() - line.trim_start().len();
            match indent {
                None if words.starts_with("fn ") => indent = Some(at),
                None => continue,
                Some(indent) if at == indent && words == "}" => break,
                Some(_) => {}
            }
            let inner = words.contains("fn ") && indent != Some(at);
            if inner || words.contains("|| {") || words.contains("| {") || words.ends_with("|") {
                own.push(depth);
            }
            let early = words == "return;"
                || words.contains("{ return }")
                || words.contains("{ return; }")
                || words.contains("=> return,")
                || words.contains("return eprintln!")
                || words.contains("return println!");
            if early && own.is_empty() {
                found.push((number + 1, line.trim()));
            }
            for brace in code.chars() {
                match brace {
                    '{' => depth += 1,
                    '}' => {
                        depth = depth.saturating_sub(1);
                        if own.last().is_some_and(|began| *began >= depth) {
                            own.pop();
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    // A message that only a reader of the log would see.
    let printed = ["eprintln!(\"skipped", "println!(\"skipped", ": skipped: "];
    for (number, line) in text.lines().enumerate() {
        if printed.iter().any(|words| line.contains(words)) && line.contains("println!") {
            found.push((number + 1, line.trim()));
        }
    }
    found
}

#[test]
fn no_test_ends_early_without_a_word() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut all = Vec::new();
    sources(crates, &mut all);
    all.retain(|path| !path.starts_with(crates.join("test-support")));
    assert!(all.len() > 300, "the sources are found: {}", all.len());
    let mut tests = 0;
    let mut problems = Vec::new();
    for path in all {
        let text = std::fs::read_to_string(&path).unwrap();
        tests += text.lines().filter(|line| line.trim() == "#[test]").count();
        let name = path.strip_prefix(crates).unwrap().display();
        let found = silent(&text);
        problems.extend(found.iter().map(|(number, line)| format!("{name}:{number}: {line}")));
    }
    assert!(tests > 500, "the tests are found: {tests}");
    assert!(
        problems.is_empty(),
        "say what is missing by test_support::require!, skip! or inconclusive!:\n{}",
        problems.join("\n")
    );
}

#[test]
fn silent_ends_are_found_and_others_are_not() {
    let faults = [
        "if !root() {\n        return;\n    }",
        "let Some(x) = y() else { return };",
        "match x {\n        Err(_) => return,\n    }",
        "return eprintln!(\"no\");",
        "eprintln!(\"skipped: no\");",
        "x.iter().for_each(|x| {\n        x();\n    });\n    return;",
    ];
    for fault in faults {
        let text = format!("#[test]\nfn a() {{\n    {fault}\n}}\n");
        assert_eq!(silent(&text).len(), 1, "{text}");
    }
    let fine = [
        "require!(need::root());",
        "let end = || {\n        return;\n    };",
        "thread::spawn(move || {\n        if x {\n            return;\n        }\n    });",
        "fn inner() {\n        return;\n    }",
        "let text = \"return;\";",
        "// return;",
    ];
    for fine in fine {
        let text = format!("#[test]\nfn a() {{\n    {fine}\n}}\n\nfn b() {{\n    return;\n}}\n");
        assert_eq!(silent(&text), [], "{text}");
    }
}
