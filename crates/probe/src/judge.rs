//! Verdicts on classes, from the packets sent and the packets that arrived.

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::class::{Checksum, Class, Transport};
use crate::message::SendOutcome;
use crate::seen::Fault;
use crate::tally::Tally;

/// `EMSGSIZE`: the same number on all architectures of Linux that we build for.
const EMSGSIZE: i32 = nix::errno::Errno::EMSGSIZE as i32;

/// Verdict on a class in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(deny_unknown_fields))]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// Every packet arrived unchanged.
    Intact,
    /// Packets arrived damaged.
    Corrupted {
        /// Kinds of damage.
        faults: Vec<Fault>,
        /// Damaged frames.
        damaged: u32,
        /// Frames that arrived.
        of: u32,
    },
    /// Packets did not arrive.
    Lost {
        /// Packets of which some or all bytes are missing.
        lost: u32,
        /// Packets sent.
        of: u32,
    },
    /// Packets arrived after a later batch.
    Late,
    /// TCP segments have other boundaries than asked for: cut or merged elsewhere. No data is
    /// changed.
    Recut {
        /// Frames with other boundaries.
        frames: u32,
    },
    /// Lost, and lost without any offload, too: a filter or the size, not an offload.
    Filtered,
    /// The sender's own kernel refused the packet because of its size (`EMSGSIZE`).
    RefusedHere,
    /// Not testable here.
    Untestable {
        /// Why, in words.
        reason: String,
    },
}

impl Verdict {
    /// Whether an offload or the path damages or loses packets.
    pub fn is_bad(&self) -> bool {
        matches!(self, Verdict::Corrupted { .. } | Verdict::Lost { .. } | Verdict::Late)
    }

    /// Returns the word of a table.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Intact => "intact",
            Verdict::Corrupted { .. } => "corrupted",
            Verdict::Lost { .. } => "lost",
            Verdict::Late => "late",
            Verdict::Recut { .. } => "segmented elsewhere",
            Verdict::Filtered => "filtered",
            Verdict::RefusedHere => "refused by this kernel (EMSGSIZE)",
            Verdict::Untestable { .. } => "not testable here",
        }
    }

    /// Returns the damage or number of a verdict, for people.
    pub fn detail(&self) -> String {
        match self {
            Verdict::Corrupted { faults, damaged, of } => {
                let faults: Vec<&str> = faults.iter().map(|fault| fault.text()).collect();
                format!("{} in {damaged} of {of} packets", faults.join(", "))
            }
            Verdict::Lost { lost, of } => format!("{lost} of {of}"),
            Verdict::Recut { frames } => format!("{frames} frames"),
            Verdict::Untestable { reason } => reason.clone(),
            Verdict::Filtered => "lost without any offload, too".to_owned(),
            Verdict::Intact | Verdict::Late | Verdict::RefusedHere => String::new(),
        }
    }
}

/// Why this kernel does not send a class.
fn refusal(class: &Class, errno: i32) -> String {
    let errno = Errno::from_raw(errno);
    // VIRTIO_NET_HDR_GSO_UDP_L4, include/linux/virtio_net.h.
    match errno == Errno::EINVAL && class.transport == Transport::Udp && class.segments() > 1 {
        true => "packet sockets of this kernel send no UDP GSO packets (since Linux 6.2)".into(),
        false => format!("sendmsg: {}", errno.desc()),
    }
}

/// Judges a class. `late` is the number of its packets that arrived during a later batch.
pub fn judge(class: &Class, outcome: &SendOutcome, tally: &Tally, late: u32) -> Verdict {
    let sent = match outcome {
        // Nothing was sent, so nothing can be concluded about the path.
        SendOutcome::Skipped(reason) => return Verdict::Untestable { reason: reason.clone() },
        SendOutcome::Refused { errno: EMSGSIZE, sent: 0 } => return Verdict::RefusedHere,
        SendOutcome::Refused { errno, sent: 0 } => {
            return Verdict::Untestable { reason: refusal(class, *errno) };
        }
        SendOutcome::Refused { sent, .. } | SendOutcome::Sent(sent) => u32::from(*sent),
    };
    if !tally.faults.is_empty() {
        let damaged = tally.faults.values().copied().max().unwrap_or(0);
        let faults = tally.faults.keys().copied().collect();
        return Verdict::Corrupted { faults, damaged, of: tally.frames };
    }
    if tally.whole < sent {
        // Routers and NAT may drop wrong checksums, which says nothing about offloads.
        if class.checksum == Checksum::Wrong {
            let reason = "a device on the path drops wrong checksums".to_owned();
            return Verdict::Untestable { reason };
        }
        return match tally.frames == 0 && late > 0 {
            true => Verdict::Late,
            false => Verdict::Lost { lost: sent - tally.whole, of: sent },
        };
    }
    match tally.recut {
        0 => Verdict::Intact,
        frames => Verdict::Recut { frames },
    }
}

/// Judges a class again, after it and its control were sent several times.
///
/// Damage is never chance. A loss that does not happen again is: other traffic overflowed a queue.
pub fn confirm(first: Verdict, again: Verdict, control: &Verdict) -> Verdict {
    match (&first, &again) {
        (Verdict::Corrupted { .. }, Verdict::Corrupted { .. }) => again,
        (Verdict::Corrupted { .. }, _) => first,
        // Mostly lost.
        (_, Verdict::Lost { lost, of }) if lost * 2 >= *of => match control {
            Verdict::Lost { lost, of } if lost * 2 >= *of => Verdict::Filtered,
            Verdict::RefusedHere | Verdict::Untestable { .. } => again,
            _ => again,
        },
        (_, Verdict::Lost { .. }) => Verdict::Intact,
        _ => again,
    }
}

/// Returns the share of packets that is lost by chance, from controls sent with this number of
/// repetitions. Controls that are mostly lost are filtered, and say nothing about chance.
pub fn loss_of_controls<'a>(controls: impl Iterator<Item = &'a Verdict>, repetitions: u16) -> f64 {
    let (mut lost, mut sent) = (0, 0);
    for control in controls {
        match control {
            Verdict::Lost { lost: one, of } if one * 2 < *of => {
                lost += one;
                sent += of;
            }
            Verdict::Intact | Verdict::Recut { .. } => sent += u32::from(repetitions),
            // Filtered, or not sent.
            _ => {}
        }
    }
    f64::from(lost) / f64::from(sent.max(1))
}

/// Whether a loss of single packets with this probability explains a lost class: each of its
/// packets must arrive.
pub fn is_explained(verdict: &Verdict, class: &Class, loss: f64) -> bool {
    let Verdict::Lost { lost, of } = verdict else { return false };
    let of_class = 1.0 - (1.0 - loss).powi(class.segments().min(1000).cast_signed());
    at_least(*lost, *of, of_class) > CHANCE
}

/// Probability below which a loss is no chance. A default run looks at about 400 classes.
const CHANCE: f64 = 0.001;

/// Returns the probability of at least `count` events among `of` trials.
fn at_least(count: u32, of: u32, probability: f64) -> f64 {
    let mut sum = 0.0;
    let mut ways = 1.0;
    for k in 0..=of {
        if k > 0 {
            ways *= f64::from(of - k + 1) / f64::from(k);
        }
        if k >= count {
            let (hits, misses) = (k.cast_signed(), (of - k).cast_signed());
            sum += ways * probability.powi(hits) * (1.0 - probability).powi(misses);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(frames: u32, whole: u32) -> Tally {
        Tally { frames, whole, seen: frames, ..Tally::default() }
    }

    #[test]
    fn each_outcome_has_its_verdict() {
        let sent = SendOutcome::Sent(2);
        let damaged = Tally { faults: [(Fault::Tail, 1)].into(), ..tally(4, 1) };
        let recut = Tally { recut: 3, ..tally(6, 2) };
        let wrong = Class { checksum: Checksum::Wrong, ..Class::PLAIN };
        let plain = Class::PLAIN;
        for (class, outcome, tally, late, word) in [
            (plain, &sent, tally(2, 2), 0, "intact"),
            (plain, &sent, tally(0, 0), 0, "lost"),
            (plain, &sent, tally(1, 1), 0, "lost"),
            (plain, &sent, tally(0, 0), 2, "late"),
            (plain, &sent, damaged, 0, "corrupted"),
            (plain, &sent, recut, 0, "segmented elsewhere"),
            (wrong, &sent, tally(0, 0), 0, "not testable here"),
            (
                plain,
                &SendOutcome::Refused { errno: EMSGSIZE, sent: 0 },
                tally(0, 0),
                0,
                "refused by this kernel (EMSGSIZE)",
            ),
            (plain, &SendOutcome::Skipped("no".into()), tally(0, 0), 0, "not testable here"),
        ] {
            assert_eq!(judge(&class, outcome, &tally, late).word(), word);
        }
    }

    #[test]
    fn losses_that_single_packets_have_too_are_no_findings() {
        let gso = Class { segment: 1000, payload: 4000, ..Class::PLAIN };
        let lost = |lost| Verdict::Lost { lost, of: 6 };
        for (verdict, class, loss, explained) in [
            (lost(6), gso, 0.0, false),
            (lost(3), gso, 0.0, false),
            (lost(3), Class::PLAIN, 0.0, false),
            (lost(6), gso, 0.3, true),
            (lost(3), Class::PLAIN, 0.3, true),
            (lost(6), Class::PLAIN, 0.05, false),
            (Verdict::Corrupted { faults: vec![Fault::Tail], damaged: 1, of: 6 }, gso, 0.9, false),
        ] {
            assert_eq!(is_explained(&verdict, &class, loss), explained, "{verdict:?} {loss}");
        }
        assert!((at_least(3, 6, 0.3) - 0.255_69).abs() < 1e-5);
        let controls = [Verdict::Intact, lost(2), lost(6), Verdict::Filtered];
        assert!((loss_of_controls(controls.iter(), 6) - 2.0 / 12.0).abs() < 1e-9);
    }

    #[test]
    fn a_single_loss_is_chance_and_a_loss_without_offload_is_a_filter() {
        let lost = |lost| Verdict::Lost { lost, of: 4 };
        assert_eq!(confirm(lost(1), Verdict::Intact, &Verdict::Intact), Verdict::Intact);
        assert_eq!(confirm(lost(1), lost(1), &Verdict::Intact), Verdict::Intact);
        assert_eq!(confirm(lost(1), lost(4), &Verdict::Intact), lost(4));
        assert_eq!(confirm(lost(1), lost(4), &lost(3)), Verdict::Filtered);
        let damaged = Verdict::Corrupted { faults: vec![Fault::Tail], damaged: 1, of: 4 };
        assert_eq!(confirm(damaged.clone(), Verdict::Intact, &Verdict::Intact), damaged);
    }
}
