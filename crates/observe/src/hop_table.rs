//! The table of a path's hops as text. It fits into a narrow terminal by leaving out columns.

use std::fmt::Write;

use crate::snapshot::{HopSeen, PathSeen};
use crate::snapshot_text::short;

/// Longest name of a namespace or device that is shown in full, characters.
const WIDEST: usize = 40;
/// Shortest name of a namespace that a narrow terminal leaves.
const NARROWEST: usize = 9;

/// A column of numbers. Its width includes the gap before it.
struct Figure {
    head: &'static str,
    width: usize,
    narrow: usize,
    value: fn(&HopSeen) -> String,
}

const FIGURES: [Figure; 6] = [
    Figure { head: "pkt/s", width: 9, narrow: 8, value: packets },
    Figure { head: "Mbit/s", width: 8, narrow: 8, value: megabits },
    Figure { head: "bytes", width: 8, narrow: 7, value: |hop| format!("{:.0}", hop.bytes) },
    Figure { head: "GSO", width: 6, narrow: 5, value: gso },
    Figure { head: "µs p50", width: 9, narrow: 8, value: |hop| us(hop, hop.since_before.p50_ns) },
    Figure { head: "p99", width: 9, narrow: 8, value: |hop| us(hop, hop.since_before.p99_ns) },
];

/// Columns that a narrow terminal leaves out, in this order. Packets and bytes give the first.
const LEFT_OUT: [&str; 3] = ["Mbit/s", "p99", "GSO"];

fn packets(hop: &HopSeen) -> String {
    hop.counted.as_ref().map_or("-".to_owned(), |rates| short(rates.packets_per_s))
}

fn megabits(hop: &HopSeen) -> String {
    hop.counted.as_ref().map_or("-".to_owned(), |rates| short(rates.bytes_per_s * 8.0 / 1e6))
}

fn gso(hop: &HopSeen) -> String {
    if hop.gso_packets > 1.0 { format!("{:.1}", hop.gso_packets) } else { "-".to_owned() }
}

fn us(hop: &HopSeen, ns: u64) -> String {
    match hop.since_before.count {
        0 => "-".to_owned(),
        _ => format!("{:.1}", ns as f64 / 1000.0),
    }
}

/// Columns of a table with their widths.
struct Columns {
    namespace: usize,
    device: usize,
    side: usize,
    figures: Vec<(&'static Figure, usize)>,
}

impl Columns {
    /// Chooses columns for a terminal.
    fn of(hops: &[HopSeen], columns: usize) -> Columns {
        // Full names: two that are cut could look alike.
        let widest = |least: usize, name: &dyn Fn(&HopSeen) -> &str| {
            let longest = hops.iter().map(|hop| name(hop).chars().count()).max();
            1 + longest.unwrap_or(0).clamp(least, WIDEST)
        };
        let wide = Columns {
            namespace: widest(12, &|hop| &hop.namespace),
            device: widest(10, &device),
            side: 7,
            figures: FIGURES.iter().map(|figure| (figure, figure.width)).collect(),
        };
        if wide.width() <= columns {
            return wide;
        }
        let mut narrow = Columns {
            namespace: widest(NARROWEST, &|hop| &hop.namespace),
            device: widest(6, &device),
            side: 6,
            figures: FIGURES.iter().map(|figure| (figure, figure.narrow)).collect(),
        };
        for head in LEFT_OUT {
            if narrow.width() > columns {
                narrow.figures.retain(|(figure, _)| figure.head != head);
            }
        }
        let excess = narrow.width().saturating_sub(columns);
        narrow.namespace = narrow.namespace.saturating_sub(excess).max(1 + NARROWEST);
        narrow
    }

    fn width(&self) -> usize {
        let figures: usize = self.figures.iter().map(|(_, width)| width).sum();
        self.namespace + self.device + self.side + figures
    }

    fn line(&self, names: [&str; 3], figures: impl Fn(&Figure) -> String) -> String {
        let (namespaces, devices, sides) = (self.namespace, self.device, self.side);
        let namespace = shortened(names[0], namespaces - 1);
        let device: String = names[1].chars().take(devices - 1).collect();
        let mut line = format!("{namespace:<namespaces$}{device:<devices$}{:<sides$}", names[2]);
        for (figure, width) in &self.figures {
            // Writing to a String cannot fail.
            let _ = write!(line, "{:>width$}", figures(figure));
        }
        line + "\n"
    }
}

fn device(hop: &HopSeen) -> &str {
    hop.device.as_deref().unwrap_or("-")
}

/// Removes the middle of a name that is too long: the end of `net:[4026532384]` identifies it.
fn shortened(name: &str, most: usize) -> String {
    let characters: Vec<char> = name.chars().collect();
    if characters.len() <= most {
        return name.to_owned();
    }
    let tail = most / 2;
    let (head, end) = (&characters[..most - tail - 1], &characters[characters.len() - tail..]);
    head.iter().chain(['…'].iter()).chain(end).collect()
}

impl PathSeen {
    /// Renders the table of the hops, with notes below a hop, for a terminal of `columns`.
    pub(crate) fn hop_table(&self, columns: usize) -> String {
        let table = Columns::of(&self.hops, columns);
        let mut text = table.line(["namespace", "device", "side"], |figure| figure.head.to_owned());
        for hop in &self.hops {
            let names = [hop.namespace.as_str(), device(hop), hop.side.name()];
            text += &table.line(names, |figure| (figure.value)(hop));
            let notes = hop.notes();
            if !notes.is_empty() {
                let _ = writeln!(text, "    {}", notes.join(", "));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Latency, Rates, Side};

    fn hop(namespace: &str, device: &str, side: Side) -> HopSeen {
        HopSeen {
            namespace: namespace.to_owned(),
            device: Some(device.to_owned()),
            side,
            bytes: 65_226.0,
            gso_packets: 45.2,
            cut: 0.0,
            merged: 0.0,
            checksummed: 0.0,
            encapsulation: None,
            vni: None,
            since_before: Latency { count: 9, p50_ns: 12_345, p99_ns: 99_123_456, p999_ns: 0 },
            waited: Latency::default(),
            queued: None,
            counted: Some(Rates { packets_per_s: 1e6, bytes_per_s: 1e9, dropped_per_s: 0.0 }),
        }
    }

    fn table(columns: usize, namespaces: [&str; 2]) -> String {
        let hops = [
            hop(namespaces[0], "vxlan0", Side::Rx),
            hop(namespaces[1], "a-device-of-15c", Side::Socket),
        ];
        let path = PathSeen {
            packets: 9,
            example: None,
            ending: "consumed".to_owned(),
            hops: hops.to_vec(),
            took: Latency::default(),
        };
        path.hop_table(columns)
    }

    #[test]
    fn columns_are_left_out_until_the_table_fits() {
        let namespaces = ["tenant-a", "net:[4026532384]"];
        let whole = table(usize::MAX, namespaces);
        assert_eq!(table(200, namespaces), whole);
        assert!(FIGURES.iter().all(|figure| whole.contains(figure.head)), "{whole}");
        for columns in 60..100 {
            let text = table(columns, namespaces);
            for line in text.lines() {
                assert!(line.chars().count() <= columns, "{columns}: {text}");
            }
            for always in ["pkt/s", "bytes", "µs p50", "vxlan0", "a-device-of-15c", "1000k"] {
                assert!(text.contains(always), "{columns}: {always}: {text}");
            }
        }
        assert!(!table(60, namespaces).contains("Mbit/s"));
        // The ends of names differ.
        let alike = table(60, ["net:[4026532384]", "net:[4026532385]"]);
        assert!(alike.contains("2384] ") && alike.contains("2385] "), "{alike}");
    }
}
