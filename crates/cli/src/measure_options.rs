//! Checks the workload and sampling options of `lab run`, `measure run` and `try`.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use load::ask::{Engine, Task};
use load::{
    MAX_FLOWS, MAX_OUTSTANDING, MAX_SOCKET_BUFFER, MIN_SOCKET_BUFFER, NUMBERED_BYTES, Workload,
};
use measure::impact::Impact;
use measure::plan::{PlacementPolicy, Stopping};
use measure::sampler::{Limits, Rule};
use results::Beside;
use session::request::{Asked, Given, RunOptions};

use crate::args::{Asking, Measuring, WORKLOADS};
use crate::exit::usage;
use crate::{quantity, sizes};

/// Checks the workload options and builds every combination. Under `--impact`, the default workloads
/// measure latency, and workloads that saturate a path are refused.
///
/// # Errors
/// A usage error that names the argument and the allowed values.
pub fn asked(arguments: &Asking, impact: Option<Impact>) -> anyhow::Result<Asked> {
    let (workloads, load) = match impact {
        None => (arguments.workloads.as_str(), arguments.load.as_deref()),
        Some(_) => gentle(arguments),
    };
    let tasks = list("--workloads", workloads, |name| {
        Task::from_str(name).map_err(|error| usage("--workloads", error))
    })?;
    let sizes = arguments
        .sizes
        .as_deref()
        .map(sizes::parse)
        .transpose()
        .map_err(|error| usage("--sizes", error))?
        .unwrap_or_default();
    let flows = list("--flows", &arguments.flows, |text| whole("--flows", text, 1, MAX_FLOWS, ""))?;
    let outstanding = list("--outstanding", &arguments.outstanding, |text| {
        whole("--outstanding", text, 1, MAX_OUTSTANDING, "")
    })?;
    let load_percent = match load {
        Some(text) => list("--load", text, percent)?,
        None => Vec::new(),
    };
    let rates = match &arguments.rate {
        Some(text) => list("--rate", text, |text| {
            quantity::bits_per_s(text).map_err(|problem| usage("--rate", problem))
        })?,
        None => Vec::new(),
    };
    let beside = match &arguments.beside {
        Some(text) => beside(text)?,
        None => Vec::new(),
    };
    let socket_buffers = match &arguments.socket_buffers {
        Some(text) => list("--socket-buffers", text, |text| {
            whole("--socket-buffers", text, MIN_SOCKET_BUFFER, MAX_SOCKET_BUFFER, " bytes")
        })?,
        None => Vec::new(),
    };
    let engines = list("--engine", &arguments.engine, |name| {
        Engine::from_str(name).map_err(|error| usage("--engine", error))
    })?;
    let asked = Asked {
        asks: Vec::new(),
        tasks,
        sizes,
        flows,
        outstanding,
        load_percent,
        rates,
        beside,
        socket_buffers,
        engines,
        gso: arguments.gso,
        dscp: arguments.dscp,
        ecn: arguments.ecn,
    };
    if impact.is_some() {
        within_impact(&asked)?;
    }
    contradictions(&asked)?;
    Ok(Asked { asks: asked.combinations(), ..asked })
}

/// Parses the bulk traffic of `--beside`. Both directions also run at once if each is listed.
fn beside(text: &str) -> anyhow::Result<Vec<Beside>> {
    let mut all = list("--beside", text, |name| {
        Beside::from_str(name).map_err(|error| usage("--beside", error))
    })?;
    let each = [Beside::TcpStream, Beside::TcpMaerts];
    if each.iter().all(|one| all.contains(one)) && !all.contains(&Beside::Both) {
        all.push(Beside::Both);
    }
    Ok(all)
}

/// Refuses loads that would saturate a path and so disturb production traffic.
fn within_impact(asked: &Asked) -> anyhow::Result<()> {
    let gentle = |task: &Task| {
        let small = [Workload::TcpRr, Workload::UdpRr, Workload::TcpCrr];
        matches!(task, Task::Steady(workload) if small.contains(workload))
    };
    if let Some(task) = asked.tasks.iter().find(|task| !gentle(task)) {
        let problem = format!("{task} saturates the path: use tcp_rr, udp_rr or tcp_crr with it");
        return Err(usage(IMPACT, problem));
    }
    // The search for the maximum is a full load, which --impact forbids.
    if asked.load_percent.iter().any(|percent| *percent > 0.0) {
        let problem = "finding the maximum for --load needs a full load: only --load 0";
        return Err(usage(IMPACT, problem));
    }
    if !asked.beside.is_empty() {
        return Err(usage(IMPACT, "--beside saturates the path"));
    }
    // Other tools send as fast as they can.
    if let Some(tool) = asked.engines.iter().find(|engine| **engine != Engine::Overlane) {
        return Err(usage(
            IMPACT,
            format!("the load of {tool} cannot be limited: only the built-in engine"),
        ));
    }
    Ok(())
}

fn contradictions(asked: &Asked) -> anyhow::Result<()> {
    let rr = |task: &Task| task.workload().is_rr();
    if asked.gso && !asked.tasks.contains(&Task::Steady(Workload::UdpStream)) {
        let problem = "requires the workload udp_stream";
        return Err(usage("--gso", problem));
    }
    if !asked.rates.is_empty() {
        if !asked.tasks.contains(&Task::Steady(Workload::UdpStream)) {
            return Err(usage("--rate", "requires the workload udp_stream"));
        }
        if asked.gso {
            return Err(usage("--rate", "not with --gso: its datagrams cannot be numbered"));
        }
        // The number and the time of sending need this room.
        if let Some(size) = asked.sizes.iter().find(|size| **size < NUMBERED_BYTES) {
            let problem = format!("{size}: with --rate, messages need {NUMBERED_BYTES} bytes");
            return Err(usage("--sizes", problem));
        }
    }
    let transactions = "requires the workload tcp_rr or udp_rr";
    // Streams have no requests.
    if asked.outstanding != [1] && !asked.tasks.iter().any(rr) {
        return Err(usage("--outstanding", transactions));
    }
    if !asked.beside.is_empty() && !asked.tasks.iter().any(rr) {
        return Err(usage("--beside", transactions));
    }
    if !asked.load_percent.is_empty() && !asked.tasks.iter().any(rr) {
        return Err(usage("--load", transactions));
    }
    if !asked.load_percent.is_empty() && asked.outstanding != [1] {
        return Err(usage(
            "--load",
            "not with --outstanding: the schedule determines when requests are sent",
        ));
    }
    Ok(())
}

/// Checks the sampling options.
///
/// # Errors
/// A usage error that names the argument and the allowed values.
pub fn run_options(arguments: &Measuring) -> anyhow::Result<RunOptions> {
    let (blocks, duration, warmup) = if arguments.quick { (9, 0.15, 0.05) } else { (20, 0.5, 0.1) };
    let impact = arguments.impact.as_deref().map(impact).transpose()?;
    let (duration, warmup) = match impact {
        // Under --impact, samples are short pulses.
        Some(_) => (Impact::PULSE.as_secs_f64(), Impact::WARMUP.as_secs_f64()),
        None => (duration, warmup),
    };
    Ok(RunOptions {
        stopping: stopping(arguments, blocks)?,
        duration: seconds("--duration", arguments.duration.unwrap_or(duration), 0.01)?,
        warmup: seconds("--warmup", arguments.warmup.unwrap_or(warmup), 0.0)?,
        placement: PlacementPolicy::from(arguments.placement())
            .place(&sys::affinity::of_this_thread()?),
        seed: arguments.seed.unwrap_or_else(fresh_seed),
        rule: rule(arguments.disturbance)?,
        impact,
        given: Given {
            duration: arguments.duration.is_some(),
            warmup: arguments.warmup.is_some(),
            placement: arguments.placement.is_some(),
            quick: arguments.quick,
        },
    })
}

/// Parses a comma-separated list of at least one value. Refuses duplicates.
pub fn list<T>(
    argument: &str,
    text: &str,
    parse: impl Fn(&str) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<T>> {
    let mut seen: Vec<&str> = Vec::new();
    for word in text.split(',').map(str::trim) {
        // A value measured twice would be two cells of one name.
        if seen.contains(&word) {
            return Err(usage(argument, format!("{word:?} is listed twice")));
        }
        seen.push(word);
    }
    seen.into_iter().map(parse).collect()
}

fn whole(argument: &str, text: &str, least: u32, most: u32, unit: &str) -> anyhow::Result<u32> {
    let number = text.parse().ok().filter(|n| (least..=most).contains(n));
    number.ok_or_else(|| usage(argument, format!("{text:?} is not {least} to {most}{unit}")))
}

fn percent(text: &str) -> anyhow::Result<f64> {
    text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(|| {
        usage("--load", format!("{text:?}: expected 0 to 100 percent, such as 0,10,50,90"))
    })
}

fn seconds(argument: &str, value: f64, least: f64) -> anyhow::Result<Duration> {
    const MOST: f64 = 3600.0;
    if value >= least && value <= MOST {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err(usage(argument, format!("{value}: expected {least} to {MOST} seconds")))
    }
}

fn stopping(arguments: &Measuring, default_blocks: u32) -> anyhow::Result<Stopping> {
    const ARGUMENT: &str = "--confidence";
    let mut stopping = Stopping {
        level: 0.95,
        blocks: arguments.blocks.unwrap_or(default_blocks),
        half_width: None,
        proof: false,
        max_blocks: arguments.max_blocks,
    };
    if !(1..=10_000).contains(&stopping.blocks) {
        return Err(usage("--blocks", format!("{}: expected 1 to 10000", stopping.blocks)));
    }
    if !(2..=10_000).contains(&stopping.max_blocks) {
        return Err(usage("--max-blocks", format!("{}: expected 2 to 10000", stopping.max_blocks)));
    }
    let Some(text) = &arguments.confidence else { return Ok(stopping) };
    let (level, goal) = match text.split_once(',') {
        Some((level, goal)) => (level, Some(goal)),
        None => (text.as_str(), None),
    };
    let percent = |text: &str, low: f64, high: f64| {
        text.trim().parse::<f64>().ok().filter(|p| *p >= low && *p <= high).ok_or_else(|| {
            usage(
                ARGUMENT,
                format!("{text:?}: expected LEVEL 50 to 99.9, PERCENT 0.1 to 100, such as 95,5"),
            )
        })
    };
    stopping.level = percent(level, 50.0, 99.9)? / 100.0;
    stopping.half_width =
        goal.map(|goal| Ok::<_, anyhow::Error>(percent(goal, 0.1, 100.0)? / 100.0)).transpose()?;
    Ok(stopping)
}

const IMPACT: &str = "--impact";
/// Smallest and largest value of `--impact`, in percent.
const IMPACTS: [f64; 2] = [0.1, 50.0];

/// Parses `5%` or `5`.
pub fn impact(text: &str) -> anyhow::Result<Impact> {
    let number = text.trim().strip_suffix('%').unwrap_or(text.trim()).parse::<f64>().ok();
    let [least, most] = IMPACTS;
    match number.filter(|percent| (least..=most).contains(percent)) {
        Some(percent) => Ok(Impact { share: percent / 100.0 }),
        None => Err(usage(IMPACT, format!("{text:?}: expected {least}% to {most}%, such as 5%"))),
    }
}

/// Returns workloads and load under `--impact`. The default is one transaction at a time.
fn gentle(arguments: &Asking) -> (&str, Option<&str>) {
    let workloads = match arguments.workloads.as_str() {
        WORKLOADS => "tcp_rr,udp_rr",
        others => others,
    };
    let rr = workloads.contains("tcp_rr") || workloads.contains("udp_rr");
    let load =
        arguments.load.as_deref().or(Some("0").filter(|_| rr && arguments.outstanding == "1"));
    (workloads, load)
}

/// Returns the rule for void samples: the run's own background, or with `--disturbance` a limit on
/// the CPU time of other programs. The limits on steal and throttling scale with it; 100% removes
/// all limits.
fn rule(percent: Option<f64>) -> anyhow::Result<Rule> {
    let Some(percent) = percent else { return Ok(Rule::Background) };
    if !(percent > 0.0 && percent <= 100.0) {
        return Err(usage(
            "--disturbance",
            format!("{percent}: expected more than 0, at most 100"),
        ));
    }
    if percent >= 100.0 {
        // No limit instead of 100%: the CPU clocks of the test and of all CPUs are not read at the
        // same time, so the share of a short sample can exceed 1.
        return Ok(Rule::Strict(Limits::LIFTED));
    }
    let share = percent / 100.0;
    let in_step = |default: f64| default * share / Limits::DEFAULT.other_share;
    Ok(Rule::Strict(Limits {
        other_share: share,
        steal_share: in_step(Limits::DEFAULT.steal_share),
        throttled_share: in_step(Limits::DEFAULT.throttled_share),
        // The busiest CPU is only compared with the background.
        busiest_share: f64::INFINITY,
    }))
}

/// Returns a different seed for each run. It is printed and stored in the results.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Short enough to type.
    (now.as_nanos() as u64 ^ u64::from(std::process::id()) << 20) % 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use measure::sampler::Survey;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        asking: Asking,
        #[command(flatten)]
        measuring: Measuring,
    }

    #[test]
    fn samples_of_a_trial_are_shorter_where_load_is_steady_and_none_were_asked_for() {
        let [steady, little, waves] =
            [[0.5; 5], [0.45, 0.58, 0.44, 0.57, 0.5], [0.0, 0.9, 0.1, 0.8, 0.0]].map(
                |shares: [f64; 5]| Survey {
                    steps: shares
                        .map(|other_share| results::Disturbance {
                            other_share,
                            ..Default::default()
                        })
                        .to_vec(),
                    ..Survey::default()
                },
            );
        for (words, survey, expected) in [
            (&[][..], &steady, 250),
            (&[], &little, 250),
            (&[], &waves, 500),
            (&["--duration", "0.7"], &steady, 700),
            (&["--quick"], &steady, 150),
            (&["--impact", "5%"], &steady, 250),
            (&["--impact", "5%", "--duration", "0.1"], &steady, 100),
        ] {
            let words = Words::parse_from([&["x"], words].concat());
            let mut run_options = run_options(&words.measuring).unwrap();
            run_options.shorten_pairs(survey);
            assert_eq!(run_options.duration.as_millis(), expected, "{:?}", words.measuring);
        }
    }

    #[test]
    fn bulk_traffic_runs_beside_requests_in_each_direction_and_both() {
        let asked = |words: &[&str]| {
            let words = Words::try_parse_from([&["x"], words].concat()).unwrap();
            asked(&words.asking, run_options(&words.measuring).unwrap().impact)
        };
        let rr = ["--workloads", "tcp_stream,udp_rr", "--beside"];
        let taken = asked(&[&rr[..], &["tcp_maerts,tcp_stream"]].concat()).unwrap();
        let besides: Vec<_> = taken.asks.iter().map(|ask| (ask.task.name(), ask.beside)).collect();
        let requests = |beside| ("udp_rr", beside);
        assert_eq!(
            besides,
            [
                ("tcp_stream", None),
                requests(None),
                requests(Some(Beside::TcpMaerts)),
                requests(Some(Beside::TcpStream)),
                requests(Some(Beside::Both)),
            ]
        );
        for (words, problem) in [
            (vec!["--workloads", "udp_stream", "--beside", "tcp_stream"], "tcp_rr or udp_rr"),
            (vec!["--workloads", "tcp_rr", "--beside", "udp_stream"], "known: tcp_stream"),
            (vec!["--workloads", "tcp_rr", "--beside", "both,both"], "listed twice"),
            (vec!["--workloads", "tcp_rr", "--beside", "both", "--impact", "5%"], "saturates"),
        ] {
            let error = asked(&words).unwrap_err().to_string();
            assert!(error.contains(problem), "{words:?}: {error}");
        }
    }

    /// Milliseconds of a pulse, and of its warm-up.
    fn pulse(words: &[&str]) -> [u128; 2] {
        let words = Words::parse_from([&["x"], words].concat());
        let mut run_options = run_options(&words.measuring).unwrap();
        let asked = asked(&words.asking, run_options.impact).unwrap();
        run_options.shorten_bursts(&asked);
        [run_options.duration.as_millis(), run_options.warmup.as_millis()]
    }

    #[test]
    fn workloads_without_rests_have_short_pulses() {
        assert_eq!(pulse(&[]), [500, 100]);
        assert_eq!(pulse(&["--impact", "5%"]), [250, 20]);
        assert_eq!(pulse(&["--impact", "5%", "--workloads", "tcp_rr,tcp_crr"]), [50, 10]);
        assert_eq!(pulse(&["--impact", "5%", "--outstanding", "4"]), [50, 10]);
        let asked = ["--impact", "5%", "--workloads", "tcp_crr", "--duration", "0.3"];
        assert_eq!(pulse(&asked), [300, 10]);
    }
}
