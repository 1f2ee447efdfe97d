//! A control group (cgroup version 2) for a process tree, created and removed by the first process
//! of the tree.
//!
//! All code here runs in a forked child without exec: async-signal-safe system calls on the stack,
//! no allocation.

use std::ffi::CStr;

use nix::errno::Errno;

/// Temporary mount point of the whole cgroup file system, below the `/run` of the tree.
const WHOLE: &CStr = c"/run/overlane-cgroup2";
/// Where programs expect their control groups.
const PLACE: &CStr = c"/sys/fs/cgroup";
/// Maximum depth of nested groups that are removed.
const DEPTH: u32 = 16;
/// Attempts to remove the group, 10 ms apart: killed processes need a moment to exit.
const ATTEMPTS: u32 = 1000;

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    Errno::result(result)
}

/// Creates the group `name` and mounts it on `/sys/fs/cgroup` of this mount namespace, which must
/// not share mounts with others. Returns a descriptor of the directory that contains the group.
///
/// # Safety
/// Must be called only in the forked child of `init`.
pub(crate) unsafe fn mount(name: &CStr) -> Result<libc::c_int, Errno> {
    const KIND: &CStr = c"cgroup2";
    let options = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    // SAFETY: plain system calls on constants, `name`, and descriptors made here.
    unsafe {
        check(libc::mkdir(WHOLE.as_ptr(), 0o700))?;
        let (whole, kind) = (WHOLE.as_ptr(), KIND.as_ptr());
        check(libc::mount(kind, whole, kind, options, std::ptr::null()))?;
        let parent = check(libc::open(whole, libc::O_RDONLY | libc::O_DIRECTORY))?;
        check(libc::mkdirat(parent, name.as_ptr(), 0o755))?;
        let placed = place(parent, name).and_then(|()| {
            check(libc::umount2(whole, libc::MNT_DETACH))?;
            check(libc::rmdir(whole))
        });
        // An empty group would stay: no process of this tree could remove it later.
        if let Err(errno) = placed {
            libc::unlinkat(parent, name.as_ptr(), libc::AT_REMOVEDIR);
            return Err(errno);
        }
        Ok(parent)
    }
}

/// Mounts the group `name` of `parent` on [`PLACE`].
unsafe fn place(parent: libc::c_int, name: &CStr) -> Result<(), Errno> {
    const HERE: &CStr = c".";
    // SAFETY: as in `mount`. The working directory of the thread stands for a directory that is
    // known only by its descriptor.
    unsafe {
        let group = check(libc::openat(parent, name.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY))?;
        let placed = check(libc::fchdir(group)).and_then(|_| {
            let (here, none) = (HERE.as_ptr(), std::ptr::null());
            check(libc::mount(here, PLACE.as_ptr(), none, libc::MS_BIND, std::ptr::null()))
        });
        libc::close(group);
        libc::chdir(c"/".as_ptr());
        placed.map(drop)
    }
}

/// Removes the group `name` of `parent` with all groups in it once their processes have exited;
/// gives up after ten seconds.
///
/// # Safety
/// As [`mount`].
pub(crate) unsafe fn remove(parent: libc::c_int, name: &CStr) {
    // SAFETY: `parent` was returned by `mount`.
    unsafe {
        for _ in 0..ATTEMPTS {
            if remove_all(parent, name.as_ptr(), DEPTH) {
                return;
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
        }
    }
}

/// Removes a group and the groups in it; returns whether it is gone.
///
/// # Safety
/// `name` must end with a zero byte.
unsafe fn remove_all(parent: libc::c_int, name: *const libc::c_char, depth: u32) -> bool {
    /// `struct linux_dirent64`: inode, offset, record length, type, name.
    const LENGTH: usize = 16;
    const TYPE: usize = 18;
    const NAME: usize = 19;
    // SAFETY: plain system calls. Each record is read within what the kernel wrote into the buffer,
    // and its name ends with a zero byte.
    unsafe {
        // The group is empty: done.
        if libc::unlinkat(parent, name, libc::AT_REMOVEDIR) == 0 {
            return true;
        }
        match Errno::last() {
            Errno::ENOENT => return true,
            // It contains groups or processes.
            Errno::EBUSY | Errno::ENOTEMPTY if depth > 0 => {}
            _ => return false,
        }
        let directory = libc::openat(parent, name, libc::O_RDONLY | libc::O_DIRECTORY);
        // Another process has removed it meanwhile.
        if directory < 0 {
            return false;
        }
        let mut buffer = [0u8; 2048];
        loop {
            let (to, size) = (buffer.as_mut_ptr(), buffer.len());
            let read = libc::syscall(libc::SYS_getdents64, directory, to, size);
            let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { break };
            let mut at = 0;
            while at + NAME < read.min(buffer.len()) {
                let length = u16::from_ne_bytes([buffer[at + LENGTH], buffer[at + LENGTH + 1]]);
                let entry = CStr::from_ptr(buffer[at + NAME..].as_ptr().cast());
                let itself = matches!(entry.to_bytes(), b"." | b"..");
                if buffer[at + TYPE] == libc::DT_DIR && !itself {
                    remove_all(directory, entry.as_ptr(), depth - 1);
                }
                at += usize::from(length.max(1));
            }
        }
        libc::close(directory);
        libc::unlinkat(parent, name, libc::AT_REMOVEDIR) == 0
    }
}
