//! The pcapng file format: sections, interfaces and packets, as bytes.
//!
//! It follows draft-ietf-opsawg-pcapng-03, in little-endian order on every machine. A block is a
//! whole number of 32-bit words. So are its parts, which are padded with zeros.

/// Block types (section 4).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// Magic number that shows the byte order (section 4.1).
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// The section's length is unknown: it extends to the end of the file (section 4.1).
const UNKNOWN_LENGTH: u64 = u64::MAX;
/// No limit on the captured length (section 4.2).
const NO_SNAP_LENGTH: u32 = 0;

/// Option codes: of all blocks (section 3.5), sections, interfaces and packets.
const COMMENT: u16 = 1;
const SECTION_OS: u16 = 3;
const SECTION_PROGRAM: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
/// Unit of time stamps: 10⁻⁹ s.
const NANOSECONDS: u8 = 9;
/// Maximum length of an option's value: the largest multiple of 4 in 16 bits.
const LONGEST_OPTION: usize = 0xfffc;

/// Link type (the registry of LINKTYPE_ values).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkType {
    Ethernet = 1,
    /// An IPv4 or IPv6 header.
    Raw = 101,
}

/// Direction of a packet (section 4.3.1, bits 0 and 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Unknown = 0,
    /// The interface received it.
    Inbound = 1,
    /// The interface sent it.
    Outbound = 2,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnhancedPacket<'a> {
    /// Number of the interface block, from 0, in the order of the file.
    pub interface: u32,
    /// Time since 1970, ns.
    pub time_ns: u64,
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// Original length of the packet, bytes.
    pub length: u32,
    pub direction: Direction,
    pub comments: &'a [String],
}

/// Returns the section header block that starts a file.
pub fn section(operating_system: &str, program: &str) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(BYTE_ORDER.to_le_bytes());
    // Version 1.0.
    body.extend(1_u16.to_le_bytes());
    body.extend(0_u16.to_le_bytes());
    body.extend(UNKNOWN_LENGTH.to_le_bytes());
    put_option(&mut body, SECTION_OS, operating_system.as_bytes());
    put_option(&mut body, SECTION_PROGRAM, program.as_bytes());
    end_options(&mut body);
    block(SECTION_HEADER, &body)
}

/// Returns an interface description block, with time stamps in nanoseconds.
pub fn interface(link: LinkType, name: &str, description: &str) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend((link as u16).to_le_bytes());
    body.extend(0_u16.to_le_bytes());
    body.extend(NO_SNAP_LENGTH.to_le_bytes());
    put_option(&mut body, INTERFACE_NAME, name.as_bytes());
    put_option(&mut body, INTERFACE_DESCRIPTION, description.as_bytes());
    put_option(&mut body, INTERFACE_RESOLUTION, &[NANOSECONDS]);
    end_options(&mut body);
    block(INTERFACE, &body)
}

impl EnhancedPacket<'_> {
    pub fn block(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.interface.to_le_bytes());
        body.extend(((self.time_ns >> 32) as u32).to_le_bytes());
        body.extend((self.time_ns as u32).to_le_bytes());
        // No overflow: events have at most some thousand bytes.
        body.extend((self.bytes.len() as u32).to_le_bytes());
        body.extend(self.length.to_le_bytes());
        put_padded(&mut body, self.bytes);
        for comment in self.comments {
            put_option(&mut body, COMMENT, comment.as_bytes());
        }
        put_option(&mut body, PACKET_FLAGS, &(self.direction as u32).to_le_bytes());
        end_options(&mut body);
        block(ENHANCED_PACKET, &body)
    }
}

/// Returns a block: type, length, body, and the length again.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes()[..], &length, body, &length].concat()
}

fn put_padded(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(bytes);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Adds an option; text that is too long is truncated at a character boundary.
fn put_option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    let mut length = value.len().min(LONGEST_OPTION);
    while length < value.len() && value[length] & 0xc0 == 0x80 {
        length -= 1;
    }
    to.extend(code.to_le_bytes());
    to.extend((length as u16).to_le_bytes());
    put_padded(to, &value[..length]);
}

fn end_options(to: &mut Vec<u8>) {
    to.extend([0; 4]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte of a file, by the draft's figures.
    #[test]
    fn a_file_has_these_bytes() {
        let comments = ["step 1".to_owned(), "µ".to_owned()];
        let packet = EnhancedPacket {
            interface: 1,
            time_ns: 0x0102_0304_0506_0708,
            bytes: &[0x45, 1, 2, 3, 4],
            length: 1400,
            direction: Direction::Outbound,
            comments: &comments,
        };
        let file = [
            section("Linux", "overlane"),
            interface(LinkType::Ethernet, "a/eth0", "x"),
            interface(LinkType::Raw, "a", ""),
            packet.block(),
        ]
        .concat();
        #[rustfmt::skip]
        let expected: &[&[u8]] = &[
            // Section: type, length, byte order, version 1.0, length not known.
            &[0x0a, 0x0d, 0x0d, 0x0a], &[56, 0, 0, 0], &[0x4d, 0x3c, 0x2b, 0x1a],
            &[1, 0, 0, 0], &[0xff; 8],
            &[3, 0, 5, 0], b"Linux\0\0\0", &[4, 0, 8, 0], b"overlane", &[0; 4], &[56, 0, 0, 0],
            // Interfaces: type, length, link type, no snap length, name, description, 10⁻⁹ s.
            &[1, 0, 0, 0], &[52, 0, 0, 0], &[1, 0, 0, 0], &[0; 4],
            &[2, 0, 6, 0], b"a/eth0\0\0", &[3, 0, 1, 0], b"x\0\0\0",
            &[9, 0, 1, 0, 9, 0, 0, 0], &[0; 4], &[52, 0, 0, 0],
            &[1, 0, 0, 0], &[44, 0, 0, 0], &[101, 0, 0, 0], &[0; 4],
            &[2, 0, 1, 0], b"a\0\0\0", &[3, 0, 0, 0],
            &[9, 0, 1, 0, 9, 0, 0, 0], &[0; 4], &[44, 0, 0, 0],
            // Packet: type, length, interface, time (high, low), captured, original length.
            &[6, 0, 0, 0], &[72, 0, 0, 0], &[1, 0, 0, 0], &[4, 3, 2, 1], &[8, 7, 6, 5],
            &[5, 0, 0, 0], &[0x78, 5, 0, 0], &[0x45, 1, 2, 3, 4, 0, 0, 0],
            &[1, 0, 6, 0], b"step 1\0\0", &[1, 0, 2, 0], &[0xc2, 0xb5, 0, 0],
            &[2, 0, 4, 0], &[2, 0, 0, 0], &[0; 4], &[72, 0, 0, 0],
        ];
        assert_eq!(file, expected.concat());
    }

    #[test]
    fn text_that_is_too_long_is_cut_at_a_character() {
        // Two bytes per character: truncation would split the last one.
        let text = format!("x{}", "µ".repeat(40_000));
        let block = interface(LinkType::Raw, &text, "");
        let length = usize::from(u16::from_le_bytes([block[18], block[19]]));
        assert_eq!(length, LONGEST_OPTION - 1);
        assert!(std::str::from_utf8(&block[20..20 + length]).is_ok());
        assert_eq!(block.len() % 4, 0);
        assert_eq!(block.len() as u32, u32::from_le_bytes(block[4..8].try_into().unwrap()));
    }

    proptest::proptest! {
        /// A reader that knows nothing of blocks but their lengths finds them all, and in each
        /// the options behind the packet.
        #[test]
        fn a_block_is_as_long_as_it_says(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
            comments in proptest::collection::vec(".{0,70}", 0..4),
        ) {
            let packet = EnhancedPacket {
                interface: 0,
                time_ns: 1,
                bytes: &bytes,
                length: 9000,
                direction: Direction::Unknown,
                comments: &comments,
            };
            let block = packet.block();
            let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
            proptest::prop_assert_eq!(block.len() as u32, word(4));
            proptest::prop_assert_eq!(word(4), word(block.len() - 4));
            proptest::prop_assert_eq!(word(20) as usize, bytes.len());
            proptest::prop_assert_eq!(&block[28..28 + bytes.len()], &bytes[..]);
            let (mut at, mut found) = (28 + bytes.len().next_multiple_of(4), Vec::new());
            while word(at) != 0 {
                let (code, length) = (word(at) as u16, (word(at) >> 16) as usize);
                if code == COMMENT {
                    found.push(String::from_utf8(block[at + 4..at + 4 + length].to_vec()).unwrap());
                }
                at += 4 + length.next_multiple_of(4);
            }
            proptest::prop_assert_eq!(at, block.len() - 8);
            proptest::prop_assert_eq!(found, comments);
        }
    }
}
