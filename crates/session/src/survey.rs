//! Survey of other load on this machine before the first block. Reports its source, its effect on
//! the intervals, and a remedy.

use std::time::Duration;

use measure::plan::PlacementPolicy;
use measure::sampler::{Machine, Rule, Survey};
use results::Placement;

use crate::progress::Progress;
use crate::request::RunOptions;

/// Duration of the survey before a run, and its number of steps.
const WATCH: Duration = Duration::from_millis(500);
const STEPS: u32 = 5;
/// Share of all CPUs from which on other load is reported.
const WORTH_SAYING: f64 = 0.05;
/// Share of softirq time and packets per second from which on they are reported.
const SOFTIRQ: f64 = 0.03;
const TRAFFIC: f64 = 1000.0;
/// Maximum number of programs to name, and their minimum share of one CPU.
const NAMED: usize = 3;
const NAMED_FROM: f64 = 0.05;
/// Busy share below which a CPU counts as idle.
const IDLE: f64 = 0.1;
/// Busy share above which a CPU counts as taken by other programs.
const TAKEN: f64 = 0.5;
/// Half-width of an interval from which on a remedy is recommended.
const WIDE: f64 = 0.10;
/// Noise of a sample on an idle machine (standard deviation).
const NOISE: f64 = 0.04;

/// Surveys the machine and reports other load.
pub fn look(
    machine: &mut Machine,
    run_options: &RunOptions,
    progress: &Progress,
) -> anyhow::Result<Survey> {
    let survey = watch(machine, run_options)?;
    progress.print(&lines(&survey, run_options));
    Ok(survey)
}

/// Surveys the machine and reports other load, here and on the server's machine. With `may_unpin`
/// (both endpoints here, no placement requested), does not pin threads to CPUs that other programs
/// use: a pinned thread would wait there while another CPU may be free.
pub fn look_and_place(
    machine: &mut Machine,
    run_options: &mut RunOptions,
    may_unpin: bool,
    of_server: Vec<String>,
    progress: &Progress,
) -> anyhow::Result<Survey> {
    let survey = watch(machine, run_options)?;
    // An explicit --placement stays as given.
    let crowded = crowded(&survey, &run_options.placement).filter(|_| may_unpin);
    if crowded.is_some() {
        run_options.placement = PlacementPolicy::None.place(&[]);
        // Without pinning, no CPU is more important than others.
        machine.focus_on([]);
    }
    let mut said = lines(&survey, run_options);
    said.extend(crowded.map(|cpus| {
        format!(
            "placement: other programs use CPU {cpus}, so threads are not pinned (--placement \
             split pins them)"
        )
    }));
    said.extend(of_server);
    progress.print(&said);
    Ok(survey)
}

/// Returns the CPUs of an endpoint if other programs take more than half of each. Ignores an
/// endpoint that may use every CPU, because the scheduler then finds a free one.
fn crowded(survey: &Survey, placement: &Placement) -> Option<String> {
    let is_taken = |cpu: &usize| survey.cpus.iter().any(|one| one.cpu == *cpu && one.busy > TAKEN);
    let ends = [&placement.client_cpus, &placement.server_cpus];
    // An endpoint without pinning, or pinned to all CPUs, is not restricted.
    let pinned = ends.into_iter().filter(|cpus| (1..survey.cpus.len()).contains(&cpus.len()));
    let end = pinned.into_iter().find(|cpus| cpus.iter().all(is_taken))?;
    Some(end.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

fn watch(machine: &mut Machine, run_options: &RunOptions) -> anyhow::Result<Survey> {
    let Placement { client_cpus, server_cpus, .. } = &run_options.placement;
    machine.focus_on(client_cpus.iter().chain(server_cpus).copied());
    Ok(machine.survey(WATCH, STEPS)?)
}

/// Returns the warnings for the results file.
pub fn warnings(survey: &Survey, run_options: &RunOptions) -> Vec<String> {
    let mut warnings: Vec<String> = who(survey).into_iter().collect();
    warnings.extend(quota(survey));
    if let Some(impact) = run_options.impact {
        warnings.push(format!(
            "measured under --impact {:.3}%: the results hold for a small load, one request at a \
             time, not for a full load",
            impact.share * 100.0
        ));
    }
    warnings
}

/// Returns all lines of the report. Empty on an idle machine.
fn lines(survey: &Survey, run_options: &RunOptions) -> Vec<String> {
    let mut lines: Vec<String> = who(survey).into_iter().collect();
    if !lines.is_empty() {
        lines.push(effect(survey, run_options));
        lines.push(help(survey, run_options));
    }
    lines.extend(quota(survey));
    lines.extend(traffic(survey.packets_per_s, "this machine", run_options));
    lines
}

/// Returns a line about production traffic on a machine, unless --impact already limits the test.
pub fn traffic(packets_per_s: f64, machine: &str, run_options: &RunOptions) -> Option<String> {
    (packets_per_s > TRAFFIC && run_options.impact.is_none()).then(|| {
        format!(
            "traffic: {packets_per_s:.0} packets/s pass {machine}: --impact 5% keeps the test \
             below 5% of its CPUs and link"
        )
    })
}

/// Returns a line about other load on the CPUs, or `None` if it is small.
fn who(survey: &Survey) -> Option<String> {
    let Survey { whole, softirq, .. } = survey;
    let taken = survey.taken();
    // Small loads are normal and do not affect the intervals.
    if taken < WORTH_SAYING && *softirq < SOFTIRQ {
        return None;
    }
    let mut said = format!(
        "busy: other programs use {:.0}% of {} CPUs",
        whole.other_share.min(1.0) * 100.0,
        survey.cpus.len()
    );
    if *softirq >= 0.01 {
        said += &format!(", softirqs {:.0}%", softirq * 100.0);
    }
    if whole.steal_share >= 0.01 {
        said += &format!(", the hypervisor stole {:.0}%", whole.steal_share * 100.0);
    }
    let named = survey.consumers.iter().take(NAMED).filter(|one| one.share >= NAMED_FROM);
    let named: Vec<String> = named
        .map(|one| format!("{} (pid {}) {:.0}%", one.command, one.pid, one.share * 100.0))
        .collect();
    if !named.is_empty() {
        said += &format!("; most by {} of one CPU", named.join(", "));
    }
    Some(said)
}

/// Returns a line about the effect on the intervals.
fn effect(survey: &Survey, run_options: &RunOptions) -> String {
    // With --disturbance, samples are not compared with the background.
    if let Rule::Strict(limits) = run_options.rule {
        let past = survey.whole.other_share > limits.other_share;
        return match past {
            true => format!(
                "effect: above --disturbance {:.0}, most samples will be void; without this option \
                 samples are compared with this background",
                limits.other_share * 100.0
            ),
            false => "effect: none on samples within --disturbance".to_owned(),
        };
    }
    let wide = expected(survey, blocks(run_options)) * 100.0;
    match !survey.comes_and_goes() {
        true => format!(
            "effect: steady load affects both sides of a ratio: intervals of up to about ±{wide:.0}%"
        ),
        false => format!(
            "effect: varying load (±{:.0}%): intervals of up to about ±{wide:.0}% after {} blocks",
            survey.swing() * 100.0,
            blocks(run_options)
        ),
    }
}

/// Returns a line with a remedy: idle CPUs, longer samples, more blocks, or nothing.
fn help(survey: &Survey, run_options: &RunOptions) -> String {
    let Placement { client_cpus, server_cpus, .. } = &run_options.placement;
    let used = |cpu: &usize| client_cpus.contains(cpu) || server_cpus.contains(cpu);
    let busy = |cpu: &usize| survey.cpus.iter().any(|one| one.cpu == *cpu && one.busy > 1.0 - IDLE);
    let idle: Vec<usize> =
        survey.cpus.iter().filter(|one| one.busy < IDLE).map(|one| one.cpu).collect();
    let crowded = survey.cpus.iter().map(|one| one.cpu).any(|cpu| used(&cpu) && busy(&cpu));
    // Client and server need one idle CPU each.
    if crowded && idle.len() >= 2 {
        let idle: Vec<String> = idle.iter().map(ToString::to_string).collect();
        return format!("help: use the idle CPUs: taskset -c {} overlane …", idle.join(","));
    }
    if survey.comes_and_goes() || expected(survey, blocks(run_options)) > WIDE {
        let longer = run_options.duration.as_secs_f64() * 4.0;
        return match run_options.impact {
            // Pulses must stay short under --impact.
            Some(_) => "help: use more blocks (--blocks)".to_owned(),
            None => format!("help: use longer samples (--duration {longer})"),
        };
    }
    "help: nothing to do".to_owned()
}

/// Returns a line about a CPU limit on overlane itself.
fn quota(survey: &Survey) -> Option<String> {
    // A quota of all CPUs or more does not limit anything.
    let quota = survey.quota.filter(|quota| *quota < survey.cpus.len() as f64)?;
    Some(format!(
        "limit: a control group limits overlane to {quota:.2} of {} CPUs (cpu.max): it throttles \
         samples, which counts as background",
        survey.cpus.len()
    ))
}

/// Returns the maximum number of blocks of the run.
fn blocks(run_options: &RunOptions) -> u32 {
    let stopping = &run_options.stopping;
    stopping.half_width.map_or(stopping.blocks, |_| stopping.max_blocks)
}

/// Estimates the half-width of the interval of a ratio: the median over `blocks` ratios of two
/// samples, each with the noise of an idle machine and of the varying CPU time left to it.
fn expected(survey: &Survey, blocks: u32) -> f64 {
    // At least 10%, because the noise would be infinite with no CPU time left.
    let left = (1.0 - survey.taken()).max(0.1);
    let noise = NOISE.hypot(survey.swing() / left);
    // √2 of a ratio, √(π/2) of a median, 2 standard deviations.
    2.0 * std::f64::consts::PI.sqrt() * noise / f64::from(blocks.max(1)).sqrt()
}

#[cfg(test)]
mod tests {
    use measure::impact::Impact;
    use measure::sampler::{Consumer, CpuBusy, Limits};
    use results::Disturbance;

    use super::*;
    use crate::request::tests::lab_run_options;

    const IMPACT: Impact = Impact { share: 0.05 };

    fn run_options(impact: Option<Impact>) -> RunOptions {
        let placement = Placement {
            policy: PlacementPolicy::Split,
            client_cpus: vec![0],
            server_cpus: vec![1],
        };
        RunOptions { placement, impact, ..lab_run_options() }
    }

    fn survey(shares: [f64; 5], busy: &[f64]) -> Survey {
        let seen = |other_share| Disturbance { other_share, ..Disturbance::default() };
        let cpus = busy.iter().enumerate();
        Survey {
            steps: shares.map(seen).to_vec(),
            whole: seen(shares.iter().sum::<f64>() / 5.0),
            cpus: cpus
                .map(|(cpu, busy)| CpuBusy { cpu, busy: *busy, softirq: 0.0, steal: 0.0 })
                .collect(),
            consumers: vec![Consumer { pid: 7, command: "cc1".to_owned(), share: 0.97 }],
            ..Survey::default()
        }
    }

    #[test]
    fn an_idle_machine_is_not_worth_a_line() {
        assert!(lines(&survey([0.01; 5], &[0.02, 0.01]), &run_options(None)).is_empty());
    }

    #[test]
    fn a_steady_load_is_named_and_nothing_helps_nor_must() {
        let lines = lines(&survey([0.5; 5], &[1.0, 0.0]), &run_options(None));
        assert_eq!(
            lines,
            [
                "busy: other programs use 50% of 2 CPUs; most by cc1 (pid 7) 97% of one CPU",
                "effect: steady load affects both sides of a ratio: intervals of up to about ±3%",
                "help: nothing to do",
            ]
        );
    }

    #[test]
    fn varying_load_is_reported_and_longer_samples_are_suggested() {
        let busy = survey([0.0, 0.9, 0.1, 0.8, 0.0], &[0.6, 0.6]);
        let said = lines(&busy, &run_options(None)).join("\n");
        assert!(said.contains("varying load") && said.contains("--duration 2"), "{said}");
        let said = lines(&busy, &run_options(Some(IMPACT))).join("\n");
        assert!(said.contains("--blocks"), "{said}");
    }

    #[test]
    fn idle_cpus_for_the_pair_are_named() {
        let said = lines(&survey([0.5; 5], &[1.0, 1.0, 0.0, 0.02]), &run_options(None)).join("\n");
        assert!(said.contains("taskset -c 2,3"), "{said}");
    }

    #[test]
    fn an_end_is_crowded_that_has_no_cpu_of_which_half_is_left() {
        let pinned = |client: &[usize], server: &[usize]| Placement {
            policy: PlacementPolicy::Split,
            client_cpus: client.to_vec(),
            server_cpus: server.to_vec(),
        };
        let busy = |shares: &[f64]| survey([0.5; 5], shares);
        for (shares, client, server, expected) in [
            (vec![1.0, 0.0], vec![0], vec![1], Some("0")),
            (vec![0.1, 0.6], vec![0], vec![1], Some("1")),
            (vec![0.4, 0.4], vec![0], vec![1], None),
            // One of its two CPUs is free.
            (vec![1.0, 0.0, 0.0, 0.0], vec![0, 1], vec![2, 3], None),
            (vec![1.0, 1.0, 0.0, 0.0], vec![0, 1], vec![2, 3], Some("0,1")),
            // Not pinned, or pinned to all CPUs.
            (vec![1.0, 0.0], vec![], vec![], None),
            (vec![1.0, 1.0], vec![0, 1], vec![0, 1], None),
        ] {
            let found = crowded(&busy(&shares), &pinned(&client, &server));
            assert_eq!(found.as_deref(), expected, "{shares:?} {client:?} {server:?}");
        }
    }

    #[test]
    fn a_strict_limit_that_is_passed_is_named_with_its_option() {
        let rule = Rule::Strict(Limits { other_share: 0.1, ..Limits::DEFAULT });
        let said = lines(&survey([0.5; 5], &[1.0, 0.0]), &RunOptions { rule, ..run_options(None) });
        assert!(said[1].contains("--disturbance 10, most samples will be void"), "{said:?}");
    }

    #[test]
    fn a_limit_on_overlane_and_others_traffic_are_said_on_an_idle_machine_too() {
        let idle = survey([0.0; 5], &[0.0, 0.0]);
        let held = Survey { quota: Some(0.5), packets_per_s: 20_000.0, ..idle };
        let said = lines(&held, &run_options(None));
        assert!(said[0].contains("0.50 of 2 CPUs (cpu.max)"), "{said:?}");
        assert!(said[1].contains("20000 packets/s") && said[1].contains("--impact 5%"), "{said:?}");
        assert_eq!(lines(&held, &run_options(Some(Impact { share: 0.01 }))).len(), 1);
        assert!(quota(&Survey { quota: Some(2.0), ..held }).is_none());
    }
}
