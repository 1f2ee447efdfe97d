//! The socket that a guest's QEMU connects to.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::unistd::geteuid;

use crate::error::SocketError;

/// Connections that may wait to be refused.
const WAITING: i32 = 8;

/// Listens on a path, to which only this user may connect. A socket left by a process that has
/// ended is replaced; nothing else is.
///
/// # Errors
/// If other users may write to the directory; if the path exists and is not a socket of this user,
/// or a program listens on it; errors of the kernel.
pub(super) fn listen_at(path: &Path) -> Result<UnixListener, SocketError> {
    let wrong = |reason: String| SocketError { path: path.display().to_string(), reason };
    let failed =
        |operation: &str, error: &dyn std::fmt::Display| wrong(format!("{operation}: {error}"));
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        // A path without a parent is the root directory itself.
        None => return Err(wrong("a directory, expected a path to a file".to_owned())),
    };
    let own = geteuid().as_raw();
    let directory = std::fs::metadata(parent).map_err(|e| failed("stat of its directory", &e))?;
    // A user who may write to the directory could replace the socket.
    if ![0, own].contains(&directory.uid()) || directory.mode() & 0o022 != 0 {
        return Err(wrong(format!(
            "its directory is of user {} with mode {:04o}, expected one that only user {own} \
             may write to",
            directory.uid(),
            directory.mode() & 0o7777
        )));
    }
    let address = UnixAddr::new(path).map_err(|e| failed("address", &e))?;
    match std::fs::symlink_metadata(path) {
        // No file is in the way.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed("stat", &error)),
        // A file that is not a socket may be something that the user needs.
        Ok(file) if !file.file_type().is_socket() => {
            return Err(wrong(
                "a file that is not a socket exists there and was not replaced".to_owned(),
            ));
        }
        // Another user's socket must not be replaced.
        Ok(file) if file.uid() != own => {
            return Err(wrong(format!(
                "a socket of user {} exists there and was not replaced",
                file.uid()
            )));
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|e| failed("unlink", &e))?;
            }
            // Its owner is alive: replacing the socket would cut it off silently.
            _ => return Err(wrong("another program listens there".to_owned())),
        },
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .map_err(|e| failed("socket", &e))?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &address).map_err(|e| failed("bind", &e))?;
    // No client can connect before `listen`.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))
        .map_err(|e| failed("chmod", &e))?;
    let backlog = Backlog::new(WAITING).map_err(|e: Errno| failed("listen", &e))?;
    listen(&socket, backlog).map_err(|e| failed("listen", &e))?;
    Ok(UnixListener::from(socket))
}

/// Returns whether a path can be printed without escaping.
pub(super) fn is_plain(path: &OsStr) -> bool {
    !path.as_bytes().is_empty() && path.to_str().is_some_and(|p| !p.contains(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        listen_at(path).unwrap_err().to_string()
    }

    #[test]
    fn only_what_a_dead_process_has_left_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("guest.sock");
        let first = listen_at(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(refused(&path).contains("another program listens there"));
        drop(first);
        let second = listen_at(&path).unwrap();
        drop(second);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert!(refused(&path).contains("not a socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("elsewhere", &link).unwrap();
        assert!(refused(&link).contains("not a socket"));
        assert!(refused(Path::new("/no/such/directory/s")).contains("its directory"));
        assert!(refused(Path::new("/")).contains("a directory"));
        let long = directory.path().join("s".repeat(200));
        assert!(refused(&long).contains("address"));
    }

    #[test]
    fn a_directory_that_others_write_to_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mode = PermissionsExt::from_mode(0o1777);
        std::fs::set_permissions(directory.path(), mode).unwrap();
        let said = refused(&directory.path().join("s"));
        assert!(said.contains("mode 1777, expected one that only user"), "{said}");
    }
}
