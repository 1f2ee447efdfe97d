//! Descriptors received with the bytes of a Unix socket (`SCM_RIGHTS`) from an untrusted peer.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

/// Maximum number of descriptors that one read accepts; the kernel closes any others.
pub const DESCRIPTORS_MAX: usize = 8;

/// Reads the available data without waiting. Returns the number of bytes; 0 if the peer has closed
/// the connection. Descriptors that came with the data are appended; they are close-on-exec.
///
/// # Errors
/// `EAGAIN` if no data is available; `ECONNRESET`.
pub fn receive(
    socket: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize, Errno> {
    let mut room = nix::cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut buffers = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut room), flags)?;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: the kernel has just installed these descriptors for this call; no other code
            // knows their numbers.
            let owned = received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
            descriptors.extend(owned);
        }
    }
    Ok(message.bytes)
}

/// Returns whether a file can never become shorter, regardless of who has it open, so that mappings
/// of it stay valid (`F_SEAL_SHRINK`).
///
/// # Errors
/// `EINVAL` for a file that does not support seals.
pub fn is_sealed_against_shrinking(file: &OwnedFd) -> Result<bool, Errno> {
    let seals = SealFlag::from_bits_retain(fcntl(file, FcntlArg::F_GET_SEALS)?);
    Ok(seals.contains(SealFlag::F_SEAL_SHRINK))
}

/// A descriptor with which two processes wake each other (eventfd(2)), created by the other
/// process.
#[derive(Debug)]
pub struct PeerEvent(OwnedFd);

impl PeerEvent {
    /// Takes a descriptor that behaves as an eventfd. This makes it nonblocking for both sides.
    ///
    /// # Errors
    /// `EINVAL` if it behaves otherwise: a pipe, a socket or a file.
    pub fn new(descriptor: OwnedFd) -> Result<PeerEvent, Errno> {
        // An eventfd refuses writes of less than eight bytes; pipes, sockets and files accept a
        // write of none.
        match nix::unistd::write(&descriptor, &[]) {
            Err(Errno::EINVAL) => {}
            _ => return Err(Errno::EINVAL),
        }
        let mut flags = OFlag::from_bits_retain(fcntl(&descriptor, FcntlArg::F_GETFL)?);
        flags.insert(OFlag::O_NONBLOCK);
        fcntl(&descriptor, FcntlArg::F_SETFL(flags))?;
        Ok(PeerEvent(descriptor))
    }

    /// Wakes the other side. If its counter is full, it is awake already.
    pub fn wake(&self) {
        let _ = nix::unistd::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for PeerEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::io::Read;

    use nix::sys::eventfd::{EfdFlags, EventFd};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::socket::{ControlMessage, sendmsg};

    use super::*;

    #[test]
    fn descriptors_come_with_the_bytes_that_they_were_sent_with() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let sent = [writer.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&sent)];
        let bytes = [IoSlice::new(b"hello")];
        sendmsg::<()>(theirs.as_raw_fd(), &bytes, &rights, MsgFlags::empty(), None).unwrap();
        drop(writer);
        let (mut buffer, mut received) = ([0; 16], Vec::new());
        assert_eq!(receive(&ours, &mut buffer, &mut received), Ok(5));
        assert_eq!(received.len(), 1);
        assert_eq!(receive(&ours, &mut buffer, &mut received), Err(Errno::EAGAIN));
        // If it were closed instead, it would stay open as long as a process started by another
        // test has it.
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(receive(&ours, &mut buffer, &mut received), Ok(0));
        // The pipe ends when the last writer has closed it.
        nix::unistd::write(&received[0], b"x").unwrap();
        received.clear();
        let mut rest = Vec::new();
        { reader }.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"x");
    }

    #[test]
    fn only_an_eventfd_is_taken_as_an_event() {
        let (_reader, writer) = std::io::pipe().unwrap();
        assert_eq!(PeerEvent::new(writer.into()).unwrap_err(), Errno::EINVAL);
        let (socket, _peer) = UnixStream::pair().unwrap();
        assert_eq!(PeerEvent::new(socket.into()).unwrap_err(), Errno::EINVAL);
        let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
        assert_eq!(PeerEvent::new(null.into()).unwrap_err(), Errno::EINVAL);
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
        let peer = PeerEvent::new(event.as_fd().try_clone_to_owned().unwrap()).unwrap();
        // The counter is full, but the call does not wait.
        event.write(u64::MAX - 1).unwrap();
        peer.wake();
        assert_eq!(event.read(), Ok(u64::MAX - 1));
        peer.wake();
        assert_eq!(event.read(), Ok(1));
    }

    #[test]
    fn seals_are_seen() {
        let open = memfd_create(c"a", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert_eq!(is_sealed_against_shrinking(&open), Ok(false));
        fcntl(&open, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert_eq!(is_sealed_against_shrinking(&open), Ok(true));
        let file = tempfile::tempfile().unwrap();
        // A file of tmpfs reports that no seals can be added, a file on a disk fails.
        assert_ne!(is_sealed_against_shrinking(&file.into()), Ok(true));
    }
}
