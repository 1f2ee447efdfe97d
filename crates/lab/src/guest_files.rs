//! Files of this machine that a guest needs: said by those whose programs run there.

use std::path::PathBuf;

/// What a guest has besides this program: each at the path that it has here.
#[derive(Debug, Clone, Default)]
pub(crate) struct Besides {
    /// Programs; the libraries that they run with go along.
    pub(crate) programs: Vec<PathBuf>,
    /// Files that those read.
    pub(crate) files: Vec<PathBuf>,
}
