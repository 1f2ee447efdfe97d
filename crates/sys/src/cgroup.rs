//! A control group (cgroup version 2) for a process tree, made and removed by the
//! tree's first process.
//!
//! Everything here runs in a forked child without exec: async-signal-safe system
//! calls on the stack, no allocation.

use std::ffi::CStr;

use nix::errno::Errno;

/// Where the file system of all groups is mounted for a moment: below the tree's
/// own `/run`.
const WHOLE: &CStr = c"/run/overlane-cgroup2";
/// Where programs look for their groups.
const PLACE: &CStr = c"/sys/fs/cgroup";
/// Groups in groups that are removed, at most.
const DEPTH: u32 = 16;
/// Attempts at removing, 10 ms apart: processes that were killed take a moment.
const ATTEMPTS: u32 = 1000;

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    Errno::result(result)
}

/// Makes the group `name` and mounts it on `/sys/fs/cgroup` of this mount
/// namespace, which must not share mounts with others. Gives a descriptor of the
/// directory that the group is in.
///
/// # Safety
/// To be called in the forked child of `init` only.
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
    // SAFETY: as `mount`. The thread's working directory serves as the path of a
    // directory that is known by descriptor.
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

/// Removes the group `name` of `parent` with all groups in it, once their processes
/// are gone; gives up after ten seconds.
///
/// # Safety
/// As [`mount`].
pub(crate) unsafe fn remove(parent: libc::c_int, name: &CStr) {
    // SAFETY: `parent` is what `mount` gave.
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

/// Removes a group and those in it; whether it is gone.
///
/// # Safety
/// `name` ends with a zero byte.
unsafe fn remove_all(parent: libc::c_int, name: *const libc::c_char, depth: u32) -> bool {
    /// `struct linux_dirent64`: inode, offset, record length, type, name.
    const LENGTH: usize = 16;
    const TYPE: usize = 18;
    const NAME: usize = 19;
    // SAFETY: plain system calls; each record is read within what the kernel wrote
    // into the buffer, and its name ends with a zero byte.
    unsafe {
        if libc::unlinkat(parent, name, libc::AT_REMOVEDIR) == 0 {
            return true;
        }
        match Errno::last() {
            Errno::ENOENT => return true,
            // With groups or processes in it.
            Errno::EBUSY | Errno::ENOTEMPTY if depth > 0 => {}
            _ => return false,
        }
        let directory = libc::openat(parent, name, libc::O_RDONLY | libc::O_DIRECTORY);
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
