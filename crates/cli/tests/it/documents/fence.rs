//! The commands in the documents: fenced code blocks of Markdown, split as a shell does.

use std::path::{Path, PathBuf};

pub fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every document, in a fixed order.
pub fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
            .iter()
            .map(|name| top().join(name))
            .chain([top().join("examples/kubernetes/README.md")])
            .collect();
    let mut directories = vec![top().join("docs/src")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// A fenced code block of a Markdown page.
#[derive(Debug)]
pub struct Block {
    /// `PAGE:LINE`, for messages.
    pub place: String,
    /// The words after the fence: the language, then directives for the test.
    pub tags: Vec<String>,
    /// Text inside the fence.
    pub text: String,
}

impl Block {
    pub fn is(&self, tag: &str) -> bool {
        self.tags.iter().any(|own| own == tag)
    }

    /// The simple commands in it: all of a block tagged `sh`, text after `$ ` with its continued
    /// lines in a block tagged `console`, none of any other.
    pub fn commands(&self) -> Vec<Vec<String>> {
        if self.is("sh") {
            commands(&self.text)
        } else if self.is("console") {
            let text = self.text.replace("\\\n", " ");
            let typed = text.lines().filter_map(|line| line.strip_prefix("$ "));
            typed.flat_map(commands).collect()
        } else {
            Vec::new()
        }
    }
}

/// The fenced blocks of a page, and its other lines, joined.
pub fn blocks(page: &Path) -> (Vec<Block>, String) {
    let text = std::fs::read_to_string(page).unwrap();
    let (mut blocks, mut prose, mut open) = (Vec::new(), String::new(), None::<Block>);
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text += line.trim();
                block.text.push('\n');
            }
            (None, Some(tags)) => {
                open = Some(Block {
                    place: format!("{}:{}", page.display(), number + 1),
                    tags: tags.split([' ', ',']).map(str::to_owned).collect(),
                    text: String::new(),
                });
            }
            (None, None) => {
                prose += line;
                prose.push('\n');
            }
        }
    }
    assert!(open.is_none(), "{}: a fence is not closed", page.display());
    (blocks, prose)
}

/// The simple commands of a shell script, as words. Quotes are removed, comments and redirections
/// are left out, and nothing is expanded.
pub fn commands(script: &str) -> Vec<Vec<String>> {
    let script = script.replace("\\\n", " ");
    let (mut commands, mut words) = (Vec::new(), Vec::<String>::new());
    let mut word = None::<String>;
    let mut characters = script.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\'' | '"' => {
                let quoted: String = characters.by_ref().take_while(|c| *c != character).collect();
                word.get_or_insert_default().push_str(&quoted);
            }
            '#' if word.is_none() => while characters.next_if(|c| *c != '\n').is_some() {},
            '\n' | ';' | '|' | '&' => {
                words.extend(word.take());
                if !words.is_empty() {
                    commands.push(std::mem::take(&mut words));
                }
            }
            ' ' | '\t' => words.extend(word.take()),
            character => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    if !words.is_empty() {
        commands.push(words);
    }
    for command in &mut commands {
        if let Some(at) = command.iter().position(|word| word == ">" || word == "<") {
            command.drain(at..(at + 2).min(command.len()));
        }
    }
    commands
}
