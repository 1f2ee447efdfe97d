//! Frames on the control port of a guest that runs this program once: kind (1 byte), length (4
//! bytes, little-endian), payload.

use std::io::{Error, ErrorKind, Read, Result, Write};

/// Maximum payload of a frame, bytes.
pub(super) const LONGEST: usize = 256 << 10;
/// Size of a frame's header, bytes.
pub(super) const HEAD: usize = 5;

/// Kind of a frame. The host sends Arguments, Stop and Received; the guest sends the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The program's arguments, each terminated by a NUL.
    Arguments,
    /// Request to end the program and report its results so far.
    Stop,
    Alive,
    /// A line of the program's standard error.
    Line,
    /// The next part of the results file.
    Part,
    /// The program's exit status (4 bytes, little-endian). Last frame.
    Ended,
    /// Reason why there is no result. Last frame.
    Failed,
    /// The host has received all frames: the guest may power off.
    Received,
}

const KINDS: [Kind; 8] = [
    Kind::Arguments,
    Kind::Stop,
    Kind::Alive,
    Kind::Line,
    Kind::Part,
    Kind::Ended,
    Kind::Failed,
    Kind::Received,
];

/// Writes a frame. A payload above [`LONGEST`] is truncated.
pub(super) fn write(to: &mut impl Write, kind: Kind, payload: &[u8]) -> Result<()> {
    let payload = &payload[..payload.len().min(LONGEST)];
    let length = (payload.len() as u32).to_le_bytes();
    to.write_all(&[&[kind as u8], &length[..], payload].concat())?;
    to.flush()
}

/// Parses a frame header into kind and payload length.
pub(super) fn head(bytes: [u8; HEAD]) -> Result<(Kind, usize)> {
    let [kind, length @ ..] = bytes;
    let length = u32::from_le_bytes(length) as usize;
    let refused = |what: String| Err(Error::new(ErrorKind::InvalidData, what));
    // The other end is not trusted: check kind and length.
    let Some(&kind) = KINDS.get(usize::from(kind)) else {
        return refused(format!("frame of kind {kind}: expected 0 to {}", KINDS.len() - 1));
    };
    match length <= LONGEST {
        true => Ok((kind, length)),
        false => refused(format!("frame of {length} bytes: expected at most {LONGEST}")),
    }
}

/// Reads a frame. Blocks without a time limit.
pub(super) fn read(from: &mut impl Read) -> Result<(Kind, Vec<u8>)> {
    let mut bytes = [0; HEAD];
    from.read_exact(&mut bytes)?;
    let (kind, length) = head(bytes)?;
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    Ok((kind, payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_written() {
        let mut bytes = Vec::new();
        for (at, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, at);
            write(&mut bytes, kind, &vec![7; at]).unwrap();
        }
        write(&mut bytes, Kind::Line, &vec![1; LONGEST + 1]).unwrap();
        let mut from = &bytes[..];
        for (at, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(read(&mut from).unwrap(), (kind, vec![7; at]));
        }
        assert_eq!(read(&mut from).unwrap().1.len(), LONGEST);
        assert_eq!(read(&mut from).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn invalid_frames_are_refused() {
        for (bytes, said) in [
            ([9, 0, 0, 0, 0], "frame of kind 9: expected 0 to 7"),
            ([4, 0, 0, 0, 1], "frame of 16777216 bytes: expected at most 262144"),
        ] {
            let refused = read(&mut &bytes[..]).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }
}
