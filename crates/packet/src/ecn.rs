//! Explicit congestion notification across a tunnel: RFC 6040.

/// The two ECN bits of the IPv4 TOS octet or IPv6 traffic class (RFC 3168, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// 00: not ECN-capable.
    NotEct,
    /// 01: ECN-capable, ECT(1).
    Ect1,
    /// 10: ECN-capable, ECT(0).
    Ect0,
    /// 11: congestion experienced.
    Ce,
}

impl Ecn {
    /// Returns the ECN bits of a TOS octet or traffic class.
    pub const fn of(tos: u8) -> Ecn {
        match tos & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Returns the value of the two bits, 0 to 3.
    pub const fn bits(self) -> u8 {
        match self {
            Ecn::NotEct => 0,
            Ecn::Ect1 => 1,
            Ecn::Ect0 => 2,
            Ecn::Ce => 3,
        }
    }

    /// Returns a TOS octet or traffic class with these ECN bits instead of its own.
    pub const fn on(self, tos: u8) -> u8 {
        tos & !3 | self.bits()
    }
}

/// How the outer ECN bits are derived from the inner ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Ingress {
    /// RFC 6040, section 4.1, normal mode: a copy.
    #[default]
    Normal,
    /// RFC 6040, section 4.1, compatibility mode: always Not-ECT.
    Compatibility,
    /// `INET_ECN_encapsulate` of the kernel (RFC 3168, full functionality): a copy, but ECT(0) for
    /// CE. Used where packets must equal the kernel's.
    Linux,
}

impl Ingress {
    /// Returns the outer ECN bits.
    pub const fn outer(self, inner: Ecn) -> Ecn {
        match (self, inner) {
            (Ingress::Compatibility, _) => Ecn::NotEct,
            (Ingress::Linux, Ecn::Ce) => Ecn::Ect0,
            (Ingress::Normal | Ingress::Linux, inner) => inner,
        }
    }
}

/// The action of a tunnel endpoint on a decapsulated packet: RFC 6040, section 4.2, figure 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Egress {
    /// Forward with these inner ECN bits.
    Forward(Ecn),
    /// Forward with these inner ECN bits. The combination is currently unused and should be
    /// counted.
    ForwardUnexpected(Ecn),
    /// Drop: the inner packet is not ECN-capable, so congestion can only be signalled by loss.
    Drop,
}

/// Decides about a decapsulated packet by its inner and outer ECN bits.
pub const fn decapsulate(inner: Ecn, outer: Ecn) -> Egress {
    match (inner, outer) {
        (Ecn::NotEct, Ecn::NotEct) => Egress::Forward(Ecn::NotEct),
        (Ecn::NotEct, Ecn::Ect0 | Ecn::Ect1) => Egress::ForwardUnexpected(Ecn::NotEct),
        (Ecn::NotEct, Ecn::Ce) => Egress::Drop,
        (Ecn::Ce, Ecn::Ect1) => Egress::ForwardUnexpected(Ecn::Ce),
        (Ecn::Ce, _) | (_, Ecn::Ce) => Egress::Forward(Ecn::Ce),
        (Ecn::Ect0, Ecn::Ect1) => Egress::Forward(Ecn::Ect1),
        (Ecn::Ect1, Ecn::Ect0) => Egress::ForwardUnexpected(Ecn::Ect1),
        (inner, _) => Egress::Forward(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::Ecn::{Ce, Ect0, Ect1, NotEct};
    use super::Egress::{Drop, Forward, ForwardUnexpected};
    use super::*;

    #[test]
    fn figure_4_of_rfc_6040() {
        let outer = [NotEct, Ect0, Ect1, Ce];
        let rows = [
            (NotEct, [Forward(NotEct), ForwardUnexpected(NotEct), ForwardUnexpected(NotEct), Drop]),
            (Ect0, [Forward(Ect0), Forward(Ect0), Forward(Ect1), Forward(Ce)]),
            (Ect1, [Forward(Ect1), ForwardUnexpected(Ect1), Forward(Ect1), Forward(Ce)]),
            (Ce, [Forward(Ce), Forward(Ce), ForwardUnexpected(Ce), Forward(Ce)]),
        ];
        for (inner, wanted) in rows {
            for (outer, wanted) in outer.into_iter().zip(wanted) {
                assert_eq!(decapsulate(inner, outer), wanted, "{inner:?} in {outer:?}");
            }
        }
    }

    #[test]
    fn figure_3_of_rfc_6040() {
        for ecn in [NotEct, Ect0, Ect1, Ce] {
            assert_eq!(Ecn::of(ecn.on(0xb8)), ecn);
            assert_eq!(ecn.on(0xbb) >> 2, 0xb8 >> 2);
            assert_eq!(Ingress::Normal.outer(ecn), ecn);
            assert_eq!(Ingress::Compatibility.outer(ecn), NotEct);
        }
        assert_eq!(Ingress::Linux.outer(Ce), Ect0);
    }
}
