//! Compares translated expressions with libpcap's own filter.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sys::libpcap;
use test_support::require;

use super::*;

/// Same as `SNAPSHOT_BYTES` of `bpf/event.h`.
const ROOM_OF_BYTES: usize = 2048;

/// Expressions of every kind that libpcap has for Ethernet.
const EXPRESSIONS: [&str; 34] = [
    "",
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp port 53",
    "tcp dst port 80 or tcp src port 443",
    "portrange 50-100",
    "icmp[icmptype] = icmp-echo",
    "host 10.1.0.11",
    "src net 10.1.0.0/24 and not dst host 10.1.0.12",
    "ip6 host 2001:db8::1",
    "ip6 net 2001:db8::/32 and tcp port 80",
    "ether host 02:00:00:00:00:01",
    "ether broadcast or multicast",
    "vlan 7 and udp",
    "ip[0] & 0xf != 5",
    "ip[6:2] & 0x3fff != 0",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not src and dst net 10.0.0.0/8",
    "tcp[12] >> 4 > 5",
    "tcp[4:4] % 7 = 3",
    "ip[2:2] - ((ip[0] & 0xf) << 2) > 40",
    "ip[ip[1]] = ip[9]",
    "ip[2:2] / ip[8] = 2",
    "ip[8] * 3 + 1 < ip[2:2] ^ 5",
    "1 << ip[8] > ip[2:2]",
    "ip[2:2] >> ip[1] = 1",
    "-ip[8] + 256 > len",
    "len > 100",
    "greater 60 and less 1000",
    "udp[8:4] = 0x01020304",
    "ether[5000] = 1 or ip",
    "ip proto 47 or ip6 proto 17",
    "not (tcp or udp or icmp)",
];

/// Interprets [`Extended`] as specified by RFC 9669; `None`: a read or jump out of bounds.
fn run(function: &[Extended], bytes: &[u8], begin: u32, end: u32, length: u32) -> Option<u64> {
    const MEMORY: u64 = 1 << 40;
    let mut registers = [0_u64; 11];
    // Upper halves may be anything.
    let dirt = 0xdead_0000_0000_u64;
    (registers[1], registers[2]) = (MEMORY, u64::from(begin) | dirt);
    (registers[3], registers[4]) = (u64::from(end) | dirt, u64::from(length) | dirt);
    let mut stack: [Option<u32>; 16] = [None; 16];
    let slot = |offset: i16| usize::try_from(-i32::from(offset) / 4 - 1).ok();
    let mut at = 0_usize;
    loop {
        let one = function.get(at)?;
        let (to, from) = (usize::from(one.to), usize::from(one.from));
        let is_register = one.code & 0x08 > 0;
        let immediate = one.immediate as i64 as u64;
        let operand = if is_register { registers[from] } else { immediate };
        at += 1;
        let jump = |does: bool| if does { one.offset as usize } else { 0 };
        match one.code {
            0x95 => return Some(registers[0]),
            // Reads of the packet, or of the stack.
            0x61 if one.from == 10 => registers[to] = (*stack.get(slot(one.offset)?)?)?.into(),
            0x61 | 0x69 | 0x71 => {
                let place = usize::try_from(registers[from].checked_sub(MEMORY)?).ok()?;
                let size = [4, 2, 1][usize::from(one.code >> 3 & 3)];
                let read = bytes.get(place..place + size)?;
                let mut word = [0; 8];
                word[..size].copy_from_slice(read);
                registers[to] = u64::from_le_bytes(word);
            }
            0x62 => *stack.get_mut(slot(one.offset)?)? = Some(one.immediate as u32),
            0x63 => *stack.get_mut(slot(one.offset)?)? = Some(registers[from] as u32),
            0xdc if one.immediate == 16 => {
                registers[to] = (registers[to] as u16).swap_bytes().into();
            }
            0xdc => registers[to] = (registers[to] as u32).swap_bytes().into(),
            0x05 => at += one.offset as usize,
            0x25 | 0x2d => at += jump(registers[to] > operand),
            code if code & 7 == 6 => {
                let (left, right) = (registers[to] as u32, operand as u32);
                at += jump(match code & 0xf0 {
                    0x10 => left == right,
                    0x20 => left > right,
                    0x30 => left >= right,
                    0x40 => left & right != 0,
                    _ => return None,
                });
            }
            0xbf => registers[to] = operand,
            0x07 | 0x0f => registers[to] = registers[to].wrapping_add(operand),
            code if code & 7 == 4 => {
                let (left, right) = (registers[to] as u32, operand as u32);
                registers[to] = u64::from(match code & 0xf0 {
                    0x00 => left.wrapping_add(right),
                    0x10 => left.wrapping_sub(right),
                    0x20 => left.wrapping_mul(right),
                    0x30 => left.checked_div(right)?,
                    0x40 => left | right,
                    0x50 => left & right,
                    // Masked, as the kernel does.
                    0x60 => left << (right & 31),
                    0x70 => left >> (right & 31),
                    0x80 => left.wrapping_neg(),
                    0x90 => left.checked_rem(right)?,
                    0xa0 => left ^ right,
                    0xb0 => right,
                    _ => return None,
                });
            }
            _ => return None,
        }
    }
}

prop_compose! {
    /// Headers whose fields are often those that the expressions ask for.
    fn frame()(
        tag in prop::option::weighted(0.2, Just([0x81, 0, 0, 7])),
        kind in prop::sample::select(vec![[8, 0], [8, 0], [8, 0], [0x86, 0xdd], [8, 6], [0, 9]]),
        first in prop::sample::select(vec![0x45, 0x45, 0x46, 0x4f, 0x60]),
        protocol in prop::sample::select(vec![1, 6, 17, 47, 51, 58]),
        addresses in prop::collection::vec(prop::sample::select(vec![
            [10, 1, 0, 11], [10, 1, 0, 12], [10, 2, 0, 1], [0x20, 1, 0x0d, 0xb8], [0, 0, 0, 1],
        ]), 8),
        ports in prop::collection::vec(prop::sample::select(vec![53_u8, 80, 99, 187]), 2),
        mac in prop::sample::select(vec![[2, 0, 0, 0, 0, 1], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]]),
        noise in prop::collection::vec(any::<u8>(), 60),
        small in any::<bool>(),
    ) -> Vec<u8> {
        let mut frame = [&mac[..], &[2, 0, 0, 0, 0, 1], tag.as_ref().map_or(&[], |t| &t[..])].concat();
        frame.extend(kind);
        let ip = frame.len();
        frame.push(first);
        frame.extend(&noise[..if first == 0x60 { 5 } else { 8 }]);
        frame.push(protocol);
        frame.extend(&noise[8..10]);
        if first == 0x60 {
            // Next header is at 6, addresses from 8 on.
            frame[ip + 6] = protocol;
            frame.truncate(ip + 8);
        }
        frame.extend(addresses.concat().iter().take(if first == 0x60 { 32 } else { 8 }));
        frame.extend([0, ports[0], 0, ports[1]]);
        frame.extend(&noise[10..]);
        if small {
            // Few bits, so that shifts and divisions have something to do.
            for at in [1, 2, 8] {
                frame[ip + at] &= 0x0f;
            }
        }
        frame
    }
}

/// The function gives the same answer as libpcap: for the frame itself, truncated anywhere, and at
/// any offset in the buffer.
#[test]
fn the_function_is_what_libpcap_would_say() {
    require!(libpcap::compile("").map_err(|error| error.to_string()));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(2000));
    let text = prop::sample::select(EXPRESSIONS.to_vec());
    let cases = (frame(), 0_usize..120, 0_usize..200, 0_u32..2000, text);
    let result = runner.run(&cases, |(frame, cut, begin, more, text)| {
        let program = libpcap::compile(text).unwrap();
        let function = translate(program.instructions()).unwrap();
        let captured = cut.min(frame.len());
        let mut memory = vec![0xa5; ROOM_OF_BYTES];
        memory[begin..begin + frame.len()].copy_from_slice(&frame);
        let length = captured as u32 + more;
        let expected = program.matches(&frame[..captured], length).unwrap();
        let end = (begin + captured) as u32;
        let got = run(&function, &memory, begin as u32, end, length);
        prop_assert_eq!(got.map(|answer| answer as u32 != 0), Some(expected), "{}", text);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn every_expression_can_be_compiled() {
    require!(libpcap::compile("").map_err(|error| error.to_string()));
    for text in EXPRESSIONS {
        let expression = Expression::compile(text).unwrap();
        assert_eq!(expression.function.last(), Some(&EVERY[1]), "{text}");
    }
    for (text, problem) in [("ip protochain 17", "loop"), ("inbound", "not in the packet")] {
        let error = Expression::compile(text).unwrap_err();
        assert!(error.to_string().contains(problem), "{text}: {error}");
    }
}

/// The object as built.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.bpf.o"));

#[test]
fn the_object_has_room_for_one() {
    require!(libpcap::compile("").map_err(|error| error.to_string()));
    let expression = Expression::compile("udp port 53").unwrap();
    let [room] = rooms(OBJECT).unwrap()[..] else { panic!("{:?}", rooms(OBJECT)) };
    let with = put_into(OBJECT, Some(&expression)).unwrap();
    let code: Vec<u8> = expression.function.iter().flat_map(Extended::bytes).collect();
    assert_eq!(with[room.code_at..room.code_at + code.len()], code);
    let changed = OBJECT.iter().zip(&with).filter(|(old, new)| old != new).count();
    assert!(with.len() == OBJECT.len() && changed <= code.len() + 8, "{changed}");
    assert!(put_into(&with, None).unwrap_err().contains("exactly one"), "it is taken");
}

proptest! {
    /// A damaged object is refused, or changed only within its bounds.
    #[test]
    fn objects_that_are_broken_are_refused(
        at in 0..OBJECT.len(),
        bytes in prop::collection::vec(any::<u8>(), 1..16),
        length in 0..=OBJECT.len(),
    ) {
        let mut object = OBJECT.to_vec();
        let end = (at + bytes.len()).min(object.len());
        object[at..end].copy_from_slice(&bytes[..end - at]);
        // Damage in the header and the section table has the most effect.
        let header = 40 + at % 24;
        for object in [&object[..], &object[..length], &[&object[..header], &bytes, &object[header..]].concat()] {
            if let Ok(with) = put_into(object, None) {
                prop_assert_eq!(with.len(), object.len());
            }
        }
    }
}

#[test]
fn invalid_programs_are_refused() {
    let one = |code, when_true, k| libpcap::Instruction { code, when_true, when_false: 0, k };
    for (program, error) in [
        (&[][..], TranslateError::Outside { at: 0 }),
        (&[one(0x28, 0, 12)], TranslateError::Outside { at: 0 }),
        (&[one(0x15, 9, 0), one(0x06, 0, 0)], TranslateError::Outside { at: 0 }),
        (&[one(0x05, 0, 9), one(0x06, 0, 0)], TranslateError::Outside { at: 0 }),
        (&[one(0xe4, 0, 0), one(0x06, 0, 0)], TranslateError::Unknown { at: 0, code: 0xe4 }),
        (&[one(0x38, 0, 0), one(0x06, 0, 0)], TranslateError::Unknown { at: 0, code: 0x38 }),
    ] {
        assert_eq!(translate(program), Err(error));
    }
}
