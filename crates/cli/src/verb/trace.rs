//! `overlane trace`: follows single packets through devices, tunnels and namespaces.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use doctor::{Scope, collect, diagnose};
use observe::{
    Filter, Finished, Packet, PacketEnding, SampleRateChange, TraceOptions, TraceSession,
    is_one_of, is_used,
};

use crate::capture_file::CaptureFile;
use crate::drop_cause::DropCauses;
use crate::exit::{Exit, usage};
use crate::interrupt;
use crate::named_netns::netns;
use crate::output::{complain, print, print_folded, print_json_line, style};
use crate::packet_filter::hosts;
use crate::trace_args::Trace;

/// Time between two checks whether to stop.
const TICK: Duration = Duration::from_millis(50);
/// Time between the two readings of `--explain`: counters must move.
const WATCH: Duration = Duration::from_secs(1);
/// Drops of packets that have no receiver on a healthy host either: router solicitations and other
/// multicast that nobody joined, frames of protocols that the kernel does not have.
const WITHOUT_RECEIVER: [(&str, &str); 2] =
    [("NOT_SPECIFIED", "ip6_mc_input"), ("UNHANDLED_PROTO", "__netif_receive_skb_core")];
/// Groups of routers, to which each device sends when it is set up (RFC 4861, 3810). Without a router
/// that listens, or a tunnel that floods, the messages are lost on healthy hosts, too.
const OF_ROUTERS: [&str; 2] = ["ff02::2", "ff02::16"];
/// Checks for the causes of a packet filter's drops: of tunnels, and of tenants.
const OF_FILTERS: [&str; 3] = ["OV071", "OV073", "OV111"];
/// Checks for a missing socket: of a tunnel, and of a tenant's program.
const OF_SOCKETS: [&str; 2] = ["OV033", "OV117"];
/// Maximum time that a packet waits for earlier ones that are still under way.
const LONGEST_HOLD: Duration = Duration::from_secs(1);
/// Largest N of `--sample 1/N`.
const MOST_SAMPLED: u32 = 1 << 30;

/// Traces packets until a limit or a signal, and prints them.
///
/// # Errors
/// Wrong usage; a kernel without tracing, or missing privileges.
pub fn run(arguments: &Trace) -> anyhow::Result<Exit> {
    let filter = Filter {
        sample: arguments.sample.as_deref().map_or(Ok(1), sample)?,
        drops_only: arguments.drops_only,
        headers: arguments.pcapng.as_ref().map(|_| arguments.payload),
        ..arguments.filter.parse()?
    };
    // The BPF program has a buffer of this size.
    if arguments.payload > Filter::MOST_PAYLOAD {
        let (got, most) = (arguments.payload, Filter::MOST_PAYLOAD);
        return Err(usage("--payload", format!("{got}: expected at most {most} bytes")));
    }
    arguments.filter.check_device()?;
    // Create the file before attaching programs, so that a wrong path fails early.
    let capture = arguments.pcapng.as_deref().map(CaptureFile::new).transpose()?;
    let stop = interrupt::flag()?;
    // An explicit --sample stays as given.
    let adapts = arguments.sample.is_none();
    let slower_than = arguments.slower_than.map(|limit| *limit);
    let mut session =
        TraceSession::start(TraceOptions { filter, hosts: hosts(), adapts, slower_than })?;
    for left_out in session.left_out() {
        complain(&format!("skipped: {left_out}"));
    }
    for not_seen in session.not_seen() {
        complain(&format!("this kernel does not show {not_seen}"));
    }
    complain("tracing: Ctrl-C ends it");
    let begun = Instant::now();
    let (held, checks, unnamed) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let causes = DropCauses::default();
    let mut output =
        PacketOutput { arguments, capture, held, shown: 0, left_out: 0, checks, unnamed, causes };
    let is_over = |shown: u64| {
        stop.load(Ordering::Relaxed)
            || arguments.duration.is_some_and(|limit| begun.elapsed() >= *limit)
            || arguments.count.is_some_and(|count| shown >= count)
    };
    while !is_over(output.shown) {
        output.hold(session.poll(TICK)?);
        if let Some(change) = session.rate_change() {
            complain(&rate(change));
        }
        let oldest = session.oldest().unwrap_or(u64::MAX);
        output.show(|packet, held| packet.begun_ns < oldest || held.elapsed() >= LONGEST_HOLD)?;
        output.write(oldest)?;
        output.causes.forget_idle();
    }
    output.hold(session.finish()?);
    output.show(|_, _| true)?;
    output.write(u64::MAX)?;
    let (shown, lost, suppressed) = (output.shown, session.lost()?, session.counted()?);
    let counted: u64 = suppressed.iter().map(|drops| drops.packets).sum();
    complain(&match counted {
        // bench/peers parses both forms.
        0 => format!("{shown} packets reported, {lost} events lost"),
        _ => format!("{shown} packets reported, {counted} drops only counted, {lost} events lost"),
    });
    if output.left_out > 0 {
        let left_out = output.left_out;
        complain(&format!("{left_out} harmless drops left out (--all-drops shows them)"));
    }
    for drops in &suppressed {
        complain(&format!("only counted: {drops}"));
    }
    if arguments.explain {
        explain(&output.checks, &output.unnamed, arguments)?;
    }
    Ok(if stop.load(Ordering::Relaxed) { Exit::Interrupted } else { Exit::Done })
}

/// Describes a change of the sample rate.
fn rate(change: SampleRateChange) -> String {
    let lost = match change.lost {
        0 => String::new(),
        lost => format!("{lost} events lost: "),
    };
    match change.one_in {
        1 => "now tracing every packet".to_owned(),
        one_in => format!("{lost}now tracing 1 in {one_in} packets"),
    }
}

/// Prints packets, and writes them to the file of `--pcapng`.
struct PacketOutput<'a> {
    arguments: &'a Trace,
    capture: Option<CaptureFile>,
    /// Packets that wait for earlier ones, in order of their first steps, and since when.
    held: Vec<(Instant, Finished)>,
    shown: u64,
    /// Drops that lose nothing.
    left_out: u64,
    /// Codes of the `doctor` checks for the causes of the printed drops.
    checks: BTreeSet<String>,
    /// Checks for drops whose rule, entry or setting is not printed beside the drop.
    unnamed: BTreeSet<String>,
    causes: DropCauses,
}

impl PacketOutput<'_> {
    /// Takes packets that are to be printed in order of time.
    fn hold(&mut self, finished: Vec<Finished>) {
        let now = Instant::now();
        self.held.extend(finished.into_iter().map(|finished| (now, finished)));
        self.held.sort_by_key(|(_, finished)| finished.packet.begun_ns);
    }

    /// Prints packets up to the last one that is due, and up to `--count`.
    fn show(&mut self, is_due: impl Fn(&Packet, Instant) -> bool) -> anyhow::Result<()> {
        let due = self.held.iter().rposition(|(since, held)| is_due(&held.packet, *since));
        let due: Vec<_> = self.held.drain(..due.map_or(0, |last| last + 1)).collect();
        for (_, Finished { journey, mut packet }) in due {
            if !self.arguments.all_drops {
                used(&mut packet);
                if self.arguments.drops_only && !is_loss(&packet) {
                    self.left_out += 1;
                    continue;
                }
            }
            // One poll may return more packets than --count still allows.
            if self.arguments.count.is_some_and(|count| self.shown >= count) {
                break;
            }
            if let Some(capture) = &mut self.capture {
                capture.add(&journey, &packet);
            }
            self.causes.name(&journey, &mut packet);
            match self.arguments.json {
                true => print_json_line(&packet)?,
                false => print_folded(&packet.text())?,
            }
            self.shown += 1;
            for leg in packet.legs {
                let PacketEnding::Dropped { reason, check, cause, .. } = leg.ending else {
                    continue;
                };
                let codes: Vec<String> = match reason.as_str() {
                    "NETFILTER_DROP" => OF_FILTERS.map(str::to_owned).to_vec(),
                    "NO_SOCKET" => OF_SOCKETS.map(str::to_owned).to_vec(),
                    _ => check.into_iter().collect(),
                };
                if cause.is_none() {
                    self.unnamed.extend(codes.iter().cloned());
                }
                self.checks.extend(codes);
            }
        }
        Ok(())
    }

    /// Writes the steps before this time (`CLOCK_MONOTONIC`, ns) to the file.
    fn write(&mut self, before: u64) -> anyhow::Result<()> {
        self.capture.as_mut().map_or(Ok(()), |capture| capture.write(before))
    }
}

/// Ends legs as received whose packets were used before the kernel dropped them.
fn used(packet: &mut Packet) {
    for leg in &mut packet.legs {
        if let PacketEnding::Dropped { reason, function, .. } = &leg.ending
            && is_used(reason, function.as_deref())
        {
            leg.ending = PacketEnding::Received;
        }
    }
}

/// Whether a packet was lost that somebody expected.
fn is_loss(packet: &Packet) -> bool {
    let is_to_routers = |flow: &observe::Addresses| OF_ROUTERS.contains(&flow.destination.as_str());
    if packet.flow.as_ref().is_some_and(is_to_routers) {
        return false;
    }
    let mut dropped = packet.legs.iter().map(|leg| &leg.ending);
    dropped.any(|ending| match ending {
        PacketEnding::Dropped { reason, function, .. } => {
            !is_one_of(reason, function.as_deref(), &WITHOUT_RECEIVER)
        }
        _ => false,
    })
}

/// Runs these checks on the namespaces asked for, and prints the findings. A check without a finding is
/// named only if a cause is still `unnamed`.
fn explain(
    checks: &BTreeSet<String>,
    unnamed: &BTreeSet<String>,
    arguments: &Trace,
) -> anyhow::Result<()> {
    // Without a matching check, reading the whole host would be useless.
    if checks.is_empty() {
        return print("no doctor check covers the reported drops");
    }
    let scope = match arguments.filter.netns.as_str() {
        "all" => Scope::All,
        some => {
            let named = |one: &str| Ok((one.to_owned(), netns("--netns", Some(one))?));
            Scope::Some(some.split(',').map(named).collect::<anyhow::Result<_>>()?)
        }
    };
    let mut diagnosis = diagnose(&collect(scope, WATCH)?);
    diagnosis.findings.retain(|finding| checks.contains(&finding.code));
    let found = |code: &&String| diagnosis.findings.iter().any(|finding| finding.code == **code);
    for code in checks.iter().filter(|code| unnamed.contains(*code) && !found(code)) {
        print(&format!("{code} has no finding now (overlane doctor explain {code})"))?;
    }
    match diagnosis.findings.is_empty() {
        true => Ok(()),
        false => print(&report::diagnosis_text(&diagnosis, style())),
    }
}

/// Parses `1/N`.
fn sample(text: &str) -> anyhow::Result<u32> {
    let sample = text.strip_prefix("1/").and_then(|text| text.parse::<u32>().ok());
    let sample = sample.filter(|sample| (1..=MOST_SAMPLED).contains(sample));
    sample.ok_or_else(|| {
        usage("--sample", format!("{text:?}: expected 1/N, N from 1 to {MOST_SAMPLED}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_to_routers_are_no_loss() {
        for (destination, expected) in [("ff02::2", false), ("ff02::16", false), ("ff02::1", true)]
        {
            let packet = serde_json::json!({
                "number": 1,
                "begun_ns": 1,
                "took_ns": 1,
                "flow": {
                    "source": "fe80::1",
                    "destination": destination,
                    "protocol": "icmpv6",
                    "source_port": null,
                    "destination_port": null,
                },
                "legs": [{
                    "segment_of": null,
                    "copy_of": null,
                    "fragment_of": null,
                    "reassembled_from": null,
                    "ending": {
                        "how": "dropped",
                        "reason": "NO_TX_TARGET",
                        "function": "vxlan_xmit",
                        "meaning": null,
                        "check": null,
                    },
                }],
                "steps": [],
            });
            let packet: Packet = serde_json::from_value(packet).unwrap();
            assert_eq!(is_loss(&packet), expected, "{destination}");
        }
    }
}
