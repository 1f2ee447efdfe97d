//! Permanently joins the namespaces of another process, before `exec`.

use std::fs::File;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

use crate::{Error, Result};

/// Joins the user namespace of process `pid`, unless this process is already in it. Must be called
/// while the process has only one thread.
///
/// # Errors
/// `EPERM` if the namespace belongs to another user.
pub fn user_namespace(pid: u32) -> Result<()> {
    let theirs = format!("/proc/{pid}/ns/user");
    // setns(2) refuses to enter the own user namespace.
    if std::fs::read_link(&theirs).ok() == std::fs::read_link("/proc/self/ns/user").ok() {
        return Ok(());
    }
    join(Path::new(&theirs), CloneFlags::CLONE_NEWUSER)
}

/// Joins the mount and PID namespaces of process `pid`. The PID namespace takes effect for
/// children.
///
/// # Errors
/// `EPERM`, or `ENOENT` if the process has ended.
pub fn process_tree(pid: u32) -> Result<()> {
    join(Path::new(&format!("/proc/{pid}/ns/pid")), CloneFlags::CLONE_NEWPID)?;
    join(Path::new(&format!("/proc/{pid}/ns/mnt")), CloneFlags::CLONE_NEWNS)
}

fn join(path: &Path, kind: CloneFlags) -> Result<()> {
    let object = path.display().to_string();
    let file = File::open(path).map_err(|e| Error::io("open", object.clone(), &e))?;
    setns(file, kind).map_err(|e: Errno| Error::new("setns", object, e))
}
