//! Packets lost between two machines, for one flow in one direction.
//!
//! Each host counts since a time of its own, and packets continue while counts are read. So a
//! reading gives two bounds of *D*, the packets that left minus the packets that arrived, each
//! since its host began to count:
//!
//! - `least`: packets that had left, minus packets that had arrived after waiting for them. Newer
//!   packets that arrived meanwhile make it smaller.
//! - `most`: packets that had left afterwards, minus packets that had arrived before. Packets in
//!   flight make it larger.
//!
//! The number of lost packets is *D* minus its initial value. *D* never falls, so its initial value
//! is at most the smallest `most` of all readings. For packets that were in flight at the start, it
//! is unknown whether they arrived, and they count for nothing. In a moment without traffic both
//! bounds are equal, and the number is exact.

/// Bounds of the packets that left and did not arrive. They are signed, because each host has its
/// own start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Lower bound.
    pub least: i128,
    /// Upper bound, including packets in flight.
    pub most: i128,
}

impl Bounds {
    /// Computes bounds from the packets that had left (`left`), those that had arrived after
    /// waiting for packets in flight (`came`), and those that had left after that was read
    /// (`left_later`).
    pub fn of(left: u64, came: u64, left_later: u64) -> Bounds {
        let [left, came, later] = [left, came, left_later].map(i128::from);
        // Counts only grow: a smaller later value is from another counter.
        Bounds { least: left - came, most: later.max(left) - came }
    }
}

/// Packets lost since the first reading.
#[derive(Debug, Clone, Default)]
pub struct Loss {
    /// Losses from before counts restarted.
    before: u64,
    state: Option<LossState>,
}

#[derive(Debug, Clone, Copy)]
struct LossState {
    /// Smallest `most` of all readings: the initial value of *D*.
    base: i128,
    lost: i128,
    open: i128,
}

impl Loss {
    /// Adds a reading. If both hosts count a flow from its first packet on (`is_new`), the initial
    /// value is known to be 0.
    pub fn add(&mut self, bounds: Bounds, is_new: bool) {
        let first = if is_new { 0 } else { bounds.most };
        let state = self.state.get_or_insert(LossState { base: first, lost: 0, open: 0 });
        state.base = state.base.min(bounds.most);
        let most = bounds.most - state.base;
        // Packets that took longer than expected were counted as lost. They have arrived, so the
        // upper bound falls.
        state.lost = (bounds.least - state.base).max(state.lost).clamp(0, most);
        state.open = most - state.lost;
    }

    /// Handles a restart of counts at one host: the losses so far are kept.
    pub fn begin_anew(&mut self) {
        self.before = self.lost();
        self.state = None;
    }

    /// Returns the number of lost packets.
    pub fn lost(&self) -> u64 {
        self.before.saturating_add(self.state.map_or(0, |state| clamped(state.lost)))
    }

    /// Returns the number of packets that are lost or still in flight.
    pub fn open(&self) -> u64 {
        self.state.map_or(0, |state| clamped(state.open))
    }
}

fn clamped(number: i128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packets_in_flight_are_not_lost() {
        let mut loss = Loss::default();
        loss.add(Bounds::of(0, 0, 0), true);
        // 100 left, 90 came, and 5 more left meanwhile.
        loss.add(Bounds::of(92, 90, 105), true);
        assert_eq!((loss.lost(), loss.open()), (2, 13));
        loss.add(Bounds::of(105, 100, 105), true);
        assert_eq!((loss.lost(), loss.open()), (5, 0));
    }

    #[test]
    fn late_packets_are_not_lost() {
        let mut loss = Loss::default();
        loss.add(Bounds::of(10, 4, 10), true);
        assert_eq!((loss.lost(), loss.open()), (6, 0));
        loss.add(Bounds::of(10, 10, 10), true);
        assert_eq!((loss.lost(), loss.open()), (0, 0));
    }

    #[test]
    fn counts_that_begin_anew_keep_what_was_lost() {
        let mut loss = Loss::default();
        loss.add(Bounds::of(10, 7, 10), true);
        loss.begin_anew();
        loss.add(Bounds::of(0, 500, 0), false);
        assert_eq!((loss.lost(), loss.open()), (3, 0));
        loss.add(Bounds::of(20, 519, 20), false);
        assert_eq!((loss.lost(), loss.open()), (4, 0));
    }

    /// Events between two readings.
    #[derive(Debug, Clone, Copy)]
    struct Between {
        sent: u64,
        lost: u64,
        /// Sent packets that are still in flight when the arrivals are read.
        flying: u64,
        /// Packets sent, and arrived, between the readings of sent and of received packets.
        meanwhile: u64,
        /// Sent after what came was read, before what left is read again.
        after: u64,
    }

    fn between() -> impl Strategy<Value = Between> {
        (0..50_u64, 0..50_u64, 0..20_u64, 0..20_u64).prop_flat_map(
            |(sent, flying, meanwhile, after)| {
                (0..=sent).prop_map(move |lost| Between { sent, lost, flying, meanwhile, after })
            },
        )
    }

    proptest! {
        /// Packets take less time than is waited for before what came is read.
        #[test]
        fn the_number_lost_is_within_the_bounds_and_exact_when_nothing_flies(
            steps in prop::collection::vec(between(), 1..30),
            beginnings in (0..1000_u64, 0..1000_u64),
            is_new: bool,
        ) {
            let beginnings = if is_new { (0, 0) } else { beginnings };
            let (mut left, mut came) = beginnings;
            let (mut truly, mut loss) = (0_u64, Loss::default());
            loss.add(Bounds::of(left, came, left), is_new);
            let mut last = 0;
            for step in steps {
                left += step.sent;
                came += step.sent - step.lost;
                truly += step.lost;
                let first = left;
                // Packets in between left after the first reading, and arrived before the second.
                left += step.meanwhile;
                came += step.meanwhile;
                // Packets in flight left after it, and arrive after the second.
                left += step.flying;
                let read = came;
                left += step.after;
                loss.add(Bounds::of(first, read, left), is_new);
                came += step.flying + step.after;
                prop_assert!(loss.lost() <= truly, "{} of {truly}", loss.lost());
                prop_assert!(loss.lost() + loss.open() >= truly);
                prop_assert!(loss.lost() >= last, "it was {last}");
                last = loss.lost();
            }
            // A moment in which nothing flies.
            loss.add(Bounds::of(left, came, left), is_new);
            prop_assert_eq!((loss.lost(), loss.open()), (truly, 0));
        }

        #[test]
        fn no_counts_make_it_panic(
            readings in prop::collection::vec((any::<[u64; 3]>(), any::<bool>()), 1..20)
        ) {
            let mut loss = Loss::default();
            for ([left, came, later], anew) in readings {
                if anew {
                    loss.begin_anew();
                }
                loss.add(Bounds::of(left, came, later), false);
                let _ = (loss.lost(), loss.open());
            }
        }
    }
}
