//! Kernel answers as seeds of a fuzz target. The bounded tests of this crate and `cargo xtask
//! corpus` generate them.

/// `struct nlattr` with a value, padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// `oifname nic0 tcp option maxseg size set 1360`, as nftables lists it.
pub fn rule() -> Vec<u8> {
    let number = |kind, number: u32| attribute(kind, &number.to_be_bytes());
    let expression = |name: &str, data: Vec<Vec<u8>>| {
        let inside = [attribute(1, name.as_bytes()), attribute(2, &data.concat())].concat();
        attribute(1, &inside)
    };
    let name = attribute(3, &attribute(1, b"nic0\0\0\0\0\0\0\0\0\0\0\0\0"));
    let size = attribute(2, &attribute(1, &1360_u16.to_be_bytes()));
    let expressions = [
        expression("meta", vec![number(2, 7), number(1, 1)]),
        expression("cmp", vec![number(1, 1), number(2, 0), name]),
        expression("immediate", vec![number(1, 1), size]),
        expression("exthdr", vec![number(7, 1), attribute(2, &[2]), number(6, 1)]),
    ];
    let named = [attribute(1, b"mss\0"), attribute(2, b"forward\0")].concat();
    [&[1, 0, 0, 0][..], &named, &attribute(4, &expressions.concat())].concat()
}

pub fn datapath() -> Vec<u8> {
    let counts: Vec<u8> = [23_u64, 7, 1, 3].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let attributes = [attribute(1, b"ovs-system\0"), attribute(3, &counts)].concat();
    [&[1, 2, 0, 0, 5, 0, 0, 0][..], &attributes].concat()
}

/// One rule of a legacy table: `-o nic0 -j TCPMSS --clamp-mss-to-pmtu`.
pub fn table() -> Vec<u8> {
    let mut entry = vec![0; 112 + 40];
    entry[32..36].copy_from_slice(b"nic0");
    entry[64..69].fill(0xff);
    entry[88..90].copy_from_slice(&112_u16.to_ne_bytes());
    entry[90..92].copy_from_slice(&152_u16.to_ne_bytes());
    entry[112 + 2..112 + 8].copy_from_slice(b"TCPMSS");
    entry[112 + 32..112 + 34].fill(0xff);
    [&[0; 5][..], &entry].concat()
}
