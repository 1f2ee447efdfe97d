//! The reads and writes of one thread for a tenant that is a vhost-user guest.

use std::cell::RefCell;
use std::io;

use nix::errno::Errno;
use packet::segment::{Policy, Segmenter, TransportChecksum};
use packet::vnet_hdr::VnetHdr;
use sys::tap::Offload;

use crate::tapbridge::{FRAME_BUFFER, needed, sane};
use crate::vhost_user::GuestQueue;
use crate::vnet_layout::{HEADER, LAYOUT};

/// A pair of a guest's queues.
#[derive(Debug)]
pub(super) struct GuestWriter {
    queue: GuestQueue,
    /// Buffer for segments.
    piece: RefCell<Box<[u8]>>,
}

impl GuestWriter {
    pub(super) fn new(queue: GuestQueue) -> GuestWriter {
        let piece = RefCell::new(vec![0; FRAME_BUFFER].into_boxed_slice());
        GuestWriter { queue, piece }
    }

    pub(super) fn queue(&self) -> &GuestQueue {
        &self.queue
    }

    /// Reads one frame with its header, validated for use with a device; `None`: the queue is
    /// empty. An invalid frame is returned with length 0.
    pub(super) fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        match self.queue.read(buffer) {
            Ok(length) if length > HEADER && sane(&mut buffer[..length]) => Some(length),
            // Invalid: with length 0 the caller counts it as malformed.
            Ok(_) => Some(0),
            Err(Errno::EMSGSIZE) => Some(0),
            // An empty ring or a broken one: the thread waits for the next event.
            Err(_) => None,
        }
    }

    /// Writes one frame with its header: unsegmented if the guest accepts that, otherwise in
    /// segments.
    pub(super) fn write(&self, header: &[u8; HEADER], frame: &[u8]) -> io::Result<()> {
        let unfit = || io::Error::from(Errno::EINVAL);
        // The header comes from a packet of the wire: an invalid one is dropped by the caller.
        let vnet = VnetHdr::parse(header, LAYOUT).map_err(|_| unfit())?;
        let gso = vnet.gso().map_err(|_| unfit())?;
        let takes = self.queue.takes();
        // The guest accepts the frame unsegmented.
        if takes.contains(needed(&vnet, gso.as_ref())) {
            return Ok(self.queue.write_parts(header, frame)?);
        }
        let partial = takes.contains(Offload::CSUM);
        let checksum = if partial { TransportChecksum::Partial } else { TransportChecksum::Full };
        let policy = Policy { checksum, ..Policy::default() };
        let segments = Segmenter::with_policy(frame, &vnet, policy).map_err(|_| unfit())?;
        let mut piece = self.piece.borrow_mut();
        for index in 0..segments.count() {
            let length = segments.write(index, &mut piece).map_err(|_| unfit())?;
            self.queue.write_parts(&segments.header(index).to_bytes(), &piece[..length])?;
        }
        Ok(())
    }
}
