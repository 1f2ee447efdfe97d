//! Files of this machine that a guest needs, listed by the modules that run programs there.

use std::path::PathBuf;

/// Files of a guest besides this program. Paths are the same as on this machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Besides {
    /// Programs. Their shared libraries are added automatically.
    pub(crate) programs: Vec<PathBuf>,
    pub(crate) files: Vec<PathBuf>,
}
