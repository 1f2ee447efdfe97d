//! What is said on the control port of a guest that runs this program once: a kind (1 byte), a length
//! (4 bytes, little-endian), and that many bytes.

use std::io::{Error, ErrorKind, Read, Result, Write};

/// Most bytes of a frame.
pub(super) const LONGEST: usize = 256 << 10;
/// Bytes before those of a frame.
pub(super) const HEAD: usize = 5;

/// What a frame is. Arguments, Stop and Received come from outside, the others from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The program's arguments, each ended by a NUL.
    Arguments,
    /// The program is to end, and to say what there is.
    Stop,
    /// The guest is alive.
    Alive,
    /// A line of the program's standard error.
    Line,
    /// The next part of the program's file.
    Part,
    /// The program's exit status (4 bytes, little-endian); nothing follows.
    Ended,
    /// Why there is no result; nothing follows.
    Failed,
    /// All is here, to the last frame: the guest may end.
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

/// Writes a frame; what is longer than one takes is cut.
pub(super) fn write(to: &mut impl Write, kind: Kind, payload: &[u8]) -> Result<()> {
    let payload = &payload[..payload.len().min(LONGEST)];
    let length = (payload.len() as u32).to_le_bytes();
    to.write_all(&[&[kind as u8], &length[..], payload].concat())?;
    to.flush()
}

/// Kind and length of the frame that begins so.
pub(super) fn head(bytes: [u8; HEAD]) -> Result<(Kind, usize)> {
    let [kind, length @ ..] = bytes;
    let length = u32::from_le_bytes(length) as usize;
    let refused = |what: String| Err(Error::new(ErrorKind::InvalidData, what));
    let Some(&kind) = KINDS.get(usize::from(kind)) else {
        return refused(format!("a frame of kind {kind}: expected 0 to {}", KINDS.len() - 1));
    };
    match length <= LONGEST {
        true => Ok((kind, length)),
        false => refused(format!("a frame of {length} bytes: at most {LONGEST} are taken")),
    }
}

/// Reads a frame, for as long as it takes.
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
    fn what_is_no_frame_is_refused() {
        for (bytes, said) in [
            ([9, 0, 0, 0, 0], "a frame of kind 9: expected 0 to 7"),
            ([4, 0, 0, 0, 1], "a frame of 16777216 bytes: at most 262144"),
        ] {
            let refused = read(&mut &bytes[..]).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
    }
}
