//! One HTML page of a run: summary, charts, tables, every sample, the machine.

use std::collections::BTreeSet;

use maud::{Markup, html};
use results::{
    Cell, CpuSeconds, FaultRecord, GuestRecord, Machine, RecordKind, Results, Sample, Status, Unit,
};

use crate::chart::{self, Published};
use crate::ecn::congestion;
use crate::machine::machine_line;
use crate::page::{cards, charts, list, page};
use crate::panel::{name, panels};
use crate::remark::{missing, notes, warnings};
use crate::retransmits::retransmits;
use crate::style::plain;
use crate::summary::summary;
use crate::unit::{
    bytes, cpu_ratio, of_interval, percent, range, ratio, reordered, three_digits, with_unit,
};
use crate::work::Work;

/// Renders results as one page with charts and every sample. The page loads and runs nothing.
pub fn html(results: &Results) -> String {
    let baseline = plain(&results.plan.baseline);
    let started = plain(results.started.get(..10).unwrap_or(&results.started));
    let sections = chart::sections(results);
    let body = html! {
        section {
            h2 { "In short" }
            @for sentence in summary(results) { p { (sentence) } }
            (list("Warnings", warnings(results)))
        }
        @for section in &sections { (charts(section)) }
        @if let Some(published) = chart::published(results) { (beside(&published)) }
        @if !results.faults.is_empty() { (faults(results)) }
        (tables(results))
        (samples(results))
        (machine(results))
    };
    let title = format!("overlane: networks against {baseline}, {started}");
    page(&title, &format!("Networks against {baseline}"), &machine_line(results), &body)
}

fn beside(published: &Published) -> Markup {
    html! {
        section {
            h2 { "Comparison with published figures" }
            p { "Published on " b { "another machine" } ": " (published.source) ". Hardware, kernels \
                and tools differ: compare shapes and ratios, not values." }
            h3 { "Published" }
            (cards(&published.theirs))
            @if !published.ours.is_empty() {
                h3 { "This run" }
                (cards(&published.ours))
            }
        }
    }
}

/// Renders the effects of faults on traffic, and a description of each fault.
fn faults(results: &Results) -> Markup {
    let named = |fault: &FaultRecord| {
        (format!("{}, {}", plain(&fault.mode), plain(&fault.fault)), plain(&fault.title))
    };
    // One entry for all offload profiles and MTUs.
    let named: BTreeSet<(String, String)> = results.faults.iter().map(named).collect();
    html! {
        section {
            h2 { "Faults" }
            @for detail in crate::fault::faults(results) { (small_table(&detail)) }
            dl { @for (fault, title) in &named { dt { (fault) } dd { (title) } } }
        }
    }
}

/// Renders the tables of the other formats, so that every figure can be read.
fn tables(results: &Results) -> Markup {
    let all = panels(results);
    html! {
        section {
            h2 { "Tables" }
            @if all.is_empty() { p { "No cell was measured." } }
            @for panel in &all {
                details {
                    summary { (panel.title()) }
                    div.scroll { table {
                        thead { tr {
                            th { "offload" } th { "mode" } th.n { (panel.scale().label) }
                            th.n { "ratio" } th.n { "interval" } th.n { "CPU" }
                            th.n { "p50 µs" } th.n { "p99 µs" } th.n { "retransmits" }
                            th.n { "CE" }
                            th.n { "jitter µs" } th.n { "reordered" }
                            th.n { "loss" }
                        } }
                        tbody { @for cell in panel.cells() { (row(panel, cell)) } }
                    } }
                    @for detail in crate::detail::details(panel) { (small_table(&detail)) }
                }
            }
            @for detail in crate::beside::across(results) {
                details { summary { (detail.title) } (small_table(&detail)) }
            }
        }
    }
}

fn row(panel: &crate::panel::Panel<'_>, cell: &Cell) -> Markup {
    html! {
        tr {
            td { (cell.offload.to_string()) }
            td { (name(cell)) }
            td.n { (panel.figure(cell)) }
            td.n { (cell.ratio.as_ref().map(of_interval).unwrap_or_default()) }
            td.n { (cell.ratio.as_ref().map(range).unwrap_or_default()) }
            td.n { (cpu_ratio(cell)) }
            td.n { (cell.latency_us.map(|l| three_digits(l.p50)).unwrap_or_default()) }
            td.n { (cell.latency_us.map(|l| three_digits(l.p99)).unwrap_or_default()) }
            td.n { (retransmits(cell).map(three_digits).unwrap_or_default()) }
            td.n { (congestion(cell).map(percent).unwrap_or_default()) }
            td.n { (cell.arrivals.map(|a| three_digits(a.jitter_us)).unwrap_or_default()) }
            td.n { (cell.arrivals.map(|a| percent(reordered(&a))).unwrap_or_default()) }
            td.n { (cell.loss.as_ref().map(|l| percent(l.fraction)).unwrap_or_default()) }
        }
    }
}

fn small_table(detail: &crate::detail::Detail) -> Markup {
    html! {
        h4 { (detail.title) }
        div.scroll { table {
            thead { tr {
                th { (detail.grouped_by) }
                @for (i, head) in detail.heads.iter().enumerate() { th.n[i > 0] { (head) } }
            } }
            tbody {
                @for (group, rows) in &detail.groups {
                    @for row in rows {
                        tr {
                            td { (group) }
                            @for (i, field) in row.iter().enumerate() { td.n[i > 0] { (field) } }
                        }
                    }
                }
            }
        } }
    }
}

fn samples(results: &Results) -> Markup {
    html! {
        section {
            h2 { "Every sample" }
            @for cell in &results.cells {
                @let valid = cell.samples.iter().filter(|sample| sample.valid).count();
                details {
                    summary {
                        (name(cell)) ", offload " (cell.offload.to_string()) ": " (Work::of(cell).title())
                        span.muted { " – " (valid) " of " (cell.samples.len()) " valid" }
                    }
                    @if let Some(reason) = &cell.reason { p { (plain(reason)) } }
                    @if let Some(tool) = &cell.tool {
                        p { (plain(&tool.version)) ": " code { (plain(&tool.command)) } }
                    }
                    @for sample in &cell.samples { (one_sample(cell, sample)) }
                }
            }
        }
    }
}

fn one_sample(cell: &Cell, sample: &Sample) -> Markup {
    html! {
        details {
            summary {
                "block " (sample.block) ": " (with_unit(sample.value, cell.unit))
                @if let Some(figure) = sample.ratio { ", ratio " (ratio(figure)) }
                @if !sample.valid { b { ", discarded" } }
            }
            p { (facts(cell, sample).join("; ")) "." }
            @if !sample.hops.is_empty() {
                div.scroll { table {
                    thead { tr { th { "hop" } th { "direction" } th.n { "packets" } th.n { "bytes" }
                        th.n { "mean" } th.n { "drops" } } }
                    tbody { @for hop in &sample.hops { tr {
                        td {
                            (plain(&hop.host)) ": " (plain(&hop.device))
                            @if hop.kind == RecordKind::Bypassed {
                                ", bypassed"
                                @if hop.excused > 0 { " but for " (hop.excused) }
                            }
                        }
                        td { (hop.direction.to_string()) }
                        td.n { (hop.packets) } td.n { (hop.bytes) }
                        td.n { (bytes(hop.mean_skb_bytes)) } td.n { (hop.drops) }
                    } } }
                } }
            }
        }
    }
}

fn cpu_words(cpu: &CpuSeconds) -> String {
    format!(
        "user {}, system {}, softirq {}, irq {}, steal {}, idle {}",
        three_digits(cpu.user),
        three_digits(cpu.system),
        three_digits(cpu.softirq),
        three_digits(cpu.irq),
        three_digits(cpu.steal),
        three_digits(cpu.idle)
    )
}

/// Describes a sample in words.
fn facts(cell: &Cell, sample: &Sample) -> Vec<String> {
    let mut facts = vec![format!("position {} in its block", sample.position)];
    facts.extend(
        sample.invalid_reason.as_ref().map(|reason| format!("discarded: {}", plain(reason))),
    );
    facts.push(format!("path {}proved", if sample.path_proved { "" } else { "not " }));
    facts.push(format!("{} s", three_digits(sample.seconds)));
    facts.push(format!("{} units", sample.units));
    facts.push(with_unit(sample.bits_per_s, Unit::Bits));
    let unit = cell.service_demand.as_ref().map(|demand| demand.unit.to_string());
    if let (Some(demand), Some(unit)) = (sample.service_demand, unit) {
        facts.push(format!("CPU {} {unit}", three_digits(demand)));
    }
    facts.extend(
        sample.service_demand_reason.as_ref().map(|why| format!("CPU unknown: {}", plain(why))),
    );
    facts.push(format!("CPU seconds: {}", cpu_words(&sample.cpu)));
    facts.extend(sample.peer_cpu.map(|cpu| format!("server: {}", cpu_words(&cpu))));
    facts.extend(sample.guests.iter().map(|guest| {
        let (name, seconds) = (plain(&guest.name), three_digits(guest.seconds));
        format!("{name}, in {seconds} s: {}", cpu_words(&guest.cpu))
    }));
    facts.extend(sample.latency_us.map(|l| {
        let figures = [l.p50, l.p90, l.p99, l.p99_9, l.p99_99, l.max].map(three_digits);
        format!("latency µs p50, 90, 99, 99.9, 99.99, max: {}", figures.join(", "))
    }));
    facts.extend(sample.pace.map(|pace| {
        format!(
            "schedule: {} of {} per second sent, {} µs late at p99",
            three_digits(pace.sent_per_s),
            three_digits(pace.intended_per_s),
            three_digits(pace.late_p99_us)
        )
    }));
    for goal in sample.drop_point.iter().flat_map(|point| &point.goals) {
        let name = crate::detail::goal_name(goal.loss);
        facts.push(format!("{name}: {}", with_unit(goal.per_s, Unit::Datagrams)));
    }
    if let Some(loss) = &sample.loss {
        let places = loss.places.iter().map(|(place, n)| format!("{} {n}", plain(place)));
        let places: Vec<String> = places.collect();
        facts.push(format!(
            "received {} of {}, {} unattributed{}",
            loss.received,
            loss.sent,
            loss.unattributed,
            if places.is_empty() { String::new() } else { format!(", {}", places.join(", ")) }
        ));
    }
    facts.push(format!("{} retransmits", sample.tcp_retransmits));
    facts.extend(sample.ecn.map(|ecn| {
        let cleared = ecn.not_ect.map_or(String::new(), |n| format!(", {n} without codepoint"));
        format!("ECN: {} of {} packets with CE{cleared}", ecn.ce, ecn.arrived)
    }));
    facts.push(format!(
        "softnet: {} dropped, {} squeezed",
        sample.softnet_dropped, sample.softnet_squeezed
    ));
    facts.extend(sample.udp_errors.iter().map(|(name, n)| format!("{} {n}", plain(name))));
    facts.push(format!("{} conntrack entries", sample.conntrack_entries));
    facts.extend(
        sample.tool_figures.iter().map(|(name, v)| format!("{} {}", plain(name), three_digits(*v))),
    );
    facts
}

fn machine(results: &Results) -> Markup {
    let unmeasured: Vec<String> = missing(results)
        .into_iter()
        .map(|missing| {
            let failed = if missing.status == Status::Unsupported { "" } else { "failed: " };
            let remedy = missing.remedy.map(|remedy| format!(" (remedy: {remedy})"));
            format!("{}: {failed}{}{}", missing.what, missing.reason, remedy.unwrap_or_default())
        })
        .collect();
    let plan = &results.plan;
    fn names(of: &[impl std::fmt::Display]) -> String {
        of.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
    let words = |list: &[String]| plain(&list.join(", "));
    let numbers = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let percents: Vec<String> = plan.load_percent.iter().map(|p| format!("{p}%")).collect();
    let facts: Vec<(&str, String)> = vec![
        ("name", plan.name.as_deref().map(plain).unwrap_or_default()),
        ("baseline", plain(&plan.baseline)),
        ("modes", words(&plan.modes)),
        ("workloads", names(&plan.workloads)),
        ("offload", names(&plan.offload)),
        ("MTU", numbers(&plan.mtu)),
        ("message sizes", numbers(&plan.sizes)),
        ("flows", numbers(&plan.flows)),
        ("outstanding", numbers(&plan.outstanding)),
        ("load", percents.join(", ")),
        ("beside", names(&plan.beside)),
        ("ECN", if plan.ecn { "on".to_string() } else { String::new() }),
        ("socket buffers", numbers(&plan.socket_buffers)),
        ("engines", names(&plan.engines)),
        ("varied", words(&plan.vary)),
        ("steering", plan.steering.to_string()),
        ("placement", plan.placement.policy.to_string()),
        ("blocks", format!("{} of {}", plan.blocks_done, plan.blocks)),
        ("sample", format!("{} s after {} s of warm-up", plan.duration_s, plan.warmup_s)),
        ("seed", plan.seed.to_string()),
        ("confidence", format!("{}", plan.confidence.level)),
        ("from, to", format!("{}, {}", plain(&results.started), plain(&results.finished))),
    ];
    html! {
        section {
            h2 { "Machine and plan" }
            (list("Not measured", unmeasured))
            (list("Notes", notes(results)))
            h3 { @if results.peer.is_some() { "Client" } @else { "Machine" } }
            (machine_facts(&results.machine))
            @if let Some(peer) = &results.peer { h3 { "Server" } (machine_facts(peer)) }
            h3 { "Plan" }
            dl { @for (what, value) in &facts {
                @if !value.is_empty() { dt { (what) } dd { (value) } }
            } }
            @if !results.testbeds.is_empty() { (testbeds(results)) }
        }
    }
}

fn machine_facts(machine: &Machine) -> Markup {
    html! {
        dl {
            dt { "CPU" } dd { (plain(&machine.cpu_model)) ", " (machine.cpus) }
            dt { "memory" } dd { (bytes(machine.memory_bytes as f64)) }
            dt { "kernel" } dd { (plain(&machine.kernel)) ", " (plain(&machine.os)) }
            @if let Some(vendor) = &machine.hypervisor { dt { "hypervisor" } dd { (plain(vendor)) } }
            dt { "CPU clock" } dd {
                (machine.cpu_clock.to_string())
                @if let Some(reason) = &machine.cpu_clock_reason { " (" (plain(reason)) ")" }
            }
            dt { "run as" } dd { (machine.privileges.to_string()) }
            dt { "busy before" } dd { (percent(machine.idle_load)) }
        }
    }
}

fn guest_in_force(guest: &GuestRecord) -> Markup {
    let on = |on| if on { "on" } else { "off" };
    html! {
        p {
            b { (plain(&guest.name)) } ", kernel " (plain(&guest.kernel)) ": CPUs " (guest.cpus)
            ", queues " (guest.queues) ", mrg_rxbuf " (on(guest.mrg_rxbuf)) ", tunnel GSO "
            (on(guest.tunnel_gso))
            @if let Some(tap) = &guest.tap {
                "; " (plain(&tap.device)) ": queues " (tap.queues) ", txqueuelen " (tap.txqueuelen)
                ", sndbuf " (tap.sndbuf) ", vhost " (on(tap.vhost))
            }
        }
    }
}

fn testbeds(results: &Results) -> Markup {
    html! {
        h3 { "Offloads of the devices" }
        @for testbed in &results.testbeds {
            details {
                summary { (plain(&testbed.mode)) ", offload " (testbed.offload.to_string()) ", MTU " (testbed.mtu)
                    @if let Some(setting) = &testbed.setting { ", " (plain(setting)) }
                }
                @for device in &testbed.devices {
                    @let on: Vec<String> = device.features.iter().filter(|f| *f.1).map(|f| plain(f.0)).collect();
                    p { b { (plain(&device.host)) ": " (plain(&device.device)) } ", MTU " (device.mtu) ": " (on.join(", ")) }
                }
                @for guest in &testbed.guests { (guest_in_force(guest)) }
            }
        }
    }
}
