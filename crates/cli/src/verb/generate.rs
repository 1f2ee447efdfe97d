//! `overlane completions` and `overlane man`: generated from the arguments.

use std::path::Path;

use anyhow::Context;

use crate::command_line;
use crate::completion;
use crate::exit::{Exit, usage};
use crate::output::{Directory, print};

/// Prints the completion script of a shell.
pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<Exit> {
    print(&completion::script(shell)?)?;
    Ok(Exit::Done)
}

/// Writes a man page for each verb.
///
/// # Errors
/// A usage error for a missing directory; a page that cannot be written.
pub fn man(directory: &Path) -> anyhow::Result<Exit> {
    if !directory.is_dir() {
        return Err(usage("DIRECTORY", format!("{} is not a directory", directory.display())));
    }
    // Into an empty directory first: a link that another user made in DIRECTORY is replaced, not
    // followed.
    let pages = tempfile::tempdir().context("create a temporary directory")?;
    clap_mangen::generate_to(command_line::with_all_help(), pages.path())
        .context("write man pages")?;
    let to = Directory::check("DIRECTORY", directory)?;
    for page in std::fs::read_dir(pages.path()).context("read the man pages")? {
        let page = page.context("read the man pages")?;
        let text = std::fs::read_to_string(page.path()).context("read a man page")?;
        to.write(&page.file_name().to_string_lossy(), &text)?;
    }
    Ok(Exit::Done)
}
