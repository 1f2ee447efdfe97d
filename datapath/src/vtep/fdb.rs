//! Which hardware address is where: entries as configured, and learned ones. An
//! address that is claimed from two places does not go back and forth.

use std::net::IpAddr;

use packet::ethernet::MacAddr;

use super::table::Table;

/// Where an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Behind the TAP.
    Local,
    /// Behind that remote end.
    Remote(IpAddr),
}

/// The forwarding table of one network.
pub type Fdb = Table<MacAddr, Place>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vtep::table::{Learned, Limits};

    const LIMITS: Limits = Limits { ageing: 300, entries: 3, moves: 2 };

    fn mac(last: u8) -> MacAddr {
        MacAddr([2, 0, 0, 0, 0, last])
    }

    fn find(fdb: &Fdb, mac: MacAddr, now: u32, limits: &Limits) -> Option<Place> {
        fdb.find(mac, now, limits).map(|(place, _)| place)
    }

    fn remote(last: u8) -> Place {
        Place::Remote(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn learned_confirmed_forgotten() {
        let fdb = Fdb::new([]);
        assert_eq!(find(&fdb, mac(1), 0, &LIMITS), None);
        assert_eq!(fdb.learn(mac(1), remote(1), 0, &LIMITS), Learned::New);
        assert_eq!(fdb.learn(mac(1), remote(1), 300, &LIMITS), Learned::Known);
        assert_eq!(find(&fdb, mac(1), 600, &LIMITS), Some(remote(1)));
        assert_eq!(find(&fdb, mac(1), 601, &LIMITS), None);
    }

    #[test]
    fn the_number_of_entries_is_bounded_and_old_ones_make_room() {
        let fdb = Fdb::new([(mac(200), remote(9))]);
        for n in 0..100 {
            let learned = fdb.learn(mac(n), remote(1), 10, &LIMITS);
            assert_eq!(learned, if n < 3 { Learned::New } else { Learned::Full });
        }
        assert_eq!(fdb.count(), (1, 3));
        assert_eq!(fdb.learn(mac(1), Place::Local, 300, &LIMITS), Learned::Moved);
        assert_eq!(fdb.learn(mac(50), remote(1), 311, &LIMITS), Learned::New);
        assert_eq!(fdb.count(), (1, 2), "the two of second 10 are forgotten");
    }

    #[test]
    fn an_address_moves_so_often_and_no_more() {
        let fdb = Fdb::new([]);
        fdb.learn(mac(1), remote(1), 100, &LIMITS);
        assert_eq!(fdb.learn(mac(1), remote(2), 100, &LIMITS), Learned::Moved);
        assert_eq!(fdb.learn(mac(1), Place::Local, 101, &LIMITS), Learned::Moved);
        assert_eq!(fdb.learn(mac(1), remote(2), 159, &LIMITS), Learned::TooOften);
        assert_eq!(find(&fdb, mac(1), 159, &LIMITS), Some(Place::Local));
        assert_eq!(fdb.learn(mac(1), remote(2), 160, &LIMITS), Learned::Moved);
    }

    #[test]
    fn what_is_configured_stays() {
        let fdb = Fdb::new([(mac(1), remote(1))]);
        assert_eq!(fdb.learn(mac(1), remote(1), 0, &LIMITS), Learned::Known);
        assert_eq!(fdb.learn(mac(1), remote(2), 0, &LIMITS), Learned::Configured);
        assert!(fdb.contradicts(mac(1), Place::Local) && !fdb.contradicts(mac(1), remote(1)));
        assert_eq!(find(&fdb, mac(1), 1_000_000, &LIMITS), Some(remote(1)));
        fdb.learn(mac(2), remote(2), 0, &LIMITS);
        fdb.learn(mac(3), remote(3), 0, &LIMITS);
        fdb.configure([], |place| *place != remote(2));
        assert_eq!(fdb.count(), (0, 1));
        assert_eq!(find(&fdb, mac(3), 0, &LIMITS), Some(remote(3)));
    }
}
