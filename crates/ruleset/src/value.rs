//! Partly known values, and the reasons why bits are unknown.

/// Why a result differs between packets of a flow, or is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Read from the packet: length, TTL, DSCP, payload.
    Packet,
    /// Changes with time, CPU or at random.
    Time,
    /// Counts packets, bytes or connections, so that skipping a packet changes the result.
    Counting,
    /// Has a side effect on each packet: log, queue, DSCP.
    Effect,
    /// Changes without a new generation of the rules: ipset, dynamic sets.
    Unannounced,
    /// Not specified by the flow, or unknown.
    Unknown,
}

/// Why it is uncertain whether a match holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt {
    /// Kind of reason.
    pub cause: Cause,
    /// The field, in terms of `nft`.
    pub what: &'static str,
}

impl Doubt {
    /// A doubt about field `what`.
    pub const fn new(cause: Cause, what: &'static str) -> Doubt {
        Doubt { cause, what }
    }
}

/// Whether a match holds for every packet of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    Yes,
    No,
    Maybe(Doubt),
}

impl Holds {
    pub(crate) fn of(holds: bool) -> Holds {
        if holds { Holds::Yes } else { Holds::No }
    }

    pub(crate) fn and(self, other: Holds) -> Holds {
        match (self, other) {
            (Holds::No, _) | (_, Holds::No) => Holds::No,
            (Holds::Maybe(doubt), _) | (_, Holds::Maybe(doubt)) => Holds::Maybe(doubt),
            _ => Holds::Yes,
        }
    }

    pub(crate) fn xor(self, inverted: bool) -> Holds {
        match self {
            Holds::Yes if inverted => Holds::No,
            Holds::No if inverted => Holds::Yes,
            same => same,
        }
    }
}

/// A byte with partly known bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Byte {
    /// Unknown bits are zero.
    pub(crate) value: u8,
    /// Mask of known bits.
    pub(crate) known: u8,
    /// Why the other bits are unknown.
    pub(crate) doubt: Doubt,
}

impl Byte {
    pub(crate) const fn known(value: u8) -> Byte {
        Byte { value, known: 0xff, doubt: Doubt::new(Cause::Unknown, "") }
    }

    pub(crate) const fn unknown(doubt: Doubt) -> Byte {
        Byte { value: 0, known: 0, doubt }
    }

    pub(crate) const fn bits(value: u8, known: u8, doubt: Doubt) -> Byte {
        Byte { value: value & known, known, doubt }
    }

    /// `self & mask ^ xor`.
    pub(crate) fn masked(self, mask: u8, xor: u8) -> Byte {
        let known = self.known | !mask;
        Byte { value: (self.value & mask ^ xor) & known, known, ..self }
    }

    const fn largest(self) -> u8 {
        self.value | !self.known
    }
}

pub(crate) fn known(bytes: &[u8]) -> Vec<Byte> {
    bytes.iter().map(|byte| Byte::known(*byte)).collect()
}

/// Returns the value if all bits are known.
pub(crate) fn whole(bytes: &[Byte]) -> Option<Vec<u8>> {
    bytes.iter().map(|byte| (byte.known == 0xff).then_some(byte.value)).collect()
}

/// Returns the first reason why a value is unknown.
pub(crate) fn doubt(bytes: &[Byte]) -> Doubt {
    let unknown = bytes.iter().find(|byte| byte.known != 0xff);
    unknown.map_or(Doubt::new(Cause::Unknown, "unknown value"), |byte| byte.doubt)
}

/// `NFT_CMP_*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `NFT_CMP_EQ`.
    Equal,
    /// `NFT_CMP_NEQ`.
    NotEqual,
    /// `NFT_CMP_LT`, as in `memcmp`.
    Less,
    /// `NFT_CMP_LTE`, as in `memcmp`.
    LessOrEqual,
    /// `NFT_CMP_GT`, as in `memcmp`.
    Greater,
    /// `NFT_CMP_GTE`, as in `memcmp`.
    GreaterOrEqual,
}

/// Compares as `memcmp` does.
pub(crate) fn compare(bytes: &[Byte], how: Comparison, with: &[u8]) -> Holds {
    let maybe = || Holds::Maybe(doubt(bytes));
    let equal = || {
        let differs = |(byte, with): (&Byte, &u8)| (byte.value ^ with) & byte.known != 0;
        // A single differing known bit decides.
        if bytes.len() != with.len() || bytes.iter().zip(with).any(differs) {
            Holds::No
        } else if bytes.iter().all(|byte| byte.known == 0xff) {
            Holds::Yes
        } else {
            maybe()
        }
    };
    let least = || bytes.iter().map(|byte| byte.value);
    let most = || bytes.iter().map(|byte| byte.largest());
    // Bytes compare lexicographically, so a value lies between the one with all unknown bits zero
    // and the one with all of them one.
    let with = || with.iter().copied();
    let both = |at_least: bool, at_most: bool| match (at_least, at_most) {
        (true, true) => Holds::Yes,
        (false, false) => Holds::No,
        _ => maybe(),
    };
    match how {
        Comparison::Equal => equal(),
        Comparison::NotEqual => equal().xor(true),
        Comparison::Less => both(least().lt(with()), most().lt(with())),
        Comparison::LessOrEqual => both(least().le(with()), most().le(with())),
        Comparison::Greater => both(least().gt(with()), most().gt(with())),
        Comparison::GreaterOrEqual => both(least().ge(with()), most().ge(with())),
    }
}

/// Whether a value is within both bounds.
pub(crate) fn within(bytes: &[Byte], from: &[u8], to: &[u8]) -> Holds {
    let lower = compare(bytes, Comparison::GreaterOrEqual, from);
    lower.and(compare(bytes, Comparison::LessOrEqual, to))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LENGTH: Doubt = Doubt::new(Cause::Packet, "meta length");

    proptest! {
        /// A result for a partly known value holds for each value that it can have.
        #[test]
        fn a_comparison_holds_for_every_value(
            value: [u8; 2], known: [u8; 2], free: [u8; 2], with: [u8; 2], how in 0..6_usize,
        ) {
            use Comparison::*;
            let how = [Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual][how];
            let bytes: Vec<Byte> =
                (0..2).map(|at| Byte::bits(value[at], known[at], LENGTH)).collect();
            let exact: Vec<u8> =
                (0..2).map(|at| value[at] & known[at] | free[at] & !known[at]).collect();
            let truth = match how {
                Equal => exact[..] == with,
                NotEqual => exact[..] != with,
                Less => exact[..] < with[..],
                LessOrEqual => exact[..] <= with[..],
                Greater => exact[..] > with[..],
                GreaterOrEqual => exact[..] >= with[..],
            };
            match compare(&bytes, how, &with) {
                Holds::Yes => prop_assert!(truth),
                Holds::No => prop_assert!(!truth),
                Holds::Maybe(doubt) => prop_assert_eq!(doubt, LENGTH),
            }
        }

        #[test]
        fn masked_bits_are_known(value: u8, known: u8, free: u8, mask: u8, xor: u8) {
            let byte = Byte::bits(value, known, LENGTH).masked(mask, xor);
            let exact = (value & known | free & !known) & mask ^ xor;
            prop_assert_eq!(byte.value, exact & byte.known);
            prop_assert_eq!(byte.known, known | !mask);
        }
    }
}
