//! The result of a probe as it is kept with the measurement of a path.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use probe::judge::Verdict;
use probe::report::{BadPath, Direction, Report};
use probe::run::{Extent, Options, run};
use results::PathProbe;

use crate::remote::{ProbePeer, Token};

/// Classes of a finding that its description names.
const NAMED: usize = 2;

/// Probes a path, again if the first probe finds damage, and describes the last result.
pub(crate) fn confirmed(
    mut report: impl FnMut() -> Result<Report, String>,
) -> Result<PathProbe, String> {
    let first = report()?;
    let last = if first.bad.is_empty() { first } else { report()? };
    Ok(record(&last))
}

/// Probes the path from the namespace of the calling thread to a server, at the rate of
/// `overlane probe`. A finding counts only if a second probe finds damage again.
///
/// # Errors
/// Why the path cannot be probed, as text.
pub fn of_server(
    server: SocketAddr,
    token: Option<&Token>,
    stop: &AtomicBool,
) -> Result<PathProbe, String> {
    let connected = ProbePeer::connect(server, token, stop);
    let (mut peer, own) = connected.map_err(|error| error.to_string())?;
    let addresses = (own, server.ip().to_canonical());
    let options = Options { extent: Extent::Sample, ..Options::default() };
    confirmed(|| {
        run(&mut peer, addresses, &options, None, stop, &|_| {})
            .map_err(|trouble| trouble.to_string())
    })
}

/// Describes the result of a probe.
fn record(report: &Report) -> PathProbe {
    let mut untested = Vec::new();
    if report.translated {
        untested.push("packets from the server: an address is translated on the path".to_owned());
    }
    untested.extend([&report.here, &report.there].into_iter().filter_map(|end| {
        let limited = end.limited.as_ref()?;
        Some(format!("all but UDP: {limited}"))
    }));
    PathProbe {
        classes: u32::try_from(report.classes.len()).unwrap_or(u32::MAX),
        damage: report.bad.iter().filter(|bad| is_damage(report, bad)).map(damage).collect(),
        untested,
        seconds: report.seconds,
    }
}

/// Whether a finding is damage or loss. User-space switches merge and cut packets at other
/// boundaries than asked for, without changing the data.
fn is_damage(report: &Report, bad: &BadPath) -> bool {
    let mut classes = report.classes.iter().filter(|one| one.way == bad.way);
    classes.any(|one| {
        bad.classes.contains(&one.name)
            && matches!(one.verdict, Verdict::Corrupted { .. } | Verdict::Lost { .. })
    })
}

/// Describes a finding.
fn damage(bad: &BadPath) -> String {
    let way = match bad.way {
        Direction::Out => "to the server",
        Direction::Back => "from the server",
    };
    let mut classes = bad.classes.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    if bad.classes.len() > NAMED {
        classes += &format!("; and {} more classes", bad.classes.len() - NAMED);
    }
    let mut text = format!("packets {way} {}: {} ({classes})", bad.verdict, bad.detail);
    if let Some(first) = bad.candidates.first() {
        text += &format!("; likely cause: {} of {}", first.feature, first.device);
    }
    text
}
