//! A run: path MTU, all classes in both directions, and a second look at bad ones.

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::catalogue;
use crate::class::{Checksum, Class, Extra, Family, Transport};
use crate::culprit;
use crate::datagrams;
use crate::end::Access;
use crate::exchange::{Exchange, Peer, Trouble, open};
use crate::judge::Verdict;
use crate::message::{MOST_SECONDS, RATE, shortened};
use crate::path_mtu;
use crate::report::{ClassResult, Direction, FORMAT, InUse, Rare, Report};
use crate::search::search;
use crate::switch::Switch;

pub use crate::options::{Extent, Options};

/// Packets of a kind that show a fault of 1 in 1,000 with 95% confidence.
const OFTEN: u16 = 3000;

/// Runs a probe. Without `switch`, nothing is changed on any machine. With it, settings of this
/// machine, and of the peer if its administrator allows it, are switched off one at a time to find
/// the cause.
pub fn run(
    peer: &mut dyn Peer,
    addresses: (IpAddr, IpAddr),
    options: &Options,
    switch: Option<&mut dyn Switch>,
    stop: &AtomicBool,
    say: &dyn Fn(&str),
) -> Result<Report, Trouble> {
    run_with(&Access::open().giving_way(), peer, addresses, options, switch, stop, say)
}

/// As [`run`], with these sockets.
pub fn run_with(
    access: &Access,
    peer: &mut dyn Peer,
    (own, there): (IpAddr, IpAddr),
    options: &Options,
    switch: Option<&mut dyn Switch>,
    stop: &AtomicBool,
    say: &dyn Fn(&str),
) -> Result<Report, Trouble> {
    let begun = Instant::now();
    let (mut exchange, opened) = open(access, peer, (own, there), options, stop)?;
    say("path MTU");
    let here = exchange.facts();
    if options.hops.iter().any(|hop| hop.netns.is_none() && hop.device == here.device) {
        // A device that takes part twice would be switched twice, and its fault blamed on two.
        let device = &here.device;
        let reason =
            format!("hop {device}: it is the device of the path, whose settings take part");
        return Err(Trouble::Here(reason));
    }
    let family = if there.is_ipv4() { Family::V4 } else { Family::V6 };
    let mut report = Report {
        format: FORMAT,
        peer: there,
        seed: options.seed,
        here,
        there: opened.end.clone(),
        hops: options.hops.clone(),
        peer_locked: opened.locked.map(shortened),
        translated: opened.addresses != (there, own),
        mtu: Vec::new(),
        classes: Vec::new(),
        rare: Vec::new(),
        in_use: Vec::new(),
        bad: Vec::new(),
        notes: Vec::new(),
        bytes: 0,
        seconds: 0.0,
    };
    report.notes.extend(datagrams::notes(&report.here, &report.there));
    let ways: &[Direction] = match report.translated {
        // Without an earlier packet from there, the other end cannot send to a translated port.
        true => {
            report.notes.push(
                "an address is translated on the path: packets from the peer are not tested; run \
                 overlane probe there"
                    .to_owned(),
            );
            &[Direction::Out]
        }
        false => &Direction::BOTH,
    };
    for way in ways {
        let device = match way {
            Direction::Out => report.here.mtu,
            Direction::Back => report.there.mtu,
        };
        let mtu = path_mtu::find(&mut exchange, *way, family, device)?;
        // Not even small packets arrive: without a path, nothing else can be measured.
        if mtu.path.is_none() {
            let port = exchange.own_port();
            return Err(Trouble::Nothing(way.text(), port));
        }
        report.mtu.push(mtu);
    }
    // Larger packets would be lost with and without offloads.
    let mtu_of = |report: &Report, way: Direction| {
        let path = report.mtu.iter().find(|mtu| mtu.way == way).and_then(|mtu| mtu.path);
        path.unwrap_or(1280).min(report.here.mtu.max(report.there.mtu))
    };
    for way in ways {
        let mtu = mtu_of(&report, *way);
        let classes = match options.extent {
            Extent::Sample => catalogue::sample(mtu),
            Extent::Quick => catalogue::quick(mtu),
            Extent::Default => catalogue::default(mtu, options.seed),
            Extent::Full => catalogue::full(mtu, options.seed),
        };
        say(&format!("{} classes {}", classes.len(), way.text()));
        let results = exchange.classes(*way, &classes, 1)?;
        report.classes.extend(results);
    }
    say("second look");
    exchange.look_again(&mut report.classes)?;
    if matches!(options.extent, Extent::Default | Extent::Full) {
        for way in ways {
            say(&format!("{OFTEN} packets {}", way.text()));
            let mtu = mtu_of(&report, *way);
            often(&mut exchange, *way, mtu, &mut report)?;
        }
    }
    report.in_use = in_use(&report);
    report.bad = culprit::group(&report);
    if let Some(switch) = switch {
        search(&mut exchange, &mut report, switch, say)?;
    }
    report.bytes = exchange.bytes();
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// Sends some kinds of packets often, to find rare faults.
fn often(
    exchange: &mut Exchange<'_>,
    way: Direction,
    mtu: u32,
    report: &mut Report,
) -> Result<(), Trouble> {
    let gso = catalogue::tso_cases(mtu)[0];
    let partial = Class { checksum: Checksum::Partial, ..Class::PLAIN };
    for (class, repetitions) in [(partial, OFTEN), (Class::PLAIN, OFTEN), (gso, 120)] {
        // At a low rate, fewer packets.
        let most = u64::from(exchange.rate().min(RATE)) * MOST_SECONDS / 2 / class.wire_bytes();
        let repetitions = repetitions.min(u16::try_from(most).unwrap_or(u16::MAX)).max(1);
        let results = exchange.classes(way, &[class], repetitions)?;
        let Some(result) = results.into_iter().next() else { continue };
        // A class that cannot be sent has neither losses nor damage.
        if matches!(result.verdict, Verdict::Untestable { .. }) {
            continue;
        }
        // GSO: each segment is a packet.
        let sent = u32::from(repetitions) * class.segments();
        let damaged = match &result.verdict {
            // The peer may claim any number.
            Verdict::Corrupted { damaged, .. } => (*damaged).min(sent),
            _ => 0,
        };
        let lost =
            u32::from(repetitions).saturating_sub(result.arrived.whole).saturating_sub(damaged);
        if damaged > 0 {
            report.classes.push(result);
        }
        report.rare.push(Rare {
            way,
            name: class.to_string(),
            sent,
            lost,
            damaged,
            at_most: (upper_mean(damaged) / f64::from(sent.max(1))).min(1.0),
        });
    }
    // A loss of a few packets of 3,000 may be other traffic's doing: compare with the control.
    let of =
        |name: &str| report.rare.iter().rev().find(|rare| rare.way == way && rare.name == name);
    let (offloaded, control) = (of(&partial.to_string()), of(&Class::PLAIN.to_string()));
    if let (Some(offloaded), Some(control)) = (offloaded, control)
        && offloaded.lost >= 3 * (control.lost + 1)
    {
        let (lost, of) = (offloaded.lost, offloaded.sent);
        report.classes.push(ClassResult {
            way,
            name: format!("{partial}, sent often"),
            class: partial,
            verdict: Verdict::Lost { lost, of },
            handed: crate::tally::Tally::default(),
            arrived: crate::tally::Tally::default(),
        });
    }
    Ok(())
}

/// Summarises the use of segmentation and merging.
fn in_use(report: &Report) -> Vec<InUse> {
    let mut list: Vec<InUse> = Vec::new();
    for result in &report.classes {
        let class = &result.class;
        // Only undamaged plain GSO packets show whether the device or the kernel segments.
        if class.segment == 0 || class.extra != Extra::Plain || result.arrived.frames == 0 {
            continue;
        }
        let transport = if class.transport == Transport::Tcp { "TCP" } else { "UDP" };
        let traffic = match class.tunnel {
            None => format!("{transport}/{}", class.family),
            Some(tunnel) => {
                let within = if tunnel.nested { " in VXLAN" } else { "" };
                format!("{transport} in {}{within}/{}", tunnel.kind, class.family)
            }
        };
        let (sender, receiver) = match result.way {
            Direction::Out => (&report.here, &report.there),
            Direction::Back => (&report.there, &report.here),
        };
        // UDP sockets do not show it.
        let handed_whole = sender.limited.is_none().then_some(result.handed.merged > 0);
        let merged = receiver.limited.is_none().then_some(result.arrived.merged > 0);
        match list.iter_mut().find(|one| one.way == result.way && one.traffic == traffic) {
            Some(one) => {
                one.handed_whole = one.handed_whole.max(handed_whole);
                one.merged = one.merged.max(merged);
            }
            None => list.push(InUse { way: result.way, traffic, handed_whole, merged }),
        }
    }
    list
}

/// Returns the mean of a Poisson distribution that gives at most `count` events with 5%
/// probability: the upper limit of a one-sided 95% confidence interval.
fn upper_mean(count: u32) -> f64 {
    let at_most = |mean: f64| {
        let mut term = (-mean).exp();
        let mut sum = term;
        for k in 1..=count {
            term *= mean / f64::from(k);
            sum += term;
        }
        sum
    };
    let (mut low, mut high) = (f64::from(count), 3.0 * f64::from(count) + 10.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        match at_most(middle) > 0.05 {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upper_limits_are_those_of_the_tables() {
        // Garwood's one-sided limits for 0, 1 and 10 events.
        for (count, wanted) in [(0, 2.996), (1, 4.744), (10, 16.962)] {
            assert!((upper_mean(count) - wanted).abs() < 0.001, "{count}");
        }
    }
}
